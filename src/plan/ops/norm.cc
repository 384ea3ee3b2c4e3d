// (x) -> xn, both [T, H], every row by itself.
//
//   RMSNorm, one vector:    xn = w x / sqrt(mean(x^2) + eps)
//   LayerNorm, two vectors: xn = w (x - mean(x)) / sqrt(var(x) + eps) + b
//   LayerNorm of a part that has no RMSNorm (PartShape::layer_norm), one: the same without b
//
// The adjoint reads x and makes the statistics of its rows again.
#include <numeric>

#include "src/plan/ops/needs.h"

namespace paradyse {
namespace {

// Gradients of vectors that are not trained, all at once.
std::int64_t norm_workspace(const OpView& view) {
  const auto& untrained = view.op.untrained;
  return view.forward() ? 0
                        : std::accumulate(untrained.begin(), untrained.end(), std::int64_t{0}) *
                              view.precision.statistic;
}

}  // namespace

extern const OpTraits kNorm = {
    .name = "norm",
    .light = true,
    .adds = [](const Op&, std::size_t) { return true; },
    .needs = needs_operands,
    .workspace = norm_workspace};

}  // namespace paradyse
