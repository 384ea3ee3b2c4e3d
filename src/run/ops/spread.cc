// o = y's row of a line in every row of it: y [outer, 1, inner], o [outer, L, inner].
//
// Adjoint: a line's sum.  Spreads of one y in tiles have lines of their own.
#include "src/run/ops/lines.h"

namespace paradyse::ops {

void spread(Frame& frame, const Op& op) {
  const Lines lines = lines_of(frame, op, op.out[0], op.in[0]);
  const at::Tensor o = lines.all(frame.make(op.out[0]));
  o.copy_(lines.one(frame.value(op.in[0])).expand_as(o));
}

void spread_adjoint(Frame& frame, const Op& op) {
  const Lines lines = lines_of(frame, op, op.out[0], op.in[0]);
  at::Tensor grad_y = lines.one(
      op.tile.empty() ? frame.only_gradient_target(op.in[0])
                      : frame.gradient_target(op.in[0]).first);
  at::sum_out(grad_y, lines.all(frame.gradient(op.out[0])), 1, /*keepdim=*/true);
}

}  // namespace paradyse::ops
