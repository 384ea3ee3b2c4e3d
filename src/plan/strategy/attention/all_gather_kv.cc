// AllGatherKV: own queries against all keys and values, which are gathered as LLaMA 3's context
// parallelism does (Grattafiori et al. 2024); weights gathered (ZeRO-3).
#include "paradyse/plan/writer.h"
#include "src/plan/strategy/table.h"

namespace paradyse {

namespace {

Program build(const Task& task) {
  Writer w(task);
  const std::vector<Heads> heads = all_heads(task.shape(), task.documents.ranks());
  const ValueId stack = w.gather();
  const auto [q, kv] = w.q_and_kv(w.normed_input(), stack, all_heads(task.shape(), 1)[0]);
  const ValueId all_kv = w.redistribute(kv, w.layout(kv).whole(), "kv_all", /*again=*/true);
  const ValueId o = w.attention({q, all_kv}, heads, w.layout(q));
  return w.residual(
      w.linear_transposed(o, stack, w.terms(stack, w.weights().rows("o")), w.layout(w.input())));
}

}  // namespace

Strategy all_gather_kv() {
  return {
      .kind = "attention",
      .name = "AllGatherKV",
      .verb = Verb::gather,
      .build = build,
      .summary = "keys and values are gathered for own queries; so are weights"};
}

}  // namespace paradyse
