#include "lab/grouping/milp.h"

#include <limits>

namespace paradyse {

const double Milp::kInfinity = std::numeric_limits<double>::infinity();

int Milp::column(double column_cost, double least, double most, bool whole) {
  cost.push_back(column_cost);
  lower.push_back(least);
  upper.push_back(most);
  integer.push_back(whole ? 1 : 0);
  return static_cast<int>(cost.size()) - 1;
}

void Milp::row(double least, const std::vector<Term>& terms, double most) {
  row_lower.push_back(least);
  row_upper.push_back(most);
  row_start.push_back(static_cast<int>(term_column.size()));
  for (const Term& term : terms) {
    if (term.value != 0) {
      term_column.push_back(term.column);
      term_value.push_back(term.value);
    }
  }
}

}  // namespace paradyse
