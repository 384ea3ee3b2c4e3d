// The costs that a run's configuration names, measured first where it says so.
#pragma once

#include <memory>
#include <optional>

#include <ATen/ATen.h>

#include "paradyse/plan/config.h"
#include "paradyse/plan/model_shape.h"
#include "paradyse/run/backend.h"
#include "paradyse/run/train.h"
#include "src/plan/profile/fit.h"

namespace paradyse {

// Those of costs.file; with costs.file = "measure" and none there, of a profile made now, up to
// documents of `longest` tokens.  Nothing where plans are to go by a closed form.  Every process
// calls it; where something is measured, the one that leads (backend.h) alone has the costs.
std::optional<Costs> measured_costs(
    const RunConfig& config,
    const ModelShape& model,
    std::int64_t longest,
    Backend& backend,
    c10::Device device,
    const TrainHooks& hooks);

}  // namespace paradyse
