// A product with weights: (x, w...) -> y.
//
//   y = x w^T: x [T, cols], on each rank its terms' matrices w [rows, cols] of the stacks, side by
//     side the columns of y [T, rows]
//   y = x w (`transposed`): x [T, rows], w [rows, cols] of the single term, y [T, cols]
//
// Transposed and in place, the product is added to the last operand, whose memory y takes over.
// With a `tile` some rows of x are read, or (transposed) some rows of y are made.
// Adjoint: dx = dy w, dw = dy^T x; or dx = dy w^T, dw = x^T dy.
#include <algorithm>

#include "paradyse/plan/index.h"
#include "src/plan/ops/products.h"

namespace paradyse {
namespace {

const std::vector<Term>& terms(const OpView& view) {
  return view.op.terms[idx(view.seat.group_rank)];
}

const Value& weight(const OpView& view, const Term& term) {
  return view.value(view.op.in[idx(term.operand)]);
}

// Of what it overwrites, the gradient is the result's.
bool linear_adds(const Op& op, std::size_t operand) {
  return !op.in_place || operand + 1 < op.in.size();
}

std::vector<ValueId> linear_needs(const Op& op) {
  std::vector<ValueId> factors = op.in;
  if (op.in_place) {
    factors.pop_back();
  }
  return factors;
}

Work linear_work(const OpView& view) {
  const Op& op = view.op;
  std::int64_t rows = 0;
  double operands = static_cast<double>(view.bytes(op.in[0]) + view.bytes(op.out[0]));
  for (const Term& term : terms(view)) {
    rows += term.rows;
    operands += static_cast<double>(term.elements() * view.precision.activation);
  }
  const std::int64_t other =
      op.transposed ? view.value(op.out[0]).layout.columns().size : view.extent(op.in[0]).cols;
  const double passes = view.forward() || is_given(view.program, op.in[0]) ? 1 : 2;
  return {
      .matmul_flops = passes * 2.0 * static_cast<double>(linear_rows(view.program, op, view.seat)) *
                      static_cast<double>(rows) * static_cast<double>(other),
      .operand_bytes = passes * operands,
      .calls = 1,
      .launches = 1};
}

std::int64_t linear_workspace(const OpView& view) {
  const Op& op = view.op;
  const std::int64_t tokens = linear_rows(view.program, op, view.seat);
  if (tokens == 0) {
    return 0;
  }
  std::int64_t most = 0;
  for (const Term& term : terms(view)) {
    const std::int64_t in = term.cols;
    const std::int64_t out = term.rows;
    if (out == 0) {  // as of a rank without a head: nothing to multiply by
      continue;
    }
    const bool makes_in = op.transposed == view.forward();  // columns of the product that is made
    if (view.half != Half::weights && (view.forward() || !is_given(view.program, op.in[0]))) {
      most = std::max(most, product_bytes(view, tokens, makes_in ? in : out));
    }
    // Else the weights' gradient is added to straight away, in float32.
    const bool rounded =
        !weight(view, term).wide_gradient && !is_held(view.program, op.in[idx(term.operand)]);
    if (view.half != Half::operands && !view.forward() && rounded) {
      most = std::max(most, product_bytes(view, out, in));
    }
  }
  return most;
}

}  // namespace

extern const OpTraits kLinear = {
    .name = "linear",
    .operands_first = true,
    .products = true,
    .shares = OpTraits::Shares::last,
    .adds = linear_adds,
    .needs = linear_needs,
    .work = linear_work,
    .workspace = linear_workspace};

}  // namespace paradyse
