#include "src/plan/search/batch/table.h"

#include <algorithm>
#include <bit>
#include <iterator>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "src/plan/base/renamed.h"
#include "src/plan/base/text_match.h"
#include "src/plan/search/batch/document_planner.h"

namespace paradyse {

namespace {

std::vector<BatchPlannerRow> rows_brought() {
  std::vector<BatchPlannerRow> all = {borders(), whole_or_split(), flexsp()};
  for (const BatchPlannerRow& one : groups_of_one_size()) {
    all.push_back(one);
  }
  return all;
}

std::vector<BatchPlannerRow>& all_rows() {
  static std::vector<BatchPlannerRow> rows = rows_brought();
  return rows;
}

}  // namespace

std::span<const BatchPlannerRow> batch_planners() { return all_rows(); }

void add_batch_planners(const std::vector<BatchPlannerRow>& more) {
  for (const BatchPlannerRow& row : more) {
    if (row.name.empty() || !row.make || !row.sizes) {
      throw std::invalid_argument(
          "add_batch_planners: the row '" + row.name + "' has no " +
          (row.name.empty() ? "name"
           : !row.make      ? "make"
                            : "sizes"));
    }
    if (row_named(batch_planners(), row.name) != nullptr) {
      throw std::logic_error("two batch planners are called " + row.name);
    }
    all_rows().push_back(row);
  }
}

void remove_batch_planner(const std::string& name) {
  std::vector<BatchPlannerRow>& rows = all_rows();
  const auto first = rows.begin() + std::ssize(rows_brought());
  const auto found = std::ranges::find(first, rows.end(), name, &BatchPlannerRow::name);
  if (found == rows.end()) {
    throw std::invalid_argument(
        "remove_batch_planner: '" + name + "' was not added by add_batch_planners()");
  }
  rows.erase(found);
}

const BatchPlannerRow& batch_planner_row(const std::string& name) {
  if (const BatchPlannerRow* const row = row_named(batch_planners(), name)) {
    return *row;
  }
  std::vector<std::string> names;
  std::string list;
  for (const BatchPlannerRow& row : batch_planners()) {
    names.emplace_back(row.name);
    list.append(list.empty() ? "" : ", ").append(row.name);
  }
  throw std::invalid_argument(
      "batch planner '" + name + "' is not known" + did_you_mean(name, names) + "; there are " +
      list);
}

std::unique_ptr<DocumentPlanner> batch_planner(PlanningTask task) {
  const BatchPlannerRow& row = batch_planner_row(task.batch_planner);
  return row.make(std::move(task));
}

std::vector<int> one_or_all(int ranks) {
  return ranks == 1 ? std::vector{1} : std::vector{1, ranks};
}

std::vector<int> sizes_over_nodes(int ranks, int node) {
  constexpr int kFew = 8;
  std::vector<int> sizes;
  for (int size = 1; size <= ranks; ++size) {
    const bool power = std::has_single_bit(static_cast<unsigned>(size));
    const bool fits = ranks % size == 0 && (node % size == 0 || size % node == 0);
    if (ranks <= kFew || power || fits) {
      sizes.push_back(size);
    }
  }
  return sizes;
}

std::vector<int> any_size(int ranks) { return sizes_over_nodes(ranks, ranks); }

}  // namespace paradyse
