// () -> x: of what the batch brings the tensor of x's name, or of its columns that the op says, of
// each rank its piece.  No gradient.
#include "paradyse/plan/detail/index.h"
#include "src/run/ops/frame.h"

namespace paradyse::ops {

void batch_input(Frame& frame, const Op& op) {
  const Value& x = frame.program().values[idx(op.out[0])];
  copy_input(
      *frame.batch,
      x.name,
      x.layout,
      frame.rank->seat.group_rank,
      frame.make(op.out[0]),
      op.condition);
}

void batch_input_adjoint(Frame& /*frame*/, const Op& /*op*/) {}

}  // namespace paradyse::ops
