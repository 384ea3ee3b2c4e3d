// Tables for people: as wide as a terminal, with the columns that matter most, the best row marked.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace paradyse {

struct TableLook {
  std::size_t left = 1;                // so many columns are aligned left, the others right
  std::size_t width = 0;               // characters that a line may have; 0: any number
  std::vector<std::string> drop = {};  // columns that go where lines are too long, the first first;
                                       // after them the last column, but never the first two
  std::optional<std::size_t> best = {};  // a row, from 1 on: it has a "*"
};

// The first row of `all` has the columns' names.  Cells of a column are as wide as its widest, two
// spaces apart.  Lines are no longer than the width: columns go, as the last line says, and then
// cells of the widest left column are continued on further lines.
std::string table_text(const std::vector<std::vector<std::string>>& all, const TableLook& look);

}  // namespace paradyse
