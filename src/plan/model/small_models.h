// Language models so small that `paradyse check` compares every strategy of each with the
// reference: of each kind of mathematics one.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "paradyse/plan/model.h"

namespace paradyse {

// Each with a name for people.
std::vector<std::pair<std::string, Model>> small_models();

}  // namespace paradyse
