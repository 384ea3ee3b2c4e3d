// What the ranks of a training run share in a process.
#pragma once

#include <cstdint>

#include "paradyse/plan/config.h"
#include "paradyse/run/train.h"
#include "src/run/execute/trace.h"
#include "src/run/train/measured_costs.h"
#include "src/run/train/run_record.h"
#include "src/run/train/static_plans.h"
#include "src/run/train/step_plans.h"
#include "src/run/train/training_inputs.h"

namespace paradyse {

struct TrainingRun {
  const LoadedConfig& loaded;
  const TrainHooks& hooks;
  const TrainFrom& from;
  const TrainingInputs& inputs;
  const PlanningNumbers& numbers;
  StepPlans& plans;                     // rank 0 alone uses it
  RunRecord& record;                    // and this, but for path()
  StaticPlans* static_plans = nullptr;  // and this; null: the run is not compared, or has none
  Trace& trace;
  int first_rank = 0;  // of this process

  [[nodiscard]] const RunConfig& config() const { return loaded.config; }
  // Another draw each step; seeds differ by their low 32 bits.
  [[nodiscard]] std::uint64_t dropout_seed(std::int64_t step) const {
    return (config().model.seed << 32) + static_cast<std::uint64_t>(step);
  }
};

}  // namespace paradyse
