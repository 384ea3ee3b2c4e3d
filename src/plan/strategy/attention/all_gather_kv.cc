// AllGatherKV: own queries against all keys and values, which are gathered as LLaMA 3's context
// parallelism does (Grattafiori et al. 2024); weights gathered (ZeRO-3).  With a window a rank gets
// those that its queries see.
#include "paradyse/plan/writer.h"
#include "src/plan/strategy/table.h"

namespace paradyse {

namespace {

Program build_all_gather_kv(const Task& task) {
  Writer w(task);
  const std::vector<Heads> heads = all_heads(task.shape(), task.documents.ranks());
  const ValueId stack = w.gather();
  const ValueId xn = w.lined_up(w.normed_input());
  const auto [q, kv] = w.q_and_kv(xn, stack, all_heads(task.shape(), 1)[0]);
  Cuts seen;  // none: all
  for (int r = 0; task.shape().window > 0 && r < w.ranks(); ++r) {
    seen.push_back(seen_tokens(task.documents, w.layout(q).line(r), task.shape().window));
  }
  const Layout seen_lines = w.layout(kv).cut(task.part->along, std::move(seen));
  const ValueId all_kv = w.redistribute(kv, seen_lines, "kv_all", /*again=*/true);
  const ValueId attended =
      w.attention({q, all_kv}, heads, w.layout(q), w.pair_bias(xn, stack, w.layout(q), heads));
  const ValueId o = w.gated_heads(attended, xn, stack);
  const ValueId y =
      w.linear_transposed(o, stack, w.terms(stack, w.weights().rows("o")), w.layout(xn));
  return w.residual(w.redistribute(y, w.layout(w.input()), "y_T"));
}

}  // namespace

Strategy all_gather_kv() {
  return {
      .kind = "attention",
      .name = "AllGatherKV",
      .verb = Verb::gather,
      .build = build_all_gather_kv,
      .summary = "keys and values are gathered for a rank's own queries; weights are gathered"};
}

}  // namespace paradyse
