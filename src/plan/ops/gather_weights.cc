// () -> w: the wanted rows of the part's stack, from all ranks of the weight domain; issued
// ahead.  Adjoint: the gradient of these rows, summed over the domain into their owners'.
#include "paradyse/plan/detail/op_traits.h"

namespace paradyse {
namespace {

std::vector<Exchange> gather_weights_exchanges(const OpView& view) {
  const bool wide = !view.forward() && view.value(view.op.out[0]).wide_gradient;
  return {
      {.copy = view.op.copies.data(),
       .transposed = !view.forward(),
       .element_bytes = wide ? view.precision.statistic : view.precision.activation}};
}

Work gather_weights_work(const OpView& view) {
  return {
      .touched_bytes = static_cast<double>(view.bytes(view.op.out[0])), .calls = 1, .launches = 1};
}

}  // namespace

extern const OpTraits kGatherWeights = {
    .name = "gather_weights",
    .meets = OpTraits::Meets::domain,
    .only_moves = true,
    .receives_first = true,
    .prefetched = true,
    .weights = true,
    .exchanges = gather_weights_exchanges,
    .work = gather_weights_work};

}  // namespace paradyse
