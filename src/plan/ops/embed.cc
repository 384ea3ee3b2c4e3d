// () -> x [T, H]: for each token the sum of the rows that its id, position and segment name, times
// a scale (Gemma's is sqrt(H)).
//
// The table's rows are cut over the weight domain; a tile of them after the other is gathered,
// looked up in and let go.  Adjoint: tile by tile the sum of the gradients of the tokens that name
// a row, which goes back to the row's owner in the type of sums; nothing where the table is frozen.
#include "src/plan/ops/products.h"

namespace paradyse {
namespace {

bool makes_nothing(const OpView& view) { return !view.forward() && view.op.frozen; }

std::vector<Exchange> embed_exchanges(const OpView& view) {
  std::vector<Exchange> all;
  if (makes_nothing(view)) {
    return all;
  }
  all.reserve(view.op.copies.size());
  for (const Redistribution& tile : view.op.copies) {
    all.push_back(
        {.copy = &tile,
         .transposed = !view.forward(),
         .element_bytes = view.forward() ? view.precision.activation : view.precision.statistic});
  }
  return all;
}

std::int64_t embed_workspace(const OpView& view) {
  return makes_nothing(view) ? 0
                             : largest_tile(view.op) * (view.forward() ? view.precision.activation
                                                                       : view.precision.statistic);
}

}  // namespace

extern const OpTraits kEmbed = {
    .name = "embed",
    .meets = OpTraits::Meets::domain,
    .receives_first = true,
    .exchanges = embed_exchanges,
    .workspace = embed_workspace};

}  // namespace paradyse
