// The batch of a step by the best static plan, beside the run's own: measured, and thrown away.
#pragma once

#include <cstdint>
#include <optional>

#include "paradyse/plan/detail/compared_steps.h"
#include "paradyse/run/session.h"
#include "src/run/train/training_run.h"

namespace paradyse {

// When a step's batch is also played by the static plan.  In turn before and after the run's own,
// so that a machine that gets slower, or faster, is neither's.
enum class StaticTurn { none, before, after };
// The first step after a start warms up and is not compared.
StaticTurn static_turn(std::int64_t every, std::int64_t step, std::int64_t first_step);

// Every rank calls this, between steps.  Weights and optimizer stay as they are, gradients and the
// peak of memory begin anew.  On rank 0 what there is to tell, without what the optimizer takes; a
// lack of memory is a part of that.  Nothing: the run is to stop, no strategy is chosen, or the
// loss is no number, as the run's own plan will say.
std::optional<ComparedStep> play_static(
    const TrainingRun& run, std::int64_t step, double loss_scale, RankSession& session);

}  // namespace paradyse
