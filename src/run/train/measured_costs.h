// What a run's plans are made from: the costs that its configuration names, measured first where it
// says so, and a few numbers of the machine.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include <ATen/ATen.h>

#include "paradyse/plan/config.h"
#include "paradyse/run/backend.h"
#include "paradyse/run/train.h"
#include "src/plan/profile/fit.h"
#include "src/plan/profile/run_costs.h"
#include "src/run/measure/profiler.h"
#include "src/run/train/run_inputs.h"
#include "src/run/train/training_inputs.h"

namespace paradyse {

// What a profile of the run is of, up to documents of `longest` tokens, or to these samples.
ProfileRequest profile_request(
    const RunConfig& config,
    const ModelFolder& model,
    std::int64_t longest,
    const BatchSizes& samples,
    Backend& backend);

// Costs that a run has gone by until now, on `ranks` ranks: they serve on another number of ranks
// as far as their model goes by counted work.  `how`: becomes a sentence of it.  None: there are
// none, or they do not serve.
std::optional<FoundCosts> costs_of_other_ranks(
    const RunConfig& config,
    const ProfileHeader& header,
    int ranks,
    const FormerCosts& former,
    std::string& how);

// Those of costs.file; with costs.file = "measure" and none there, of such a profile made now.
// Nothing where plans are to go by a closed form.  Every process calls it; where something is
// measured, the one that leads (backend.h) alone has the costs.
// `ranks_before`: of a run that goes on with another number of ranks, else 0; costs.file may then
// name costs of as many, which are left out here.
std::optional<FoundCosts> measured_costs(
    const RunConfig& config,
    ProfileRequest request,
    const TrainHooks& hooks,
    int ranks_before = 0,
    const FormerCosts& former = {});

// Those of a training run.  One that goes on has the machine's from its checkpoint: measured anew,
// plans might be others, and with them the last bits of sums.  Its costs are looked for where it
// had them, too; hooks.note is told where they were found, or that they were not.
PlanningNumbers planning_numbers(
    const RunConfig& config,
    const TrainingInputs& inputs,
    Backend& backend,
    const TrainHooks& hooks);

}  // namespace paradyse
