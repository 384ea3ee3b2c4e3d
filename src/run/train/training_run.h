// What the ranks of a training run share in a process.
#pragma once

#include "paradyse/plan/config.h"
#include "paradyse/run/train.h"
#include "src/run/execute/trace.h"
#include "src/run/train/measured_costs.h"
#include "src/run/train/run_record.h"
#include "src/run/train/step_plans.h"
#include "src/run/train/training_inputs.h"

namespace paradyse {

struct TrainingRun {
  const LoadedConfig& loaded;
  const TrainHooks& hooks;
  const TrainingInputs& inputs;
  const PlanningNumbers& numbers;
  StepPlans& plans;   // rank 0 alone uses it
  RunRecord& record;  // and this, but for path()
  Trace& trace;
  int first_rank = 0;  // of this process

  [[nodiscard]] const RunConfig& config() const { return loaded.config; }
};

}  // namespace paradyse
