// Cross-attention: every row attends to all rows of another stream of the same sample (text states;
// Chen et al. 2024, PixArt), wherever the rows lie.  The other stream is short, and every rank has
// what goes with its rows; weights gathered (ZeRO-3).
#include "paradyse/plan/writer.h"
#include "src/plan/strategy/table.h"

namespace paradyse {
namespace {

Program build_cross(const Task& task) {
  Writer w(task);
  const PartShape& shape = task.shape();
  const std::int64_t queries = shape.heads * shape.head_dim;
  const std::int64_t keys = 2 * shape.kv_heads * shape.head_dim;
  const ValueId stack = w.gather();
  const ValueId y = w.alongside(task.part->reads.back(), w.input());
  const auto product = [&](ValueId x, const char* first, const char* last, Interval entries) {
    const WeightRows rows = w.weights().between(first, last);
    const ValueId made =
        w.linear(x, {stack}, w.terms(stack, rows), first, w.layout(x).with_columns(rows.rows()));
    return w.bias(made, Role::in_bias, {entries});
  };
  const ValueId q = product(w.input(), "q", "q", {0, queries});
  const ValueId kv = product(y, "k", "v", {queries, queries + keys});
  const ValueId o = w.attention({q, kv}, all_heads(shape, w.ranks()), w.own_rows(queries));
  return w.residual(w.linear_transposed(
      o, stack, w.terms(stack, w.weights().rows("o")), w.own_rows(shape.hidden)));
}

}  // namespace

Strategy cross_attention() {
  return {
      .kind = kCrossAttention,
      .name = "Local",
      .verb = Verb::gather,
      .build = build_cross,
      .summary = "a rank's own rows attend to all of a short tensor; weights are gathered"};
}

}  // namespace paradyse
