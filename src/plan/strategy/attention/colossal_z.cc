// ColossalZ: ring self-attention with full rows of scores (Li et al. 2021); weights gathered
// (ZeRO-3).
#include "paradyse/plan/writer.h"
#include "src/plan/strategy/table.h"

namespace paradyse {

namespace {

Program build_colossal_z(const Task& task) {
  Writer w(task);
  const ValueId stack = w.gather();
  const auto [q, kv] = w.q_and_kv(w.normed_input(), stack, all_heads(task.shape(), 1)[0]);
  const ValueId o = w.score_attention(q, kv, all_heads(task.shape(), task.documents.ranks()));
  return w.residual(
      w.linear_transposed(o, stack, w.terms(stack, w.weights().rows("o")), w.layout(w.input())));
}

}  // namespace

Strategy colossal_z() {
  return {
      .kind = "attention",
      .name = "ColossalZ",
      .verb = Verb::gather,
      .build = build_colossal_z,
      .summary = "ring self-attention with full rows of scores (quadratic memory)"};
}

}  // namespace paradyse
