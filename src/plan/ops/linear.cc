// A product with weights: (x, w...) -> y.
//
//   y = x w^T: x [T, cols], on each rank its terms' matrices w [rows, cols] of the stacks, side by
//     side the columns of y [T, rows]
//   y = x w (`transposed`): x [T, rows], w [rows, cols] of the single term, y [T, cols]
//
// Transposed and in place, the product is added to the last operand, whose memory y takes over.
// With a `tile` some rows of x are read, or (transposed) some rows of y are made.
// Adjoint: dx = dy w, dw = dy^T x; or dx = dy w^T, dw = x^T dy; no dw where w is frozen.
// Low-rank adapters (LowRank) add s (x A^T) B^T; of a token r numbers are in between, which the
// adjoint makes again: dx += s (dy B) A, dA = s (dy B)^T x, dB = s dy^T (x A^T).
#include <algorithm>

#include "paradyse/plan/detail/index.h"
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

// x is what gradients of weights are made of.
std::vector<ValueId> linear_needs(const Op& op) {
  std::vector<ValueId> factors = op.in;
  if (op.in_place) {
    factors.pop_back();
  }
  if (op.frozen && op.adapters.empty()) {
    factors.erase(factors.begin());
  }
  return factors;
}

// Columns of x and of y that an adapter of the rank takes.
struct Sides {
  std::int64_t inputs = 0;
  std::int64_t outputs = 0;
  std::int64_t widest = 0;  // of those that stand together, of the side that ranks cut
};
std::vector<Sides> adapters(const OpView& view) {
  std::vector<Sides> all;
  if (view.op.adapters.empty()) {
    return all;
  }
  for (const LowRank& adapter : view.op.adapters[idx(view.seat.group_rank)]) {
    std::int64_t columns = 0;
    std::int64_t widest = 0;
    for (const LowRank::Columns& some : adapter.columns) {
      columns += some.here.size();
      widest = std::max(widest, some.here.size());
    }
    const std::int64_t whole = view.op.transposed ? view.value(view.op.out[0]).layout.columns().size
                                                  : view.extent(view.op.in[0]).cols;
    all.push_back(
        view.op.transposed ? Sides{.inputs = columns, .outputs = whole, .widest = widest}
                           : Sides{.inputs = whole, .outputs = columns, .widest = widest});
  }
  return all;
}

bool makes_x(const OpView& view) {
  return view.half != Half::weights && !is_given(view.program, view.op.in[0]);
}
bool makes_w(const OpView& view) { return view.half != Half::operands; }

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
  const double passes =
      view.forward() ? 1 : (is_given(view.program, op.in[0]) ? 0 : 1) + (op.frozen ? 0 : 1);
  const auto tokens = static_cast<double>(linear_rows(view.program, op, view.seat));
  double low_rank = 0;  // columns that meet the adapters' inner ones
  for (const auto& [inputs, outputs, widest] : adapters(view)) {
    low_rank +=
        view.forward()
            ? static_cast<double>(inputs + outputs)
            : static_cast<double>(2 * inputs + 2 * outputs) +
                  (is_given(view.program, op.in[0]) ? 0 : static_cast<double>(inputs + outputs));
  }
  return {
      .matmul_flops = 2.0 * tokens *
                      (passes * static_cast<double>(rows) * static_cast<double>(other) +
                       low_rank * static_cast<double>(op.inner)),
      .operand_bytes = passes * operands,
      .calls = 1,
      .launches = 1};
}

// x A^T, or dy B, of each token r numbers; both for the gradients of A and B, which are added to
// straight away, in float32.
std::int64_t adapters_workspace(const OpView& view, std::int64_t tokens) {
  const std::int64_t r = view.op.inner;
  const std::int64_t inner = tokens * r * view.precision.activation;
  const std::int64_t inner_product = product_bytes(view, tokens, r);
  std::int64_t most = 0;
  for (const auto& [inputs, outputs, widest] : adapters(view)) {
    if (view.forward() || makes_x(view)) {
      const std::int64_t made =
          view.forward() == view.op.transposed ? (view.forward() ? outputs : inputs) : widest;
      most = std::max(most, inner + std::max(inner_product, product_bytes(view, tokens, made)));
    }
    if (!view.forward() && makes_w(view)) {
      most = std::max(most, 2 * inner + inner_product);
    }
  }
  return most;
}

std::int64_t linear_workspace(const OpView& view) {
  const Op& op = view.op;
  const std::int64_t tokens = linear_rows(view.program, op, view.seat);
  if (tokens == 0) {
    return 0;
  }
  std::int64_t most = adapters_workspace(view, tokens);
  for (const Term& term : terms(view)) {
    const std::int64_t in = term.cols;
    const std::int64_t out = term.rows;
    if (out == 0) {  // as of a rank without a head: nothing to multiply by
      continue;
    }
    const bool makes_in = op.transposed == view.forward();  // columns of the product that is made
    if (view.forward() || makes_x(view)) {
      most = std::max(most, product_bytes(view, tokens, makes_in ? in : out));
    }
    // Else the weights' gradient is added to straight away, in float32.
    const bool rounded =
        !weight(view, term).wide_gradient && !is_held(view.program, op.in[idx(term.operand)]);
    if (!view.forward() && makes_w(view) && rounded && !op.frozen) {
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
