// One step of a training run on one rank: the batch, by leaner plans where memory does not suffice,
// then the optimizer; and what there is to tell.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

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

// A step whose loss or gradients are no number, or whose loss is a spike (train.loss_spike).
class BadStep : public std::runtime_error {
 public:
  BadStep(const std::string& what, std::vector<std::int64_t> to_blame)
      : std::runtime_error(what), documents(std::move(to_blame)) {}
  std::vector<std::int64_t> documents;  // of the step, those to blame; none: not known
  std::optional<StepReport> report;     // rank 0's, of a step that changed nothing
};

// Of a step that changed nothing.
StepReport skipped_step(const TrainingRun& run, const TrainingStep& step);

// Every rank calls it with the same step and plan; rank 0 has the report.  Throws BadStep, on all
// ranks and before the weights are touched; OutOfMemory when no plan needs less.
std::optional<StepReport> train_step(
    const TrainingRun& run,
    TrainingStep step,
    RankSession& session,
    AdamW& optimizer,
    LossScale& scale);

}  // namespace paradyse
