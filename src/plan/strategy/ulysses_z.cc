// UlyssesZ: all-to-all between tokens and heads (Jacobs et al. 2023); weights gathered (ZeRO-3).
#include "src/plan/strategy/builders.h"
#include "src/plan/strategy/writer.h"

namespace paradyse {

Program ulysses_z_attention(const Task& task) {
  const ModelShape& model = *task.model;
  const int p = task.tokens.ranks();
  Writer w(task, attention_weights(model, task.domain), "UlyssesZ");
  const std::vector<Heads> heads = own_heads(model, p);
  const Interval qkv_rows{0, w.weights().rows_of(2).end};

  const ValueId stack = w.gather();
  const ValueId qkv_T = w.rope(
      w.linear(
          w.norm(w.input()),
          {stack},
          same_terms(p, qkv_rows),
          "qkv_T",
          w.by_tokens(),
          qkv_width(model)),
      all_heads(model, p));
  const ValueId qkv_N = w.redistribute(qkv_T, shard(1, qkv_columns(model, heads)), "qkv_N");
  const ValueId o_N = w.attention(qkv_N, heads, shard(1, output_columns(model, heads)));
  const ValueId o_T = w.redistribute(o_N, w.by_tokens(), "o_T");
  return w.residual(
      w.linear_transposed(o_T, stack, same_terms(p, w.weights().rows_of(3)), w.by_tokens()));
}

}  // namespace paradyse
