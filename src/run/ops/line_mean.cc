// m = the mean of a line's rows: x [outer, L, inner], m [outer, 1, inner]; divided by the rows that
// all ranks have of it.
#include "src/run/ops/lines.h"

namespace paradyse::ops {

void line_mean(Frame& frame, const Op& op) {
  const Lines lines = lines_of(frame, op, op.in[0], op.out[0]);
  at::Tensor m = lines.one(frame.make(op.out[0]));
  if (lines.rows == 0) {
    m.zero_();
    return;
  }
  at::mean_out(m, lines.all(frame.value(op.in[0])), 1, /*keepdim=*/true);
  if (lines.rows != lines.whole) {
    m.mul_(static_cast<double>(lines.rows) / static_cast<double>(lines.whole));
  }
}

void line_mean_adjoint(Frame& frame, const Op& op) {
  const Lines lines = lines_of(frame, op, op.in[0], op.out[0]);
  const at::Tensor grad_m = lines.one(frame.gradient(op.out[0]));
  const auto [target, there] = frame.gradient_target(op.in[0]);
  const at::Tensor grad_x = lines.all(target);
  const double share = 1 / static_cast<double>(lines.whole);
  if (there) {
    grad_x.add_(grad_m, share);
  } else {
    grad_x.copy_(grad_m.expand_as(grad_x)).mul_(share);
  }
}

}  // namespace paradyse::ops
