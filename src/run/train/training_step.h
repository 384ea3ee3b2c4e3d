// One step of a training run on one rank: the batch, by leaner plans where memory does not suffice,
// then the optimizer; and what there is to tell.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>

#include "paradyse/run/session.h"
#include "src/run/train/training_run.h"
#include "src/run/weights/optimizer.h"

namespace paradyse {

// A step under way.
struct TrainingStep {
  std::int64_t step = 0;    // from 0
  StepPlans::Step planned;  // late: on rank 0 alone
  std::chrono::steady_clock::time_point begin;
  double switching_seconds = 0;  // that it waited for its plan
};

// Every rank calls it with the same step and plan; rank 0 has the report.  Throws NotFinite, on all
// ranks and before the weights are touched, naming the step and what may help; OutOfMemory when no
// plan needs less.
std::optional<StepReport> train_step(
    const TrainingRun& run,
    TrainingStep step,
    RankSession& session,
    AdamW& optimizer,
    LossScale& scale);

}  // namespace paradyse
