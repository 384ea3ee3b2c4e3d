// x [rows, columns] laid out otherwise: one collective of the group.
//
// One copy table serves both directions: forward copies by it and the adjoint adds up by its
// transpose; where x is a sum, forward adds up and the adjoint copies.  Either may be *issued*
// ahead and waited for when the op runs.
#include "paradyse/plan/detail/index.h"
#include "src/run/ops/frame.h"

namespace paradyse::ops {

void issue_redistribute(Frame& frame, const Op& op) {
  const at::Tensor from = frame.value(op.in[0]);
  const at::Tensor to = frame.make(op.out[0]);
  Communicator& group = *frame.rank->group;
  const Transfer& table = op.copies[0].table();
  frame.pending[idx(op.out[0])] =
      op.transposed ? group.exchange_sum(from, to, table, false, frame.call("reduce_scatter"))
                    : group.exchange(from, to, table, frame.call("redistribute"));
}

void redistribute(Frame& frame, const Op& op) {
  if (frame.pending[idx(op.out[0])] == nullptr) {
    issue_redistribute(frame, op);
  }
  frame.await(op.out[0]);
}

void begin_redistribute_adjoint(Frame& frame, const Op& op) {
  const at::Tensor grad = frame.gradient(op.out[0]);
  Communicator& group = *frame.rank->group;
  const Transfer& table = op.copies[0].table();
  if (op.transposed) {
    const at::Tensor to = frame.only_gradient_target(op.in[0]);
    frame.pending[idx(op.out[0])] =
        group.exchange(grad, to, table, frame.call("reduce_scatter adjoint"));
  } else {
    const auto [to, accumulate] = frame.gradient_target(op.in[0]);
    frame.pending[idx(op.out[0])] =
        group.exchange_sum(grad, to, table, accumulate, frame.call("redistribute adjoint"));
  }
}

void end_redistribute_adjoint(Frame& frame, const Op& op) { frame.await(op.out[0]); }

void redistribute_adjoint(Frame& frame, const Op& op) {
  begin_redistribute_adjoint(frame, op);
  end_redistribute_adjoint(frame, op);
}

}  // namespace paradyse::ops
