// (x) -> x placed otherwise: one collective of the group, by the copy table C of the two
// placements.
//
// Forward C, adjoint C^T; a reduce-scatter, which sums, is the transpose of its adjoint's
// all-gather: forward C^T, adjoint C.
#include "paradyse/plan/op_traits.h"

namespace paradyse {
namespace {

// C^T adds up, C overwrites.
bool adds(const Op& op, std::size_t /*operand*/) {
  return op.collective != Collective::reduce_scatter;
}

std::vector<Exchange> exchanges(const OpView& view) {
  const bool sums = view.op.collective == Collective::reduce_scatter;
  return {
      {.table = view.op.transfers.data(),
       .transposed = sums == view.forward(),
       .element_bytes = view.precision.activation}};
}

}  // namespace

extern const OpTraits kRedistribute = {
    .name = "redistribute",
    .meets = OpTraits::Meets::group,
    .only_moves = true,
    .adds = adds,
    .exchanges = exchanges};

}  // namespace paradyse
