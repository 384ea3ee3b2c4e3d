// Seconds of parts that follow no machine, so that plans by them mix whatever there is.
#pragma once

#include <cstdint>
#include <functional>

#include "paradyse/plan/detail/schedule.h"

namespace paradyse::test {

// Of one op from 1 to 2, of several much more, so that moves are cheap; the same for the same
// program, others for another seed.
inline std::function<double(const ScheduledPart& part)> odd_seconds(std::uint64_t seed) {
  return [seed](const ScheduledPart& part) {
    std::uint64_t mixed = seed + static_cast<std::uint64_t>(part.program().ranks());
    const auto mix = [&](std::uint64_t word) {
      mixed = (mixed ^ word) * 6364136223846793005ULL + 1442695040888963407ULL;
      mixed ^= mixed >> 29;
    };
    for (const Op& op : part.program().ops) {
      mix(static_cast<std::uint64_t>(op.kind));
    }
    for (const Value& value : part.program().values) {
      for (const char letter : value.name + to_string(value.layout)) {
        mix(static_cast<std::uint64_t>(letter));
      }
    }
    const double odd = 1 + static_cast<double>(mixed >> 11) / 9007199254740992.0;  // 2^53
    const auto ops = static_cast<double>(part.program().ops.size());
    return odd * ops * ops;
  };
}

}  // namespace paradyse::test
