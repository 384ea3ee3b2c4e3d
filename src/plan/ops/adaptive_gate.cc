// (y, c) -> y g, g = H columns of c's row + a vector (adaLN-zero, Peebles & Xie 2023); all else as
// adaptive_norm has it.
#include "src/plan/ops/needs.h"

namespace paradyse {

namespace {

// The gate; going back its gradient, too.
std::int64_t workspace(const OpView& view) {
  const Precision precision = view.precision;
  return view.op.condition.size() *
         (precision.activation + (view.forward() ? 0 : precision.statistic));
}

}  // namespace

extern const OpTraits kAdaptiveGate = {
    .name = "adaptive_gate",
    .light = true,
    .adds = [](const Op&, std::size_t operand) { return operand == 1; },
    .needs = needs_operands,
    .workspace = workspace};

}  // namespace paradyse
