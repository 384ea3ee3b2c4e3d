// How users name what an MLP runs (parallel.mlp, --mlp): the weight modes by their usual names,
// other strategies by their own, and a strategy of attention for its weight mode.  Plan files,
// costs files and names of candidates have the names of the table: hold, gather, pass.
#pragma once

#include <string>
#include <vector>

#include "paradyse/plan/strategy.h"
#include "src/plan/base/renamed.h"

namespace paradyse {

// Usual names and those of the table, which are accepted, too.
const std::vector<Renamed>& weight_modes();

std::vector<std::string> mlp_names();

// Throws std::invalid_argument, with the names there are, for another.
const Strategy& mlp_strategy(const std::string& name);

}  // namespace paradyse
