// Names that have changed.  Input in the old name is taken as the new one; output has the new name.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace paradyse {

struct Renamed {
  std::string now;
  std::string old;
};

// `name`, or what it is called now.
inline std::string current_name(const std::string& name, const std::vector<Renamed>& changes) {
  for (const Renamed& change : changes) {
    if (name == change.old) {
      return change.now;
    }
  }
  return name;
}

// The row of a table with this name or old name; nullptr where there is none.
template <typename Rows>
auto row_named(const Rows& table, std::string_view name) -> decltype(&*table.begin()) {
  for (const auto& row : table) {
    if (!name.empty() && (name == row.name || name == row.old_name)) {
      return &row;
    }
  }
  return nullptr;
}

}  // namespace paradyse
