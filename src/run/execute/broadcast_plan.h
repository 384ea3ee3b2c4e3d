// One mind: what rank 0 planned.
#pragma once

#include <optional>

#include "paradyse/plan/plan.h"
#include "paradyse/run/communicator.h"

namespace paradyse {

// Rank 0's plan becomes everybody's; nothing, where it has none.
std::optional<Plan> broadcast_plan(const std::optional<Plan>& mine, Communicator& world);

}  // namespace paradyse
