// (x, c) -> xn: LayerNorm without weights, scaled and shifted by what conditions a sample (adaLN,
// Peebles & Xie 2023; with a table of the part's own, Chen et al. 2024).
//
//   xn = (x - mean(x)) / sqrt(var(x) + eps) (1 + s) + b,   b | s = 2 H columns of c's row + vectors
//
// or, where they are one, b = s = H columns, each with its own vector (the T2I last layer of Chen
// et al. 2024).  x and xn [T, H]; the row of c is the one at the same indices of the row dims that
// c has.  The adjoint reads x and c and makes the statistics of x's rows again.
#include "src/plan/ops/adaptive.h"
#include "src/plan/ops/needs.h"

namespace paradyse {
namespace {

std::int64_t norm_bytes(const OpView& view) {
  return condition_bytes(view, 2 * view.program.shape.hidden);  // shift and scale
}

}  // namespace

extern const OpTraits kAdaptiveNorm = {
    .name = "adaptive_norm",
    .light = true,
    .adds = [](const Op&, std::size_t) { return true; },
    .needs = needs_operands,
    .workspace = norm_bytes};

}  // namespace paradyse
