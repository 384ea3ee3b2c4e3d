// MegatronCZ: keys and values go round a ring of ranks, each attends with its own queries (Liu et
// al. 2023; Megatron's context parallelism); weights gathered (ZeRO-3).
#include <stdexcept>

#include "paradyse/plan/writer.h"
#include "src/plan/strategy/table.h"

namespace paradyse {

namespace {

Program build_megatron_cz(const Task& task) {
  if (!task.shape().pair.empty()) {
    throw std::invalid_argument(
        task.part->name +
        ": 'MegatronCZ' passes keys and values around a ring, but cannot add a bias from '" +
        task.shape().pair + "' to their scores: use a strategy that has each line on one rank");
  }
  Writer w(task);
  const ValueId stack = w.gather();
  const ValueId xn = w.lined_up(w.normed_input());
  const auto [q, kv] = w.q_and_kv(xn, stack, all_heads(task.shape(), 1)[0]);
  const ValueId attended = w.ring_attention(q, kv, all_heads(task.shape(), w.ranks()));
  const ValueId o = w.gated_heads(attended, xn, stack);
  const ValueId y =
      w.linear_transposed(o, stack, w.terms(stack, w.weights().rows("o")), w.layout(xn));
  return w.residual(w.redistribute(y, w.layout(w.input()), "y_T"));
}

}  // namespace

Strategy megatron_cz() {
  return {
      .kind = "attention",
      .name = "MegatronCZ",
      .verb = Verb::gather,
      .build = build_megatron_cz,
      .summary = "keys and values go round a ring; weights are gathered"};
}

}  // namespace paradyse
