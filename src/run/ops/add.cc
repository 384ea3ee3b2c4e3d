// out = x + y, all [T, H]: x is added to y, whose memory out takes over.
//
// Adjoint: both gradients are that of out, one tensor; whoever adds to x's later finds that y's has
// been read, or (`apart`) x's is a copy.
#include "paradyse/plan/detail/index.h"
#include "src/run/ops/frame.h"

namespace paradyse::ops {

void add(Frame& frame, const Op& op) {
  at::Tensor& y = frame.value(op.in[1]);
  y.add_(frame.value(op.in[0]));
  frame.values[idx(op.out[0])] = y;
  frame.values[idx(op.in[1])] = at::Tensor();
}

void add_adjoint(Frame& frame, const Op& op) {
  const at::Tensor grad = frame.gradient(op.out[0]);
  frame.gradients[idx(op.in[1])] = grad;
  if (op.apart) {
    frame.only_gradient_target(op.in[0]).copy_(grad);
  } else {
    frame.gradients[idx(op.in[0])] = grad;
  }
}

}  // namespace paradyse::ops
