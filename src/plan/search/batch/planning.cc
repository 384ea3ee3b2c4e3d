#include "src/plan/search/batch/planning.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "src/plan/search/batch/micro_batches.h"
#include "src/plan/search/layers/part_cost.h"

namespace paradyse {
namespace {

constexpr std::int64_t kUnlimited = std::numeric_limits<std::int64_t>::max() / 4;

// A plan that gathers weights for each micro-batch is not sought where one that leaves them whole
// would take so many times as long if it did, and they take no more than a share of the memory.
constexpr double kFarSlower = 1.05;
constexpr double kSmallShare = 0.25;

}  // namespace

Planning::Planning(PlanningTask task)
    : task_(std::move(task)),
      task_by_work_(task_),
      costs_(task_, correction_),
      prediction_(task_, correction_, speeds_, costs_) {
  if (!seconds_of(task_, task_.domain())->by_work()) {
    // as it stands: what steps taught was taught of the other model
    static const Correction none;
    task_by_work_.seconds = seconds_of(task_, 0);
    prediction_by_work_.emplace(task_by_work_, none, speeds_, costs_);
  }
  leave_weights_whole(always_whole());
}

void Planning::leave_weights_whole(bool whole) {
  whole_ = whole;
  costs_.gather_over(whole ? 1 : task_.domain());
  static_bytes_ = std::ranges::max(prediction_.static_bytes(whole));
}

// While it lives, plans leave weights whole.
class Planning::WholeWhile {
 public:
  explicit WholeWhile(Planning& planning) : planning_(planning) {
    planning_.leave_weights_whole(true);
  }
  ~WholeWhile() { planning_.leave_weights_whole(false); }
  WholeWhile(const WholeWhile&) = delete;
  WholeWhile& operator=(const WholeWhile&) = delete;

 private:
  Planning& planning_;
};

bool Planning::far_faster(const Plan& whole) {
  const std::int64_t copies =
      prediction_.static_bytes(true).front() - prediction_.static_bytes(false).front();
  if (static_cast<double>(copies) >
      kSmallShare * static_cast<double>(budget(longest_of(whole.lengths)))) {
    return false;
  }
  return prediction_.seconds_each_time(whole) > kFarSlower * whole.predicted.seconds.value_or(0);
}

BatchPlanner::Answer Planning::faster_of_both(const std::function<BatchPlanner::Answer()>& make) {
  if (always_whole() || !may_leave_weights_whole()) {
    return make();
  }
  worth_below_ = std::numeric_limits<double>::infinity();
  BatchPlanner::Answer whole;
  {
    const WholeWhile now(*this);
    whole = make();
  }
  if (whole.plan && far_faster(*whole.plan)) {
    return whole;
  }
  if (whole.plan && whole.plan->predicted.seconds && !prediction_by_work_) {
    worth_below_ = *whole.plan->predicted.seconds;
  }
  BatchPlanner::Answer each_time = make();
  worth_below_ = std::numeric_limits<double>::infinity();
  const bool take_whole = whole.plan && (!each_time.plan || compared_seconds(*whole.plan) <
                                                                compared_seconds(*each_time.plan));
  return take_whole ? whole : each_time;
}

double Planning::compared_seconds(const Plan& plan) {
  if (!prediction_by_work_) {
    return plan.predicted.seconds.value_or(0);
  }
  Plan again = plan;
  prediction_by_work_->predict(again);
  return again.predicted.seconds.value_or(0);
}

Messages Planning::messages() const {
  const bool reshard = !weights_whole();
  return {.reshard_after_forward = reshard, .reshard_after_backward = reshard};
}

bool Planning::may_leave_weights_whole() const {
  return task_.training && task_.ranks > 1 && task_.memory_per_rank > 0 &&
         task_.gather_weights.empty();
}

std::int64_t Planning::budget(std::int64_t tokens, Caps caps) const {
  const double counted =  // bytes; an overhead near -1 makes it any number
      static_cast<double>(task_.memory_per_rank) / (1 + task_.memory_overhead);
  const std::int64_t bytes =
      task_.memory_per_rank == 0 || counted >= static_cast<double>(kUnlimited)
          ? kUnlimited
          : static_cast<std::int64_t>(counted);
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
  const std::int64_t now = correction_.version() + speeds_.version();
  if (version_ == now) {
    return false;
  }
  version_ = now;
  forget();
  return true;
}

}  // namespace paradyse
