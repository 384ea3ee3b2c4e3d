// What planners say of parts of a plan.
#pragma once

#include <cstdint>
#include <string>

#include "paradyse/plan/plan.h"

namespace paradyse {

// "3 x METP+pass; 1 x ...".
std::string name(const LayerRuns& program);

// Tokens of a micro-batch: of its fullest group.
std::int64_t fullest(const Plan& plan, const PlanMicroBatch& micro);
// Of its longest document.
std::int64_t longest_of(const Plan& plan, const PlanMicroBatch& micro);

}  // namespace paradyse
