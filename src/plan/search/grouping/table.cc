#include "src/plan/search/grouping/table.h"

#include <stdexcept>
#include <string>
#include <vector>

#include "src/plan/base/known_row.h"
#include "src/plan/base/row_table.h"

namespace paradyse {

GroupingAnswer GroupingPlannerRow::plan_on(
    const GroupingTask& task, const GroupingOptions& options) const {
  if (knows_pools) {
    return plan(task, options);
  }
  GroupingAnswer answer = plan(task.pools.empty() ? task : without_pools(task), options);
  if (answer.grouping) {
    // such a planner may not know that groups lie in nodes either
    if (const std::vector<std::string> found = problems(task, *answer.grouping); !found.empty()) {
      return {
          .why_not = std::string("what --planner ") + name + " finds cannot run: " + found.front() +
                     "; --planner fast takes nodes into account"};
    }
  }
  return answer;
}

namespace {

RowTable<GroupingPlannerRow>& table() {
  static RowTable<GroupingPlannerRow> table(
      {fast_planner(),
       exact_planner(),
       static_planner(),
       homogeneous_planner(),
       longest_first_planner()},
      "add_grouping_planners",
      "remove_grouping_planner");
  return table;
}

}  // namespace

std::span<const GroupingPlannerRow> grouping_planners() { return table().rows(); }

void add_grouping_planners(const std::vector<GroupingPlannerRow>& more) {
  for (const GroupingPlannerRow& row : more) {
    if (row_named(grouping_planners(), row.name) != nullptr) {
      throw std::logic_error(std::string("two planners of groups are called ") + row.name);
    }
    table().add(row);
  }
}

void remove_grouping_planner(const std::string& name) {
  table().remove(name, &GroupingPlannerRow::name);
}

const GroupingPlannerRow& grouping_planner(const std::string& name) {
  return known_row(
      grouping_planners(),
      name,
      "planner of groups",
      " (paradyse-lab has those of publications, too)");
}

}  // namespace paradyse
