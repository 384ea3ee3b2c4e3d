#include "src/plan/search/batch/table.h"

#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "src/plan/base/renamed.h"
#include "src/plan/base/text_match.h"

namespace paradyse {

std::span<const BatchPlannerRow> batch_planners() {
  static const std::vector<BatchPlannerRow> rows = [] {
    std::vector<BatchPlannerRow> all = {borders(), whole_or_split(), flexsp()};
    for (const BatchPlannerRow& one : groups_of_one_size()) {
      all.push_back(one);
    }
    return all;
  }();
  return rows;
}

std::unique_ptr<DocumentPlanner> batch_planner(PlanningTask task) {
  if (const BatchPlannerRow* const row = row_named(batch_planners(), task.batch_planner)) {
    return row->make(std::move(task));
  }
  std::vector<std::string> names;
  std::string list;
  for (const BatchPlannerRow& row : batch_planners()) {
    names.emplace_back(row.name);
    list.append(list.empty() ? "" : ", ").append(row.name);
  }
  throw std::invalid_argument(
      "batch planner '" + task.batch_planner + "' is not known" +
      did_you_mean(task.batch_planner, names) + "; there are " + list);
}

}  // namespace paradyse
