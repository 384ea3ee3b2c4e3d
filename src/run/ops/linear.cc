// A product with weights, term by term.
//
//   y = x w^T: x [T, cols]; a term's matrix w [rows, cols] makes the next columns of y
//   y = x w (`transposed`): x [T, rows], w [rows, cols] of the single term
//
// Transposed and in place, the product is added to the last operand, whose memory y takes over.
// Adjoint: dx = dy w and dw = dy^T x, or dx = dy w^T and dw = x^T dy; dx is a sum over terms.  A
// `tile` cuts x (or, transposed, y) and its gradient to the rows that the op reads (or makes).  In
// two steps dx comes first, of all terms, then dw.
#include "paradyse/plan/index.h"
#include "paradyse/plan/op_traits.h"
#include "src/run/ops/frame.h"

namespace paradyse::ops {
namespace {

const std::vector<Term>& terms(const Frame& frame, const Op& op) {
  return op.terms[idx(frame.rank->seat.group_rank)];
}

// Of `matrix`, the side of the op that its tile cuts, the tile's rows.
at::Tensor tile_of(const at::Tensor& matrix, const Frame& frame, const Op& op) {
  if (op.tile.empty()) {
    return matrix;
  }
  const Interval rows = op.tile[idx(frame.rank->seat.group_rank)];
  return matrix.narrow(0, rows.begin, rows.size());
}

// The matrix of a term, of the weights that the rank has.
at::Tensor matrix_of(const at::Tensor& weights, const Term& term) {
  return weights.view({-1}).narrow(0, term.first, term.elements()).view({term.rows, term.cols});
}

}  // namespace

void linear(Frame& frame, const Op& op) {
  at::Tensor x = frame.value(op.in[0]);
  at::Tensor y;
  if (op.in_place) {
    y = std::move(frame.value(op.in.back()));
    frame.values[idx(op.out[0])] = y;
  } else {
    y = frame.make(op.out[0]);
  }
  (op.transposed ? y : x) = tile_of(op.transposed ? y : x, frame, op);
  std::int64_t column = 0;
  for (const Term& term : terms(frame, op)) {
    const at::Tensor w = matrix_of(frame.value(op.in[idx(term.operand)]), term);
    if (op.transposed) {
      frame.product(x, w, y, op.in_place && !op.fresh);
    } else {
      frame.product(x, w.t(), y.narrow(1, column, w.size(0)), false);
      column += w.size(0);
    }
  }
}

namespace {

void make_gradients(Frame& frame, const Op& op, Half half) {
  at::Tensor x = frame.value(op.in[0]);
  at::Tensor grad_y = frame.gradient(op.out[0]);
  if (op.in_place) {
    frame.gradients[idx(op.in.back())] = grad_y;
  }
  const bool no_x = half == Half::weights || is_given(frame.program(), op.in[0]);
  auto [grad_x, accumulate] =
      no_x ? std::pair<at::Tensor, bool>() : frame.gradient_target(op.in[0]);
  if (op.transposed) {
    grad_y = tile_of(grad_y, frame, op);
  } else if (!op.tile.empty()) {
    x = tile_of(x, frame, op);
    if (!no_x) {
      if (!accumulate) {  // the first tile of several
        grad_x.zero_();
        accumulate = true;
      }
      grad_x = tile_of(grad_x, frame, op);
    }
  }
  std::int64_t column = 0;
  for (const Term& term : terms(frame, op)) {
    const ValueId weight = op.in[idx(term.operand)];
    const at::Tensor grad_columns = op.transposed ? grad_y : grad_y.narrow(1, column, term.rows);
    column += term.rows;
    const auto [gradient, add] = half == Half::operands ? std::pair<at::Tensor, bool>()
                                                        : frame.weight_gradient_target(weight);
    if (!no_x) {
      const at::Tensor w = matrix_of(frame.value(weight), term);
      frame.product(grad_columns, op.transposed ? w.t() : w, grad_x, accumulate);
      accumulate = true;
    }
    if (half != Half::operands) {
      const at::Tensor left = op.transposed ? x.t() : grad_columns.t();
      const at::Tensor& right = op.transposed ? grad_y : x;
      frame.product(left, right, matrix_of(gradient, term), add);
    }
  }
}

}  // namespace

void linear_adjoint(Frame& frame, const Op& op) { make_gradients(frame, op, Half::both); }
void linear_operands(Frame& frame, const Op& op) { make_gradients(frame, op, Half::operands); }
void linear_weights(Frame& frame, const Op& op) { make_gradients(frame, op, Half::weights); }

}  // namespace paradyse::ops
