// (x) -> m: of each line of x [.., L, .., C] the mean of its rows, [.., 1, .., C]; of those alone
// that the batch's mask counts, where the op has one, and 0 of none.
//
// The line is the dim of which m has one.  L is all of it: of a rank's own rows alone m is a term
// of the sum.  Adjoint: dx is dm / L in every row; with a mask, dm divided by the rows that count
// in those, and 0 in others.
#include "src/plan/ops/masks.h"

namespace paradyse {
namespace {

// The share of each row of whole lines; in narrow types sums of what is in one row of all lines
// that stand side by side.
std::int64_t line_mean_workspace(const OpView& view) {
  if (view.op.mask.empty()) {
    return 0;
  }
  const Layout& x = view.value(view.op.in[0]).layout;
  std::int64_t side_by_side = 1;
  for (std::size_t d = x.place(view.op.along) + 1; d < x.dims.size(); ++d) {
    side_by_side *= size(x.dims[d].piece(view.seat.group_rank));
  }
  const bool sums = view.precision.narrow() && view.forward();
  return mask_bytes_of_lines(view, x) + (sums ? side_by_side * view.precision.statistic : 0);
}

}  // namespace

extern const OpTraits kLineMean = {
    .name = "line_mean",
    .light = true,
    .adds = [](const Op&, std::size_t) { return true; },
    .workspace = line_mean_workspace};

}  // namespace paradyse
