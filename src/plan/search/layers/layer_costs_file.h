// Reads what `paradyse plan layers --costs` chooses among: the costs of ways to run a layer,
// without a model.
#pragma once

#include <string>
#include <vector>

#include "src/plan/search/layers/layer_planner.h"

namespace paradyse {

// The options of a costs file (docs/internals/planning.md), at least one.  Throws
// std::invalid_argument that names the place and what to do.
std::vector<LayerCost> read_layer_costs(const std::string& path);

}  // namespace paradyse
