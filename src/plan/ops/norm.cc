// (x) -> xn, both [T, H], every row by itself.
//
//   RMSNorm, one vector:    xn = w x / sqrt(mean(x^2) + eps)
//   LayerNorm, two vectors: xn = w (x - mean(x)) / sqrt(var(x) + eps) + b
//
// The adjoint reads x and makes the statistics of its rows again.
#include "src/plan/ops/needs.h"

namespace paradyse {

extern const OpTraits kNorm = {
    .name = "norm",
    .light = true,
    .adds = [](const Op&, std::size_t) { return true; },
    .needs = needs_operands};

}  // namespace paradyse
