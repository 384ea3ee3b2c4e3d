// (y, c) -> y g, g = H columns of c's row + a vector (adaLN-zero, Peebles & Xie 2023); all else as
// adaptive_norm has it.
#include "src/plan/ops/adaptive.h"
#include "src/plan/ops/needs.h"

namespace paradyse {
namespace {

std::int64_t gate_bytes(const OpView& view) {
  return condition_bytes(view, view.op.condition.size());
}

}  // namespace

extern const OpTraits kAdaptiveGate = {
    .name = "adaptive_gate",
    .light = true,
    .adds = [](const Op&, std::size_t operand) { return operand == 1; },
    .needs = needs_operands,
    .workspace = gate_bytes};

}  // namespace paradyse
