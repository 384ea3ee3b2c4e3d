// What a rank holds, walk call by walk call.
#pragma once

#include <vector>

#include "paradyse/plan/cost.h"

namespace paradyse {

struct MemoryTrail {
  // Bytes at most while each op or copy of the walk runs, and when what dies after it is gone.
  std::vector<std::int64_t> highest;
  std::vector<std::int64_t> after;
  Footprint footprint;
};

// Of a micro-batch, backward pass included where the timeline has one; calls in the order of
// instructions() (timetable.h).
MemoryTrail memory_trail(
    const Timeline& timeline, Seat seat, Precision precision, std::int64_t base_bytes);

}  // namespace paradyse
