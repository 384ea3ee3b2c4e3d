// a = silu(gate) * up: h [T, 2F] has gate, then up, F columns each; a [T, F].
//
// Adjoint: d gate = (da up) silu'(gate), d up = da silu(gate).
#include "src/run/ops/frame.h"

namespace paradyse::ops {

void swiglu(Frame& frame, const Op& op) {
  const at::Tensor h_T2F = frame.value(op.in[0]);
  frame.kernels().swiglu(h_T2F, frame.make(op.out[0]));
}

void swiglu_adjoint(Frame& frame, const Op& op) {
  const at::Tensor grad_h_T2F = frame.only_gradient_target(op.in[0]);
  frame.kernels().swiglu_adjoint(frame.value(op.in[0]), frame.gradient(op.out[0]), grad_h_T2F);
}

}  // namespace paradyse::ops
