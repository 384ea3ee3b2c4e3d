// (qkv) -> qkv with every query and key head normed: a head's D columns of a row are a row of an
// RMSNorm (norm.cc), by one vector for queries and one for keys; values are copied.
#include "src/plan/ops/needs.h"

namespace paradyse {

extern const OpTraits kQkNorm = {.name = "qk_norm", .light = true, .needs = needs_operands};

}  // namespace paradyse
