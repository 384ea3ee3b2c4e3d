// Programs of a plan by name.
#pragma once

#include <string>

#include "paradyse/plan/plan.h"

namespace paradyse {

// "3 x METP+pass; 1 x ...".
std::string name(const LayerRuns& program);
// The program, which the plan knows from then on, and the name under which it does.
std::string use(Plan& plan, const LayerRuns& program);

}  // namespace paradyse
