// y sigmoid(g), element by element: all [T, C].
//
// Adjoint: dy = do sigmoid(g), dg = do y sigmoid(g) (1 - sigmoid(g)); the sigmoid is made in dy's
// place.
#include "src/run/ops/frame.h"

namespace paradyse::ops {

void gate(Frame& frame, const Op& op) {
  at::Tensor out_TC = frame.make(op.out[0]);
  at::sigmoid_out(out_TC, frame.value(op.in[1]));
  out_TC.mul_(frame.value(op.in[0]));
}

void gate_adjoint(Frame& frame, const Op& op) {
  const at::Tensor grad_out_TC = frame.gradient(op.out[0]);
  at::Tensor grad_y_TC = frame.only_gradient_target(op.in[0]);
  at::Tensor grad_g_TC = frame.only_gradient_target(op.in[1]);
  at::sigmoid_out(grad_y_TC, frame.value(op.in[1]));
  at::mul_out(grad_g_TC, grad_out_TC, frame.value(op.in[0]));
  at::sigmoid_backward_out(grad_g_TC, grad_g_TC, grad_y_TC);
  grad_y_TC.mul_(grad_out_TC);
}

}  // namespace paradyse::ops
