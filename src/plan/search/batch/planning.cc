#include "src/plan/search/batch/planning.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace paradyse {
namespace {

constexpr std::int64_t kUnlimited = std::numeric_limits<std::int64_t>::max() / 4;

}  // namespace

Planning::Planning(PlanningTask task)
    : task_(std::move(task)),
      static_bytes_(most_static_bytes(task_.model, task_.ranks, task_.precision, task_.keeps())),
      costs_(task_, correction_),
      prediction_(task_, correction_, costs_) {}

void Planning::leave_weights_whole(bool whole) {
  costs_.gather_over(whole ? 1 : task_.ranks);
  static_bytes_ =
      most_static_bytes(task_.model, task_.ranks, task_.precision, task_.keeps(), messages());
}

Messages Planning::messages() const {
  const bool reshard = !weights_whole();
  return {.reshard_after_forward = reshard, .reshard_after_backward = reshard};
}

bool Planning::may_leave_weights_whole() const {
  return task_.training && task_.ranks > 1 && task_.memory_per_rank > 0;
}

std::int64_t Planning::budget(std::int64_t tokens, Caps caps) const {
  const std::int64_t bytes =
      task_.memory_per_rank == 0
          ? kUnlimited
          : static_cast<std::int64_t>(
                static_cast<double>(task_.memory_per_rank) / (1 + task_.memory_overhead));
  const auto cap = held_to_.find(log2_bucket(tokens));
  return cap == held_to_.end() || caps == Caps::passed ? bytes : std::min(bytes, cap->second);
}

bool Planning::limited(std::int64_t tokens, Caps caps) const {
  return budget(tokens, caps) < kUnlimited;
}

void Planning::hold_to(HeldTo bytes) {
  held_to_ = std::move(bytes);
  forget();
}

bool Planning::forget_what_is_out_of_date() {
  if (version_ == correction_.version()) {
    return false;
  }
  version_ = correction_.version();
  forget();
  return true;
}

}  // namespace paradyse
