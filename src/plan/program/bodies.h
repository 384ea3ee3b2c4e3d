// What the parts of a micro-batch that run alike share, each once.
#pragma once

#include <cstddef>
#include <vector>

#include "paradyse/plan/detail/schedule.h"

namespace paradyse {

struct AlikeParts {
  const ScheduledPart::Body* body = nullptr;
  std::vector<std::size_t> parts = {};  // into the timeline, ascending
};

// In the order of their first parts, never of addresses: sums over them are the same to the bit
// every time.
std::vector<AlikeParts> bodies(const Timeline& timeline);

}  // namespace paradyse
