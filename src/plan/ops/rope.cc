// (qkv) -> qkv with queries and keys turned by their token's position t, in place; values stay.
//
// Columns i and i + D/2 of a head are a pair of coordinates, turned by the angle t f_i (Su et al.
// 2021; the frequencies f: rope_frequencies()).  Adjoint: the gradient, turned back.
#include "paradyse/plan/op_traits.h"

namespace paradyse {

extern const OpTraits kRope = {.name = "rope", .rotary = true, .shares = OpTraits::Shares::all};

}  // namespace paradyse
