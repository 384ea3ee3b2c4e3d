// Mixed-integer linear programmes, and their solver: HiGHS (https://highs.dev), where the program
// was built with it.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace paradyse {

// Minimise cost x, such that lower <= x <= upper and each row is between its bounds.
class Milp {
 public:
  static const double kInfinity;
  struct Term {
    int column = 0;
    double value = 0;
  };

  // The index of a new column.
  int column(double column_cost, double least, double most, bool whole);
  // Terms of different columns; those of value 0 are left out.
  void row(double least, const std::vector<Term>& terms, double most);

  std::vector<double> cost, lower, upper;  // [column]
  std::vector<int> integer;                // [column] 1: whole numbers alone
  std::vector<double> row_lower, row_upper;
  std::vector<int> row_start, term_column;  // compressed by rows
  std::vector<double> term_value;
};

struct MilpAnswer {
  std::vector<double> values;  // [column]
  bool optimal = false;        // proved, within a part in 10^4
  std::int64_t nodes = 0;
};

// Whether the program was built with a solver.
bool has_milp_solver();

// The best that is found in so many seconds on one thread, from `start` (a value for each column,
// or none); nothing where none is.  Depends on the clock where `optimal` is not set.
std::optional<MilpAnswer> solve(
    const Milp& problem, const std::vector<double>& start, double seconds, std::uint64_t seed);

}  // namespace paradyse
