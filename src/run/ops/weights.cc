// hold_weights and gather_weights: the two ways in which a part's stack reaches its linears.
//
// Held: w is the parameter itself, this rank's elements.  Gathered: w has the elements that the op
// wants, from all ranks of the weight domain; *issued* ahead, waited for when the op runs.
// Adjoint of a gather: dw is summed over the domain into the owners' gradients; a rank without a
// reader of w joins with zeros.  It may end later than it began: dw stays until then.
#include "paradyse/plan/detail/index.h"
#include "src/run/ops/frame.h"

namespace paradyse::ops {

void hold_weights(Frame& frame, const Op& op) {
  frame.values[idx(op.out[0])] = frame.parameters->stack;
}

// Linears add straight into the parameter's gradient.
void hold_weights_adjoint(Frame&, const Op&) {}

void issue_gather(Frame& frame, const Op& op) {
  const at::Tensor& w = frame.make(op.out[0]);
  frame.pending[idx(op.out[0])] = frame.rank->domain->exchange(
      frame.parameters->stack, w, op.copies[0].table(), frame.call("gather_weights", true));
}

void gather_weights(Frame& frame, const Op& op) {
  if (frame.pending[idx(op.out[0])] == nullptr) {
    issue_gather(frame, op);
  }
  frame.await(op.out[0]);
}

void begin_gather_adjoint(Frame& frame, const Op& op) {
  at::Tensor& grad_w = frame.gradients[idx(op.out[0])];
  if (!grad_w.defined()) {  // no linear of this rank read it: it still joins with zeros
    const Extent extent = local_extent(frame.program(), op.out[0], frame.rank->seat);
    const bool wide = frame.program().values[idx(op.out[0])].wide_gradient;
    grad_w =
        frame.empty(extent.rows, extent.cols, wide ? frame.statistic : frame.activation).zero_();
  }
  frame.pending[idx(op.out[0])] = frame.rank->domain->exchange_sum(
      grad_w,
      frame.parameters->stack_grad,
      op.copies[0].table(),
      true,
      frame.call("gather_weights"));
}

void end_gather_adjoint(Frame& frame, const Op& op) { frame.await(op.out[0]); }

void gather_weights_adjoint(Frame& frame, const Op& op) {
  begin_gather_adjoint(frame, op);
  end_gather_adjoint(frame, op);
}

}  // namespace paradyse::ops
