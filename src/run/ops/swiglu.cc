// a = f(gate) * up: h [T, 2F] has gate, then up, F columns each; a [T, F]; f is SiLU, or of a GeGLU
// GELU, by tanh or exact.
//
// Adjoint: d gate = (da up) f'(gate), d up = da f(gate).
#include <vector>

#include "src/run/ops/frame.h"

namespace paradyse::ops {
namespace {

// How a GeGLU's GELU is made, as ATen says it; null: it is no GeGLU.
const char* gelu_of(const Frame& frame) {
  const Activation function = frame.program().shape.activation;
  return function == Activation::geglu         ? "tanh"
         : function == Activation::geglu_exact ? "none"
                                               : nullptr;
}

}  // namespace

void swiglu(Frame& frame, const Op& op) {
  const at::Tensor h_T2F = frame.value(op.in[0]);
  at::Tensor a_TF = frame.make(op.out[0]);
  if (const char* const gelu = gelu_of(frame)) {
    const std::vector<at::Tensor> gate_up = h_T2F.chunk(2, 1);
    at::gelu_out(a_TF, gate_up[0], gelu);
    a_TF.mul_(gate_up[1]);
    return;
  }
  frame.kernels().swiglu(h_T2F, a_TF);
}

void swiglu_adjoint(Frame& frame, const Op& op) {
  const at::Tensor grad_h_T2F = frame.only_gradient_target(op.in[0]);
  if (const char* const gelu = gelu_of(frame)) {
    const at::Tensor grad_a_TF = frame.gradient(op.out[0]);
    const std::vector<at::Tensor> gate_up = frame.value(op.in[0]).chunk(2, 1);
    std::vector<at::Tensor> grads = grad_h_T2F.chunk(2, 1);
    at::gelu_out(grads[1], gate_up[0], gelu);
    grads[1].mul_(grad_a_TF);
    at::mul_out(grads[0], grad_a_TF, gate_up[1]);
    at::gelu_backward_out(grads[0], grads[0], gate_up[0], gelu);
    return;
  }
  frame.kernels().swiglu_adjoint(frame.value(op.in[0]), frame.gradient(op.out[0]), grad_h_T2F);
}

}  // namespace paradyse::ops
