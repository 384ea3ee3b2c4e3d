// The plans of a training run: what its planner goes by is told, and that it can plan the run at
// all is known before anything is written.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "paradyse/plan/config.h"
#include "paradyse/run/train.h"
#include "src/run/train/measured_costs.h"
#include "src/run/train/step_plans.h"
#include "src/run/train/training_inputs.h"

namespace paradyse {

// Why another start of the same run, on the same machine, may come to other bits; "": it does not.
std::string why_not_repeatable(
    const RunConfig& config, const PlanningNumbers& numbers, const TrainFrom& from);

// What the run learned until its checkpoint, as far as it goes by the same costs and memory now.
BatchPlanner::Learned still_true(
    const CheckpointState& then, const LoadedConfig& now, const PlanningNumbers& numbers);

// In the process that leads (`leads`) the planner knows what the run learned before it was resumed,
// and hooks are called.  Throws std::runtime_error saying why the longest document of the run has
// no plan.  What is given has to outlive the plans.
std::unique_ptr<StepPlans> training_plans(
    const LoadedConfig& loaded,
    const TrainHooks& hooks,
    const TrainingInputs& inputs,
    const PlanningNumbers& numbers,
    const TrainFrom& from,
    bool leads);

}  // namespace paradyse
