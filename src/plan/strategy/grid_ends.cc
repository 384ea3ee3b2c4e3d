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

Program build_projection(const Task& task) {
  Writer w(task);
  const ValueId x = w.batch_input(w.own_rows(w.weights().matrices.front().cols));
  return w.finish(product(w, w.gather(), x, "proj"));
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

Program build_flow_head(const Task& task) {
  Writer w(task);
  const ValueId xn = w.normed_input();
  return w.flow_matching(product(w, w.gather(), xn, "proj"));
}

}  // namespace

Strategy projection() { return end_strategy("projection", build_projection); }
Strategy conditioning() { return end_strategy("conditioning", build_conditioning); }
Strategy flow_head() { return end_strategy("flow_head", build_flow_head); }

}  // namespace paradyse
