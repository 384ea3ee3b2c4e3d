// x [rows, columns] laid out otherwise: one collective of the group.
//
// One copy table serves both directions: forward copies by it and the adjoint adds up by its
// transpose; where x is a sum, forward adds up and the adjoint copies.
#include "src/run/ops/frame.h"

namespace paradyse::ops {

void redistribute(Frame& frame, const Op& op) {
  const at::Tensor from = frame.value(op.in[0]);
  const at::Tensor to = frame.make(op.out[0]);
  Communicator& group = *frame.rank->group;
  const Transfer& table = op.copies[0].table();
  if (op.transposed) {
    group.exchange_sum(from, to, table, false, frame.call("reduce_scatter"))->wait();
  } else {
    group.exchange(from, to, table, frame.call("redistribute"))->wait();
  }
}

void redistribute_adjoint(Frame& frame, const Op& op) {
  const at::Tensor grad = frame.gradient(op.out[0]);
  Communicator& group = *frame.rank->group;
  const Transfer& table = op.copies[0].table();
  if (op.transposed) {
    const at::Tensor to = frame.only_gradient_target(op.in[0]);
    group.exchange(grad, to, table, frame.call("reduce_scatter adjoint"))->wait();
  } else {
    const auto [to, accumulate] = frame.gradient_target(op.in[0]);
    group.exchange_sum(grad, to, table, accumulate, frame.call("redistribute adjoint"))->wait();
  }
}

}  // namespace paradyse::ops
