// Finds plans.  All deterministic, all on the plan side.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "paradyse/cost.h"
#include "paradyse/plan.h"

namespace paradyse {

// A plan of one micro-batch in which all layers of all documents run as `layers` says on all ranks;
// with a one-rank strategy, documents are dealt to the ranks, longest first to the least loaded.
Plan uniform_plan(
    const ModelShape& model, std::vector<std::int64_t> lengths, int ranks,
    const std::vector<LayerChoice>& layers);

}  // namespace paradyse
