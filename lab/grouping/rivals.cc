#include "lab/grouping/rivals.h"

#include <string>
#include <vector>

#include "src/plan/search/batch/table.h"

namespace paradyse {

void add_rivals() {
  static const bool added = [] {
    const std::vector<GroupingPlannerRow> quick = {
        sorted_planner(),
        best_fit_planner(),
        karmarkar_karp_planner(),
        verl_planner(),
        megatron_planner(),
        two_stage_planner()};
    add_grouping_planners({published_planner(), published_as_written_planner()});
    add_grouping_planners(quick);
    std::vector<BatchPlannerRow> rows;
    const auto add = [&](const GroupingPlannerRow& row) {
      rows.push_back(groups_by(std::string("groups-by-") + row.name, row));
    };
    for (const char* plain : {"static", "homogeneous", "longest-first"}) {
      add(grouping_planner(plain));
    }
    for (const GroupingPlannerRow& row : quick) {
      add(row);
    }
    add_batch_planners(rows);
    return true;
  }();
  static_cast<void>(added);
}

}  // namespace paradyse
