// () -> x [rows, columns]: of what the batch brings the tensor of x's name, or of its columns that
// the op says, of each rank its piece.
//
// It is there whenever it is wanted, so it is made again rather than saved; it has no gradient.
#include "paradyse/plan/detail/op_traits.h"

namespace paradyse {
namespace {

Work batch_input_work(const OpView& view) {
  if (!view.forward()) {
    return {};
  }
  return {
      .touched_bytes = 2.0 * static_cast<double>(view.bytes(view.op.out[0])),
      .calls = 1,
      .launches = 1};
}

}  // namespace

extern const OpTraits kBatchInput = {
    .name = "batch_input", .given = true, .work = batch_input_work};

}  // namespace paradyse
