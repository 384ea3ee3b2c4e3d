// (a, b) -> o, of each channel by itself (Jumper et al. 2021, algorithms 11 and 12):
//
//   o_ij = sum_k a_ik b_jk, or (`incoming`) o_ij = sum_k a_ki b_kj
//
// All are stored channel by channel, [C, i, j], so each is a product of two matrices.
// Of a rank's own k alone it is a term of the sum.
// Adjoint: da_ik = sum_j do_ij b_jk, db_jk = sum_i do_ij a_ik; incoming with k first.
#include "paradyse/plan/detail/index.h"
#include "src/plan/ops/needs.h"
#include "src/plan/ops/products.h"

namespace paradyse {
namespace {

Work triangle_work(const OpView& view) {
  const Op& op = view.op;
  const Layout& a = view.value(op.in[0]).layout;
  const auto summed = static_cast<double>(
      size(a.dims[a.place(op.incoming ? "i" : "j")].piece(view.seat.group_rank)));
  const double passes = view.forward() ? 1 : 2;
  const double operands =
      static_cast<double>(view.bytes(op.in[0]) + view.bytes(op.in[1]) + view.bytes(op.out[0]));
  return {
      .matmul_flops = passes * 2 * summed * static_cast<double>(view.extent(op.out[0]).elements()),
      .operand_bytes = passes * operands,
      .calls = 1,
      .launches = 1};
}

// A product of one channel at a time.
std::int64_t triangle_workspace(const OpView& view) {
  const auto bytes = [&](ValueId id) {
    const Layout& layout = view.value(id).layout;  // [channels, rows, columns]
    const int rank = view.seat.group_rank;
    return product_bytes(view, size(layout.dims[1].piece(rank)), size(layout.dims[2].piece(rank)));
  };
  const Op& op = view.op;
  return view.forward() ? bytes(op.out[0]) : std::max(bytes(op.in[0]), bytes(op.in[1]));
}

}  // namespace

extern const OpTraits kTriangle = {
    .name = "triangle",
    .core = true,
    .needs = needs_operands,
    .work = triangle_work,
    .workspace = triangle_workspace};

}  // namespace paradyse
