// Tables whose first rows come with the program, and to which a program of a user's adds.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace paradyse {

template <typename Row>
class RowTable {
 public:
  // `adds` and `removes`: the functions that do, in messages.
  RowTable(std::vector<Row> brought, std::string adds, std::string removes)
      : rows_(std::move(brought)),
        brought_(static_cast<std::ptrdiff_t>(rows_.size())),
        adds_(std::move(adds)),
        removes_(std::move(removes)) {}

  [[nodiscard]] std::span<const Row> rows() const { return rows_; }
  void add(Row row) { rows_.push_back(std::move(row)); }
  // Throws std::invalid_argument unless a row of this name was added.
  template <typename Name>
  void remove(const std::string& name, Name Row::* of) {
    for (auto row = rows_.begin() + brought_; row != rows_.end(); ++row) {
      if (std::invoke(of, *row) == name) {
        rows_.erase(row);
        return;
      }
    }
    throw std::invalid_argument(removes_ + ": '" + name + "' was not added by " + adds_ + "()");
  }

 private:
  std::vector<Row> rows_;
  std::ptrdiff_t brought_;
  std::string adds_;
  std::string removes_;
};

}  // namespace paradyse
