// (qkv) -> qkv with every query and key head normed: a head's D columns of a row are a row of an
// RMSNorm (norm.cc), by one vector for queries and one for keys; values are copied.
#include <algorithm>

#include "src/plan/ops/needs.h"

namespace paradyse {
namespace {

// Gradients of vectors that are not trained, one after the other.
std::int64_t qk_norm_workspace(const OpView& view) {
  const auto& untrained = view.op.untrained;
  return view.forward() || untrained.empty()
             ? 0
             : *std::ranges::max_element(untrained) * view.precision.statistic;
}

}  // namespace

extern const OpTraits kQkNorm = {
    .name = "qk_norm", .light = true, .needs = needs_operands, .workspace = qk_norm_workspace};

}  // namespace paradyse
