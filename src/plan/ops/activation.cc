// (h) -> f(h), element by element, both [T, F]: the model's GELU (exact or by tanh), ReLU or SiLU.
//
// Where h's gradient is there already, what is added is made in the place of the result's.
#include "src/plan/ops/needs.h"

namespace paradyse {

extern const OpTraits kActivation = {
    .name = "activation",
    .light = true,
    .adds = [](const Op&, std::size_t) { return true; },
    .needs = needs_operands};

}  // namespace paradyse
