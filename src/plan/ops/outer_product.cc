// (a, b) -> o: a multiple of the sum over sequences s of outer products (Jumper et al. 2021,
// algorithm 10),
//
//   o_ij = scale sum_s a_si b_sj^T,   a [s, i, A], b [s, j, B], o [i, j, A B]
//
// Of a rank's own sequences alone it is a term of the sum.
// Adjoint: da_si = scale sum_j do_ij b_sj, db_sj = scale sum_i do_ij^T a_si.  With a tile, of these
// i alone.
#include <algorithm>

#include "paradyse/plan/detail/index.h"
#include "src/plan/ops/needs.h"

namespace paradyse {
namespace {

Work outer_product_work(const OpView& view) {
  const Op& op = view.op;
  const Layout& a = view.value(op.in[0]).layout;
  const auto sequences = static_cast<double>(size(a.dims.front().piece(view.seat.group_rank)));
  const double passes = view.forward() ? 1 : 2;
  const double operands =
      static_cast<double>(view.bytes(op.in[0]) + view.bytes(op.in[1]) + view.bytes(op.out[0]));
  return {
      .matmul_flops =
          passes * 2 * sequences * static_cast<double>(view.extent(op.out[0]).elements()),
      .operand_bytes = passes * operands,
      .calls = 1,
      .launches = 1};
}

// In narrow types sums of one result: [A, B]; going back [s, A], then [s, B].
std::int64_t outer_product_workspace(const OpView& view) {
  if (!view.precision.narrow()) {
    return 0;
  }
  const std::int64_t A = view.extent(view.op.in[0]).cols;
  const std::int64_t B = view.extent(view.op.in[1]).cols;
  const Layout& a = view.value(view.op.in[0]).layout;
  const std::int64_t s = size(a.dims.front().piece(view.seat.group_rank));
  return view.precision.statistic * (view.forward() ? A * B : s * std::max(A, B));
}

bool outer_product_adds(const Op& /*op*/, std::size_t /*operand*/) { return true; }

}  // namespace

extern const OpTraits kOuterProduct = {
    .name = "outer_product",
    .core = true,
    .adds = outer_product_adds,
    .needs = needs_operands,
    .work = outer_product_work,
    .workspace = outer_product_workspace};

}  // namespace paradyse
