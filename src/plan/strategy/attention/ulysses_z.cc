// UlyssesZ: all-to-all between tokens and heads (Jacobs et al. 2023); weights gathered (ZeRO-3).
#include "paradyse/plan/writer.h"
#include "src/plan/strategy/table.h"

namespace paradyse {

namespace {

Program build(const Task& task) {
  const PartShape& shape = task.shape();
  const int p = task.documents.ranks();
  Writer w(task);
  const std::vector<Heads> heads = own_heads(shape, p, task.documents.shares);

  const ValueId stack = w.gather();
  const ValueId qkv_T = w.qkv(
      w.normed_input(),
      {stack},
      w.terms(stack, w.weights().between("q", "v")),
      all_heads(shape, p),
      "qkv_T",
      w.own_rows(qkv_width(shape)));
  const ValueId qkv_N =
      w.redistribute(qkv_T, w.all_rows(qkv_width(shape), qkv_columns(shape, heads)), "qkv_N");
  const std::int64_t width = shape.heads * shape.head_dim;
  const ValueId o_N = w.attention({qkv_N}, heads, w.all_rows(width, output_columns(shape, heads)));
  const ValueId o_T = w.redistribute(o_N, w.own_rows(width), "o_T");
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
