// By which ranks are told apart that hold unlike bytes, for less than their footprints.
#pragma once

#include <cstdint>
#include <vector>

#include "paradyse/plan/cost.h"

namespace paradyse {

// Seats with equal numbers hold equal bytes all the time.
std::vector<std::int64_t> memory_signature(
    const Timeline& timeline, Seat seat, Precision precision);

}  // namespace paradyse
