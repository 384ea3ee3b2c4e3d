// MegatronCZ: keys and values go round a ring of ranks, each attends with its own queries (Liu et
// al. 2023; Megatron's context parallelism); weights gathered (ZeRO-3).
#include "paradyse/plan/writer.h"
#include "src/plan/strategy/table.h"

namespace paradyse {

namespace {

Program build(const Task& task) {
  Writer w(task);
  const ValueId stack = w.gather();
  const auto [q, kv] = w.q_and_kv(w.normed_input(), stack, all_heads(task.shape(), 1)[0]);
  const ValueId o = w.ring_attention(q, kv, all_heads(task.shape(), task.documents.ranks()));
  return w.residual(
      w.linear_transposed(o, stack, w.terms(stack, w.weights().rows("o")), w.layout(w.input())));
}

}  // namespace

Strategy megatron_cz() {
  return {
      .kind = "attention",
      .name = "MegatronCZ",
      .verb = Verb::gather,
      .build = build,
      .summary = "keys and values go round a ring; weights are gathered"};
}

}  // namespace paradyse
