// The parts of a group's program as its time is told apart: planners predict the seconds of each,
// runs measure them, and corrections (correction.h) are learned of each.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "paradyse/plan/detail/correction.h"
#include "paradyse/plan/detail/schedule.h"
#include "paradyse/plan/plan.h"

namespace paradyse {

inline constexpr const char* kMoves = "move";  // between parts, whatever is moved
inline constexpr const char* kRest = "rest";   // what is in no layer

// What costs call a part: its own name, or one of the above.
std::string costed_name(const ScheduledPart& part);

CostedPart costed_part(const ScheduledPart& part);
// The same of a part of a layer; a published name of an MLP stands for its verb.
CostedPart costed_part(const PartChoice& choice);

// Of all layers each part under each strategy once, ascending; then moves, and the rest.
std::vector<CostedPart> costed_parts(const LayerRuns& program);
// Which of them it is.  Throws std::logic_error for none.
std::size_t place_among(const std::vector<CostedPart>& parts, const CostedPart& one);

}  // namespace paradyse
