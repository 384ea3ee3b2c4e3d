// The planners of batches there are, each in its file; a new one is a row of table.cc.
#pragma once

#include "paradyse/plan/batch_planner.h"

namespace paradyse {

BatchPlannerRow borders();

}  // namespace paradyse
