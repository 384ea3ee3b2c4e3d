// (y) -> o: of each line y has one row, [.., 1, .., C], which every row of it gets: o [.., L, ..,
// C]. With a tile, o has those rows of it alone, of whole lines.
//
// Adjoint: dy is the sum over a line's rows; of a rank's own rows alone a term of it.  Of tiles
// each writes the sums of its own lines.
#include "paradyse/plan/detail/op_traits.h"

namespace paradyse {

extern const OpTraits kSpread = {
    .name = "spread", .light = true, .adds = [](const Op& op, std::size_t) {
      return !op.tile.empty();
    }};

}  // namespace paradyse
