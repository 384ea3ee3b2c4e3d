// The strategies that plans may name, each declared with its options in a file of its name below
// <kind>/; table.cc lists them.
#pragma once

#include <vector>

#include "paradyse/plan/strategy.h"

namespace paradyse {

// All rows, of all kinds; add_strategy() appends.
std::vector<Strategy>& strategy_table();

Strategy ulysses_z();  // DataZ is what is left of it on one rank

// The option of every MLP strategy.
Option token_tiles_option();

}  // namespace paradyse
