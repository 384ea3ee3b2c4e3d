// (x, y) -> x + y, all [T, H], in y's memory.  Both gradients are that of the sum, in its memory;
// x's is a copy where it grows before y's has been read (`apart`).
#include "paradyse/plan/detail/op_traits.h"

namespace paradyse {

extern const OpTraits kAdd = {.name = "add", .shares = OpTraits::Shares::all};

}  // namespace paradyse
