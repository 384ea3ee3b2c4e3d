// UlyssesZ: all-to-all between tokens and heads (Jacobs et al. 2023); weights gathered (ZeRO-3).
#include "paradyse/plan/writer.h"
#include "src/plan/strategy/table.h"

namespace paradyse {

namespace {

Program build(const Task& task) {
  const ModelShape& model = *task.model;
  const int p = task.documents.ranks();
  Writer w(task, attention_weights(model, task.domain), "UlyssesZ");
  const std::vector<Heads> heads = own_heads(model, p, task.documents.shares);

  const ValueId stack = w.gather();
  const ValueId qkv_T = w.qkv(
      w.normed_input(),
      {stack},
      w.terms(stack, w.weights().between("q", "v")),
      all_heads(model, p),
      "qkv_T",
      w.by_tokens(qkv_width(model)));
  const ValueId qkv_N =
      w.redistribute(qkv_T, w.all_tokens(qkv_width(model), qkv_columns(model, heads)), "qkv_N");
  const std::int64_t width = model.heads * model.head_dim;
  const ValueId o_N =
      w.attention({qkv_N}, heads, w.all_tokens(width, output_columns(model, heads)));
  const ValueId o_T = w.redistribute(o_N, w.by_tokens(width), "o_T");
  return w.residual(
      w.linear_transposed(o_T, stack, w.terms(stack, w.weights().rows("o")), w.layout(w.input())));
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
