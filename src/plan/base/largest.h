// The largest number of which something holds.
#pragma once

#include <algorithm>
#include <cstdint>

namespace paradyse {

// Of 1 to `most`, where what holds of a number holds of all smaller ones; 0: of none.  Asks for
// about twice the answer at most, whatever `most` is, and so often as the answer has bits, twice.
template <typename Holds>
std::int64_t largest_that(const Holds& holds, std::int64_t most) {
  std::int64_t low = 0;
  std::int64_t high = 1;
  while (high <= most && holds(high)) {
    low = high;
    high *= 2;
  }
  high = std::min(high, most + 1);
  while (low + 1 < high) {
    const std::int64_t middle = low + (high - low) / 2;
    (holds(middle) ? low : high) = middle;
  }
  return low;
}

}  // namespace paradyse
