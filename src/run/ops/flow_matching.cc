// (y, v) -> d [rows, columns]: the loss is the sum of (y - v)^2, which is counted for the sample
// that a row is of; d, its gradient to y.  Both are 0 where v is NaN.  The adjoint hands d on.
#include "paradyse/plan/detail/index.h"
#include "paradyse/run/accountant.h"
#include "src/run/ops/frame.h"

namespace paradyse::ops {

void flow_matching(Frame& frame, const Op& op) {
  const at::Tensor y = frame.value(op.in[0]);
  const at::Tensor d = op.out.empty() ? at::Tensor() : frame.make(op.out[0]);
  {
    const HostScope library_memory;
    frame.result->losses = at::empty({y.size(0)}, y.options().dtype(at::kDouble));
  }
  const PartShape& shape = frame.program().shape;
  frame.result->numbers_a_row =
      shape.scored == 0 ? y.size(1) : y.size(1) / shape.predicted * shape.scored;
  frame.kernels().squared_error(
      y, frame.value(op.in[1]), 2 * frame.loss_scale, d, frame.result->losses);
  if (!frame.batch->predictions.empty()) {
    const Value& v = frame.program().values[idx(op.in[1])];
    keep_prediction(*frame.batch, v.name, v.layout, frame.rank->seat.group_rank, y);
  }
}

void flow_matching_adjoint(Frame& frame, const Op& op) {
  frame.gradients[idx(op.in[0])] = frame.value(op.out[0]);
}

}  // namespace paradyse::ops
