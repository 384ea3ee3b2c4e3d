// y m / (1 - p) in y's memory, y [T, H]; m is 0 with probability p and else 1, for each element a
// function of the step's seed, the site (which dropout of the model), token and column.
//
// Adjoint: dy = (gradient of the result) m / (1 - p), with m drawn again.
#include "src/run/kernels/cpu/kernels.h"
#include "src/run/ops/frame.h"

namespace paradyse::ops {
namespace {

kernels::Dropout dropout_of(const Frame& frame, const Op& op) {
  // Embedding: 0; then each layer's attention and MLP.
  const auto layer = static_cast<std::uint32_t>(frame.part->layer + 1);
  return {
      .probability = op.probability,
      .seed = frame.batch->dropout_seed,
      .site = 2 * layer + (frame.program().part == "mlp" ? 1U : 0U)};
}

}  // namespace

void dropout(Frame& frame, const Op& op) {
  at::Tensor& y_TH = frame.value(op.in[0]);
  kernels::dropout(dropout_of(frame, op), frame.batch->tokens_of, y_TH, y_TH);
  frame.values[static_cast<std::size_t>(op.out[0])] = y_TH;
  frame.values[static_cast<std::size_t>(op.in[0])] = at::Tensor();
}

void dropout_adjoint(Frame& frame, const Op& op) {
  kernels::dropout(
      dropout_of(frame, op),
      frame.batch->tokens_of,
      frame.gradient(op.out[0]),
      frame.only_gradient_target(op.in[0]));
}

}  // namespace paradyse::ops
