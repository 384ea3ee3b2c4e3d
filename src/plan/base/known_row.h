// Rows of a table by their names.
#pragma once

#include <stdexcept>
#include <string>
#include <vector>

#include "src/plan/base/renamed.h"
#include "src/plan/base/text_match.h"

namespace paradyse {

// The row with this name or old name.  Throws std::invalid_argument for another, with the names
// there are; `what` the rows are, and what else there is to say.
template <typename Rows>
const auto& known_row(
    const Rows& table,
    const std::string& name,
    const std::string& what,
    const std::string& more = "") {
  if (const auto* const row = row_named(table, name)) {
    return *row;
  }
  std::vector<std::string> names;
  for (const auto& row : table) {
    names.emplace_back(row.name);
  }
  throw std::invalid_argument(
      what + " '" + name + "' is not known" + did_you_mean(name, names) + "; there are " +
      joined(names, ", ") + more);
}

}  // namespace paradyse
