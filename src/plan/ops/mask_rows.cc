// (y) -> y w, in y's memory: w of each row 1, or 0 where the batch's mask says that it does not
// count (`msa_mask` of AlphaFold and OpenFold).
//
// Adjoint: dy = (gradient of the result) w.  A gradient of its own, as dropout's.
#include "src/plan/ops/masks.h"

namespace paradyse {
namespace {

std::int64_t mask_rows_workspace(const OpView& view) {
  return mask_bytes(view, view.value(view.op.in[0]).layout);
}

}  // namespace

extern const OpTraits kMaskRows = {.name = "mask_rows", .workspace = mask_rows_workspace};

}  // namespace paradyse
