// The planners of groupings there are beside the fast and the exact one, each in its file; a new
// one is a row of table.cc.
#pragma once

#include "src/plan/search/grouping/planners.h"

namespace paradyse {

GroupingPlannerRow static_planner();
GroupingPlannerRow homogeneous_planner();
GroupingPlannerRow sorted_planner();
GroupingPlannerRow best_fit_planner();
GroupingPlannerRow longest_first_planner();
GroupingPlannerRow karmarkar_karp_planner();
GroupingPlannerRow megatron_planner();
GroupingPlannerRow two_stage_planner();
GroupingPlannerRow published_planner();
GroupingPlannerRow published_as_written_planner();

}  // namespace paradyse
