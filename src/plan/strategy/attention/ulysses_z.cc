// UlyssesZ: all-to-all between tokens and heads (Jacobs et al. 2023); weights gathered (ZeRO-3).
#include "paradyse/plan/writer.h"
#include "src/plan/strategy/table.h"

namespace paradyse {

namespace {

Program build(const Task& task) {
  const ModelShape& model = *task.model;
  const int p = task.tokens.ranks();
  Writer w(task, attention_weights(model, task.domain), "UlyssesZ");
  const std::vector<Heads> heads = own_heads(model, p, task.tokens.shares);
  const Interval qkv_rows{0, w.weights().rows_of(2).end};

  const ValueId stack = w.gather();
  const ValueId qkv_T = w.qkv(
      w.normed_input(),
      {stack},
      same_terms(p, qkv_rows),
      all_heads(model, p),
      "qkv_T",
      w.by_tokens());
  const ValueId qkv_N = w.redistribute(qkv_T, shard(1, qkv_columns(model, heads)), "qkv_N");
  const ValueId o_N = w.attention({qkv_N}, heads, shard(1, output_columns(model, heads)));
  const ValueId o_T = w.redistribute(o_N, w.by_tokens(), "o_T");
  return w.residual(
      w.linear_transposed(o_T, stack, same_terms(p, w.weights().rows_of(3)), w.by_tokens()));
}

}  // namespace

Strategy ulysses_z() {
  return {
      .kind = "attention",
      .name = "UlyssesZ",
      .verb = Verb::gather,
      .build = build,
      .summary = "tokens are exchanged for heads; weights are gathered"};
}

}  // namespace paradyse
