// (y) -> y + scale b, in y's memory: y [T, C], b the entries of the part's vectors that the rank's
// columns take.  Adjoint: dy is the result's gradient itself, db = scale times its sum over rows.
#include "paradyse/plan/detail/op_traits.h"

namespace paradyse {

extern const OpTraits kBias = {.name = "bias", .shares = OpTraits::Shares::all};

}  // namespace paradyse
