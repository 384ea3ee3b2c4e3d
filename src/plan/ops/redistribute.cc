// (x) -> x laid out otherwise: one collective of the group.
//
// From copies forward C and adjoint C^T; from a sum to a partition (`transposed`) forward C^T and
// adjoint C, of the way back.
#include "paradyse/plan/detail/op_traits.h"

namespace paradyse {
namespace {

// C^T adds up, C overwrites.
bool redistribute_adds(const Op& op, std::size_t /*operand*/) { return !op.transposed; }

std::vector<Exchange> redistribute_exchanges(const OpView& view) {
  return {
      {.copy = view.op.copies.data(),
       .transposed = view.op.transposed == view.forward(),
       .element_bytes = view.precision.activation}};
}

}  // namespace

extern const OpTraits kRedistribute = {
    .name = "redistribute",
    .meets = OpTraits::Meets::group,
    .only_moves = true,
    .adds = redistribute_adds,
    .exchanges = redistribute_exchanges};

}  // namespace paradyse
