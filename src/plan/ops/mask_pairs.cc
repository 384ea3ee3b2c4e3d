// (y) -> y (S + e) / (n + e), in y's memory: y [i, j, C] is a sum over S sequences divided by
// S + e, n_ij = sum_s m_si m_sj the number of those that count for both residues by the batch's
// mask m (`norm` of OpenFold's OuterProductMean).
//
// A batch brings the whole mask to every rank, so each makes n of its own pairs and nothing is
// sent.  Adjoint: dy = (gradient of the result) times the same.
#include "src/plan/ops/masks.h"

namespace paradyse {
namespace {

// n, and the mask for the rank's residues of either side.
std::int64_t mask_pairs_workspace(const OpView& view) {
  const Layout& y = view.value(view.op.in[0]).layout;
  const auto held = [&](std::size_t dim) { return size(y.dims[dim].piece(view.seat.group_rank)); };
  const std::int64_t sequences = summed_size(view.program, view.op);
  return view.precision.statistic * (held(0) * held(1) + sequences * (held(0) + held(1)));
}

Work mask_pairs_work(const OpView& view) {
  Work work = touches_operands(view);
  const Layout& y = view.value(view.op.in[0]).layout;
  const double pairs = static_cast<double>(y.with_columns(1).elements(view.seat.group_rank));
  work.matmul_flops = 2 * pairs * static_cast<double>(summed_size(view.program, view.op));
  return work;
}

}  // namespace

extern const OpTraits kMaskPairs = {
    .name = "mask_pairs", .work = mask_pairs_work, .workspace = mask_pairs_workspace};

}  // namespace paradyse
