#include "src/plan/search/grouping/table.h"

#include <stdexcept>
#include <string>
#include <vector>

#include "src/plan/base/renamed.h"
#include "src/plan/base/text_match.h"

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

std::span<const GroupingPlannerRow> grouping_planners() {
  static const std::vector<GroupingPlannerRow> rows = {
      fast_planner(),
      exact_planner(),
      published_planner(),
      published_as_written_planner(),
      static_planner(),
      homogeneous_planner(),
      sorted_planner(),
      best_fit_planner(),
      longest_first_planner(),
      karmarkar_karp_planner(),
      megatron_planner(),
      two_stage_planner()};
  return rows;
}

const GroupingPlannerRow& grouping_planner(const std::string& name) {
  if (const GroupingPlannerRow* const row = row_named(grouping_planners(), name)) {
    return *row;
  }
  std::vector<std::string> names;
  std::string list;
  for (const GroupingPlannerRow& row : grouping_planners()) {
    names.emplace_back(row.name);
    list.append(list.empty() ? "" : ", ").append(row.name);
  }
  throw std::invalid_argument(
      "planner of groups '" + name + "' is not known" + did_you_mean(name, names) + "; there are " +
      list);
}

}  // namespace paradyse
