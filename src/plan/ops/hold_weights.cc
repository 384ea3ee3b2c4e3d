// () -> w: this rank's own rows of the part's stack, the parameter itself.  Nothing runs, nothing
// is sent; linears add straight into the parameter's gradient.
#include "paradyse/plan/detail/op_traits.h"

namespace paradyse {

extern const OpTraits kHoldWeights = {
    .name = "hold_weights", .weights = true, .work = [](const OpView&) { return Work{}; }};

}  // namespace paradyse
