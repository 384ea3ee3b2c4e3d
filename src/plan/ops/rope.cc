// (qkv) -> qkv with queries and keys turned by their token's position t, or the place of their row
// in a dim, in place; values stay.
//
// Columns i and i + D/2 of a head, or 2i and 2i + 1, are a pair of coordinates, turned by the angle
// t f_i (Su et al. 2021; the frequencies f: rope_frequencies()).  Adjoint: the gradient, turned
// back.
#include "paradyse/plan/detail/op_traits.h"

namespace paradyse {

extern const OpTraits kRope = {.name = "rope", .rotary = true, .shares = OpTraits::Shares::all};

}  // namespace paradyse
