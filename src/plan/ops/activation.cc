// (h) -> f(h), element by element, both [T, F]: the model's GELU (exact or by tanh), ReLU or SiLU.
#include "src/plan/ops/needs.h"

namespace paradyse {

extern const OpTraits kActivation = {.name = "activation", .light = true, .needs = needs_operands};

}  // namespace paradyse
