// Planners of groupings that ours are compared with, each in its file; a new one is a row of
// rivals.cc.
#pragma once

#include "src/plan/search/grouping/planners.h"

namespace paradyse {

GroupingPlannerRow published_planner();             // published.cc: FlexSP's MILP
GroupingPlannerRow published_as_written_planner();  // the same without what its release adds
GroupingPlannerRow sorted_planner();
GroupingPlannerRow best_fit_planner();
GroupingPlannerRow karmarkar_karp_planner();
GroupingPlannerRow verl_planner();  // karmarkar_karp.cc
GroupingPlannerRow megatron_planner();
GroupingPlannerRow two_stage_planner();

// Makes them rows of grouping_planners(), once, however often it is called; and of
// batch_planners() each that needs no solver, and the plain ones beside them: "groups-by-megatron".
void add_rivals();

}  // namespace paradyse
