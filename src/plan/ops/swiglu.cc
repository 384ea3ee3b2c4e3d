// (h) -> f(gate) * up (Shazeer 2020), f SiLU or, of a GeGLU, GELU: h = gate | up [T, 2F], result
// [T, F].
#include "src/plan/ops/needs.h"

namespace paradyse {

extern const OpTraits kSwiglu = {.name = "swiglu", .light = true, .needs = needs_operands};

}  // namespace paradyse
