// (y, g) -> y sigmoid(g), element by element, all [T, C] (Jumper et al. 2021).
#include "src/plan/ops/needs.h"

namespace paradyse {

extern const OpTraits kGate = {.name = "gate", .light = true, .needs = needs_operands};

}  // namespace paradyse
