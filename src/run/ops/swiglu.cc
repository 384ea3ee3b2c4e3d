// a = f(gate) * up: h [T, 2F] has gate, then up, F columns each; a [T, F]; f is SiLU, or of a GeGLU
// GELU by tanh.
//
// Adjoint: d gate = (da up) f'(gate), d up = da f(gate).
#include <vector>

#include "src/run/ops/frame.h"

namespace paradyse::ops {

void swiglu(Frame& frame, const Op& op) {
  const at::Tensor h_T2F = frame.value(op.in[0]);
  at::Tensor a_TF = frame.make(op.out[0]);
  if (frame.program().shape.activation == Activation::geglu) {
    const std::vector<at::Tensor> gate_up = h_T2F.chunk(2, 1);
    at::gelu_out(a_TF, gate_up[0], "tanh");
    a_TF.mul_(gate_up[1]);
    return;
  }
  frame.kernels().swiglu(h_T2F, a_TF);
}

void swiglu_adjoint(Frame& frame, const Op& op) {
  const at::Tensor grad_h_T2F = frame.only_gradient_target(op.in[0]);
  if (frame.program().shape.activation == Activation::geglu) {
    const at::Tensor grad_a_TF = frame.gradient(op.out[0]);
    const std::vector<at::Tensor> gate_up = frame.value(op.in[0]).chunk(2, 1);
    std::vector<at::Tensor> grads = grad_h_T2F.chunk(2, 1);
    at::gelu_out(grads[1], gate_up[0], "tanh");
    grads[1].mul_(grad_a_TF);
    at::mul_out(grads[0], grad_a_TF, gate_up[1]);
    at::gelu_backward_out(grads[0], grads[0], gate_up[0], "tanh");
    return;
  }
  frame.kernels().swiglu_adjoint(frame.value(op.in[0]), frame.gradient(op.out[0]), grad_h_T2F);
}

}  // namespace paradyse::ops
