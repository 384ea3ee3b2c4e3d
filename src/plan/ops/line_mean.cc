// (x) -> m: of each line of x [.., L, .., C] the mean of its rows, [.., 1, .., C].
//
// The line is the dim of which m has one.  L is all of it: of a rank's own rows alone m is a term
// of the sum.  Adjoint: dx is dm / L in every row.
#include "paradyse/plan/op_traits.h"

namespace paradyse {

extern const OpTraits kLineMean = {
    .name = "line_mean", .light = true, .adds = [](const Op&, std::size_t) { return true; }};

}  // namespace paradyse
