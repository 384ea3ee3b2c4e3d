// How many ranks hold one copy of the weights of a training run: parallel.weight_domain.
#pragma once

#include "src/run/train/run_inputs.h"
#include "src/run/train/training_inputs.h"

namespace paradyse {

// Of given plans, or of a run that goes on, theirs; `auto` is what the first steps are predicted to
// take less time with.  Every process calls it, and gets the same.  Throws std::invalid_argument
// naming the key where a node has too few ranks, or where what is given is sharded otherwise.
int weight_domain(
    const RunConfig& config,
    const TrainingInputs& inputs,
    const PlanningNumbers& numbers,
    const TrainFrom& from,
    Backend& backend,
    const TrainHooks& hooks);

}  // namespace paradyse
