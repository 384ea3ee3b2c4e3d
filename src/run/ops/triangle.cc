// o_ij = sum_k a_ik b_jk, or (`incoming`) o_ij = sum_k a_ki b_kj, of each of the rank's channels:
// a, b and o are stored channel by channel, [C, i, j], so each is a product of two matrices.
//
// Adjoint: da = do b, db = do^T a; incoming da = b do^T, db = a do.
#include "paradyse/plan/detail/index.h"
#include "src/run/ops/frame.h"

namespace paradyse::ops {
namespace {

// [channel, rows, cols] of what the rank has.
at::Tensor matrices(const Frame& frame, ValueId id, const at::Tensor& tensor) {
  const Layout& layout = frame.program().values[idx(id)].layout;
  const int rank = frame.rank->seat.group_rank;
  std::vector<std::int64_t> sizes;
  for (const Dim& dim : layout.dims) {
    sizes.push_back(size(dim.piece(rank)));
  }
  return tensor.view(sizes);
}

}  // namespace

void triangle(Frame& frame, const Op& op) {
  const at::Tensor a = matrices(frame, op.in[0], frame.value(op.in[0]));
  const at::Tensor b = matrices(frame, op.in[1], frame.value(op.in[1]));
  const at::Tensor o = matrices(frame, op.out[0], frame.make(op.out[0]));
  for (std::int64_t c = 0; c < o.size(0); ++c) {
    if (op.incoming) {
      frame.product(a[c].t(), b[c], o[c], false);
    } else {
      frame.product(a[c], b[c].t(), o[c], false);
    }
  }
}

void triangle_adjoint(Frame& frame, const Op& op) {
  const at::Tensor a = matrices(frame, op.in[0], frame.value(op.in[0]));
  const at::Tensor b = matrices(frame, op.in[1], frame.value(op.in[1]));
  const at::Tensor grad_o = matrices(frame, op.out[0], frame.gradient(op.out[0]));
  const at::Tensor grad_a = matrices(frame, op.in[0], frame.only_gradient_target(op.in[0]));
  const at::Tensor grad_b = matrices(frame, op.in[1], frame.only_gradient_target(op.in[1]));
  for (std::int64_t c = 0; c < grad_o.size(0); ++c) {
    if (op.incoming) {
      frame.product(b[c], grad_o[c].t(), grad_a[c], false);
      frame.product(a[c], grad_o[c], grad_b[c], false);
    } else {
      frame.product(grad_o[c], b[c], grad_a[c], false);
      frame.product(grad_o[c].t(), a[c], grad_b[c], false);
    }
  }
}

}  // namespace paradyse::ops
