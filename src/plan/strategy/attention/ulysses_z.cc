// UlyssesZ: all-to-all between tokens and heads (Jacobs et al. 2023); weights gathered (ZeRO-3).
#include "src/plan/strategy/attention/places.h"
#include "src/plan/strategy/table.h"

namespace paradyse {

namespace {

Program build_ulysses_z(const Task& task) {
  Writer w(task);
  const Layout rows = w.layout(w.input());
  return attention_at(
      w,
      task.shape(),
      {.own = rows,
       .at = w.lined_up(rows.whole()),
       .heads = own_heads(task.shape(), w.ranks(), task.documents.shares)});
}

}  // namespace

Strategy ulysses_z() {
  return {
      .kind = "attention",
      .name = "UlyssesZ",
      .verb = Verb::gather,
      .build = build_ulysses_z,
      .summary = "tokens are exchanged for heads; weights are gathered"};
}

}  // namespace paradyse
