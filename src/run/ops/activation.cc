// a = f(h), element by element: h and a [T, F], f the model's GELU (exact or by tanh), ReLU or
// SiLU. Adjoint: dh = da f'(h), by h, added to what is there.
#include <stdexcept>

#include "src/run/ops/frame.h"

namespace paradyse::ops {

void activation(Frame& frame, const Op& op) {
  const at::Tensor h_TF = frame.value(op.in[0]);
  at::Tensor a_TF = frame.make(op.out[0]);
  switch (frame.program().shape.activation) {
    case Activation::gelu:
      at::gelu_out(a_TF, h_TF, "none");
      return;
    case Activation::gelu_tanh:
      at::gelu_out(a_TF, h_TF, "tanh");
      return;
    case Activation::relu:
      at::clamp_min_out(a_TF, h_TF, 0);
      return;
    case Activation::silu:
      at::silu_out(a_TF, h_TF);
      return;
    case Activation::swiglu:
    case Activation::geglu:
    case Activation::geglu_exact:
      break;  // has an op of its own
  }
  throw std::logic_error("activation: not a function of one operand");
}

namespace {

// to = grad_a f'(h), perhaps in grad_a's memory.
void backward(Activation function, const at::Tensor& grad_a, const at::Tensor& h, at::Tensor& to) {
  switch (function) {
    case Activation::gelu:
      at::gelu_backward_out(to, grad_a, h, "none");
      return;
    case Activation::gelu_tanh:
      at::gelu_backward_out(to, grad_a, h, "tanh");
      return;
    case Activation::relu:
      at::threshold_backward_out(to, grad_a, h, 0);
      return;
    case Activation::silu:
      at::silu_backward_out(to, grad_a, h);
      return;
    case Activation::swiglu:
    case Activation::geglu:
    case Activation::geglu_exact:
      break;
  }
  throw std::logic_error("activation: not a function of one operand");
}

}  // namespace

void activation_adjoint(Frame& frame, const Op& op) {
  const Activation function = frame.program().shape.activation;
  const at::Tensor h_TF = frame.value(op.in[0]);
  at::Tensor grad_a_TF = frame.gradient(op.out[0]);
  auto [grad_h_TF, accumulate] = frame.gradient_target(op.in[0]);
  if (!accumulate) {
    backward(function, grad_a_TF, h_TF, grad_h_TF);
    return;
  }
  backward(function, grad_a_TF, h_TF, grad_a_TF);  // nobody reads it any more
  grad_h_TF.add_(grad_a_TF);
}

}  // namespace paradyse::ops
