// How much memory the references take: plain autograd that keeps all it makes, which is what
// memory-efficient training is compared with.
#pragma once

#include <cstdint>
#include <functional>

#include "src/run/reference/reference.h"

namespace paradyse::reference {

// Peak bytes of tensors on the meta device, which have sizes and no data, made by `run` on this
// thread: a model runs on them as on others, at any size and at once.  What kernels take while they
// work is not among them.
std::int64_t counted_peak(const std::function<void()>& run);

// The answer of `run` on one thread, with what it took.
struct Measured {
  Answer answer;
  std::int64_t peak_bytes = 0;
  double seconds = 0;
};
Measured measured(const std::function<Answer()>& run);

}  // namespace paradyse::reference
