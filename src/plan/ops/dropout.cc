// (y) -> y m / (1 - p), in y's memory, m 0 with probability p and else 1 for each element.
//
// m is a function of seed, site, token and column (rows of samples may share it along a dim), so
// the adjoint draws it again.  It makes a gradient of its own: others may read that of the result,
// too.
#include "paradyse/plan/detail/op_traits.h"

namespace paradyse {

extern const OpTraits kDropout = {.name = "dropout"};

}  // namespace paradyse
