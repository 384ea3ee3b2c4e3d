// The planners of groupings beside the fast and the exact one, each in its file; a new one is a row
// of table.cc.
#pragma once

#include "src/plan/search/grouping/planners.h"

namespace paradyse {

GroupingPlannerRow static_planner();
GroupingPlannerRow homogeneous_planner();
GroupingPlannerRow longest_first_planner();

}  // namespace paradyse
