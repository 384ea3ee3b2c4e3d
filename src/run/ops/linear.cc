// A product with weights, term by term.
//
//   y = x w^T: x [T, cols]; a term's matrix w [rows, cols] makes the next columns of y
//   y = x w (`transposed`): x [T, rows], w [rows, cols] of the single term
//
// Transposed and in place, the product is added to the last operand, whose memory y takes over.
// Adjoint: dx = dy w and dw = dy^T x, or dx = dy w^T and dw = x^T dy; dx is a sum over terms.  A
// `tile` cuts x (or, transposed, y) and its gradient to the rows that the op reads (or makes).  In
// two steps dx comes first, of all terms, then dw.  Where w is frozen there is no dw; low-rank
// adapters (LowRank) have gradients of their own.
#include <span>

#include "paradyse/plan/detail/index.h"
#include "paradyse/plan/detail/op_traits.h"
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

std::span<const LowRank> adapters(const Frame& frame, const Op& op) {
  return op.adapters.empty() ? std::span<const LowRank>()
                             : op.adapters[idx(frame.rank->seat.group_rank)];
}

// An adapter's factors, or their gradients: A [r, inputs], B [outputs, r].
struct Factors {
  at::Tensor a;
  at::Tensor b;
};
Factors factors(const std::vector<at::Tensor>& vectors, const LowRank& adapter, std::int64_t r) {
  return {
      .a = vectors.at(idx(adapter.a)).view({r, -1}), .b = vectors.at(idx(adapter.b)).view({-1, r})};
}

// An adapter at work on the rows of an op: what stands between its factors is made of the inputs
// [t, r], and, going back, of the outputs.  Some columns of the cut side stand for some inputs
// (`transposed`) or outputs.
class Adapter {
 public:
  Adapter(const Frame& frame, const Op& op, const LowRank& adapter)
      : frame_(frame),
        transposed_(op.transposed),
        adapter_(adapter),
        r_(op.inner),
        weights_(factors(frame.parameters->vectors, adapter, r_)) {}

  // y += s (x A^T) B^T
  void add(const at::Tensor& x, const at::Tensor& y) const {
    const at::Tensor inner = of_inputs(x);
    for_pieces(y, !transposed_, [&](const at::Tensor& columns, Interval outputs) {
      frame_.product(inner, rows(weights_.b, outputs).t(), columns, true);
    });
  }
  // dx += s (dy B) A
  void add_to_inputs(const at::Tensor& grad_y, const at::Tensor& grad_x) const {
    const at::Tensor inner = of_outputs(grad_y);
    for_pieces(grad_x, transposed_, [&](const at::Tensor& columns, Interval inputs) {
      frame_.product(inner, some_columns(weights_.a, inputs), columns, true);
    });
  }
  // dB += s dy^T (x A^T), dA += s (dy B)^T x
  void add_to_factors(const at::Tensor& x, const at::Tensor& grad_y) const {
    const Factors gradients = factors(frame_.parameters->vector_grads, adapter_, r_);
    const at::Tensor inner = of_inputs(x);
    for_pieces(grad_y, !transposed_, [&](const at::Tensor& columns, Interval outputs) {
      frame_.product(columns.t(), inner, rows(gradients.b, outputs), true);
    });
    const at::Tensor inner_gradient = of_outputs(grad_y);
    for_pieces(x, transposed_, [&](const at::Tensor& columns, Interval inputs) {
      frame_.product(inner_gradient.t(), columns, some_columns(gradients.a, inputs), true);
    });
  }

 private:
  static at::Tensor rows(const at::Tensor& b, Interval outputs) {
    return b.narrow(0, outputs.begin, outputs.size());
  }
  static at::Tensor some_columns(const at::Tensor& a, Interval inputs) {
    return a.narrow(1, inputs.begin, inputs.size());
  }
  // Calls body(columns of `matrix`, the inputs or outputs that they stand for): of the side that is
  // cut each piece, of the other all.
  template <typename Body>
  void for_pieces(const at::Tensor& matrix, bool cut, Body body) const {
    if (!cut) {
      body(matrix, Interval{0, matrix.size(1)});
      return;
    }
    for (const LowRank::Columns& some : adapter_.columns) {
      body(matrix.narrow(1, some.here.begin, some.here.size()), some.there);
    }
  }
  // s x A^T
  [[nodiscard]] at::Tensor of_inputs(const at::Tensor& x) const {
    const at::Tensor inner = frame_.empty(x.size(0), r_, frame_.activation);
    bool onto = false;
    for_pieces(x, transposed_, [&](const at::Tensor& columns, Interval inputs) {
      frame_.product(columns, some_columns(weights_.a, inputs).t(), inner, onto);
      onto = true;
    });
    return inner.mul_(adapter_.scale);
  }
  // s dy B
  [[nodiscard]] at::Tensor of_outputs(const at::Tensor& grad_y) const {
    const at::Tensor inner = frame_.empty(grad_y.size(0), r_, frame_.activation);
    bool onto = false;
    for_pieces(grad_y, !transposed_, [&](const at::Tensor& columns, Interval outputs) {
      frame_.product(columns, rows(weights_.b, outputs), inner, onto);
      onto = true;
    });
    return inner.mul_(adapter_.scale);
  }

  const Frame& frame_;
  bool transposed_;
  const LowRank& adapter_;
  std::int64_t r_;
  Factors weights_;
};

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
  for (const LowRank& adapter : adapters(frame, op)) {
    Adapter(frame, op, adapter).add(x, y);
  }
}

namespace {

void make_gradients(Frame& frame, const Op& op, Half half) {
  const bool reads_x = !op.frozen || !op.adapters.empty();
  at::Tensor x = reads_x ? frame.value(op.in[0]) : at::Tensor();
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
    x = reads_x ? tile_of(x, frame, op) : x;
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
    const bool no_w = half == Half::operands || op.frozen;
    const auto [gradient, add] =
        no_w ? std::pair<at::Tensor, bool>() : frame.weight_gradient_target(weight);
    if (!no_x) {
      const at::Tensor w = matrix_of(frame.value(weight), term);
      frame.product(grad_columns, op.transposed ? w.t() : w, grad_x, accumulate);
      accumulate = true;
    }
    if (!no_w) {
      const at::Tensor left = op.transposed ? x.t() : grad_columns.t();
      const at::Tensor& right = op.transposed ? grad_y : x;
      frame.product(left, right, matrix_of(gradient, term), add);
    }
  }
  for (const LowRank& one : adapters(frame, op)) {
    const Adapter adapter(frame, op, one);
    if (!no_x) {
      adapter.add_to_inputs(grad_y, grad_x);
    }
    if (half != Half::operands) {
      adapter.add_to_factors(x, grad_y);
    }
  }
}

}  // namespace

void linear_adjoint(Frame& frame, const Op& op) { make_gradients(frame, op, Half::both); }
void linear_operands(Frame& frame, const Op& op) { make_gradients(frame, op, Half::operands); }
void linear_weights(Frame& frame, const Op& op) { make_gradients(frame, op, Half::weights); }

}  // namespace paradyse::ops
