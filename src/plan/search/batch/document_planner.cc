#include "src/plan/search/batch/document_planner.h"

#include "src/plan/search/batch/micro_batches.h"

namespace paradyse {

namespace {

// A plan that gathers weights for each micro-batch is not sought where one that leaves them whole
// would take so many times as long if it did, and they take no more than a share of the memory.
constexpr double kFarSlower = 1.1;
constexpr double kSmallShare = 0.25;

}  // namespace

bool DocumentPlanner::far_faster(const Plan& whole) {
  const std::int64_t copies =
      matrix_elements(task().model) * (task().precision.activation + task().precision.statistic);
  if (static_cast<double>(copies) >
      kSmallShare * static_cast<double>(documents_.budget(longest_of(whole.lengths)))) {
    return false;
  }
  Plan each_time = whole;
  each_time.messages = {.overlap = whole.messages.overlap, .reshard_after_forward = false};
  documents_.prediction().predict(each_time);
  return each_time.predicted.seconds.value_or(0) > kFarSlower * whole.predicted.seconds.value_or(0);
}

BatchPlanner::Answer DocumentPlanner::make(const BatchSizes& batch, Caps caps) {
  Answer whole;
  // The published planner gathers for each micro-batch.
  if (documents_.may_leave_weights_whole() && !documents_.layer_planner().splits_all) {
    const WholeWhile now(documents_);
    whole = make(batch.lengths, caps);
  }
  if (whole.plan && far_faster(*whole.plan)) {
    return whole;
  }
  Answer each_time = make(batch.lengths, caps);
  const bool take_whole = whole.plan && (!each_time.plan || whole.plan->predicted.seconds <
                                                                each_time.plan->predicted.seconds);
  return take_whole ? whole : each_time;
}

}  // namespace paradyse
