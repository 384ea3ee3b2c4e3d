// What is outside the layers of models of several dims: products of what a batch brings, which are
// made where the first layer wants them, and a loss of each rank's own rows.
#include "paradyse/plan/writer.h"
#include "src/plan/strategy/table.h"

namespace paradyse {
namespace {

// x times a matrix of the stack, and its bias: these entries of the part's.
ValueId product(
    Writer& w, ValueId stack, ValueId x, const std::string& matrix, Interval bias = {}) {
  const WeightRows rows = w.weights().rows(matrix);
  const Interval entries = bias.empty() ? Interval{0, rows.rows()} : bias;
  return w.bias(
      w.linear(
          x, {stack}, w.terms(stack, rows), matrix, Layout(w.layout(x)).with_columns(rows.rows())),
      Role::in_bias,
      {entries});
}

// The sum of products of the input's columns, of each matrix so many as it reads, one after the
// other; and of its last columns, which are as wide, as they are.
Program build_projection(const Task& task) {
  Writer w(task);
  const std::vector<Matrix> matrices = w.weights().matrices;
  const std::int64_t H = matrices.front().rows;
  const std::int64_t added = task.shape().added;
  const bool whole = matrices.size() == 1 && added == 0;
  const auto input = [&](std::int64_t first, std::int64_t columns) {
    return w.batch_input(
        w.own_rows(columns), whole ? Interval{} : Interval{first, first + columns});
  };
  const ValueId stack = w.gather();
  ValueId sum = -1;
  std::int64_t first = 0;  // of the input's columns
  std::int64_t bias = 0;
  for (const Matrix& one : matrices) {
    const ValueId x = input(first, one.cols);
    const ValueId y = product(w, stack, x, one.name, {bias, bias + H});
    sum = sum < 0 ? y : w.add(sum, y);
    first += one.cols;
    bias += H;
  }
  return w.finish(added == 0 ? sum : w.add(input(first, added), sum));
}

// c = W2 silu(W1 silu(W0 t)), biases in between (Peebles & Xie 2023: the blocks' and the last
// layer's adaLN-zero in one).
Program build_conditioning(const Task& task) {
  Writer w(task);
  const std::int64_t H = task.shape().hidden;
  const ValueId t = w.batch_input(w.own_rows(w.weights().matrices.front().cols));
  const ValueId stack = w.gather();
  const ValueId inner = w.activation(product(w, stack, t, "time_in", {0, H}));
  const ValueId outer = w.activation(product(w, stack, inner, "time_out", {H, 2 * H}));
  const std::int64_t columns = w.weights().matrix("modulation").rows;
  return w.finish(product(w, stack, outer, "modulation", {2 * H, 2 * H + columns}));
}

// W2 act(W1 x + b1) + b2 of what the batch brings, added to the stream where the part reads it.
Program build_small_mlp(const Task& task) {
  Writer w(task);
  const std::int64_t H = task.shape().hidden;
  const ValueId x = w.batch_input(w.own_rows(w.weights().matrices.front().cols));
  const ValueId stack = w.gather();
  const ValueId inner = w.activation(product(w, stack, x, "in", {0, H}));
  const ValueId y = product(w, stack, inner, "out", {H, 2 * H});
  return w.finish(task.part->reads.empty() ? y : w.add(w.input(), y));
}

// c = W act(t) + b.
Program build_modulation(const Task& task) {
  Writer w(task);
  const ValueId stack = w.gather();
  return w.finish(product(w, stack, w.activation(w.input()), "modulation"));
}

Program build_flow_head(const Task& task) {
  Writer w(task);
  const ValueId xn = w.normed_input();
  return w.flow_matching(product(w, w.gather(), xn, "proj"));
}

}  // namespace

Strategy projection() { return end_strategy(kProjection, build_projection); }
Strategy conditioning() { return end_strategy("conditioning", build_conditioning); }
Strategy small_mlp() { return end_strategy("small_mlp", build_small_mlp); }
Strategy modulation() { return end_strategy("modulation", build_modulation); }
Strategy flow_head() { return end_strategy("flow_head", build_flow_head); }

}  // namespace paradyse
