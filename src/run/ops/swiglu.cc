// a = silu(gate) * up: h [T, 2F] has gate, then up, F columns each; a [T, F].
//
// Adjoint: d gate = (da up) silu'(gate), d up = da silu(gate); each result's place serves as the
// other's scratch.
#include "src/run/ops/frame.h"

namespace paradyse::ops {

void swiglu(Frame& frame, const Op& op) {
  const at::Tensor h_T2F = frame.value(op.in[0]);
  at::Tensor a_TF = frame.make(op.out[0]);
  const std::int64_t F = a_TF.size(1);
  at::silu_out(a_TF, h_T2F.narrow(1, 0, F));
  a_TF.mul_(h_T2F.narrow(1, F, F));
}

void swiglu_adjoint(Frame& frame, const Op& op) {
  const at::Tensor h_T2F = frame.value(op.in[0]);
  const at::Tensor grad_a_TF = frame.gradient(op.out[0]);
  const at::Tensor grad_h_T2F = frame.only_gradient_target(op.in[0]);
  const std::int64_t F = grad_a_TF.size(1);
  const at::Tensor gate = h_T2F.narrow(1, 0, F);
  at::Tensor grad_gate = grad_h_T2F.narrow(1, 0, F);
  at::Tensor grad_up = grad_h_T2F.narrow(1, F, F);
  at::mul_out(grad_up, grad_a_TF, h_T2F.narrow(1, F, F));
  at::silu_backward_out(grad_gate, grad_up, gate);
  at::silu_out(grad_up, gate);
  grad_up.mul_(grad_a_TF);
}

}  // namespace paradyse::ops
