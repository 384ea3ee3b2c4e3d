// Local: every rank attends along lines that it has whole, and sends nothing (the parts of DSP,
// Zhao et al. 2024, between its switches); weights gathered (ZeRO-3).
#include "src/plan/strategy/attention/places.h"
#include "src/plan/strategy/table.h"

namespace paradyse {
namespace {

Program build_whole_lines(const Task& task) {
  Writer w(task);
  const Layout rows = w.layout(w.input());
  expect_whole_lines(task, rows, "a strategy that exchanges");
  return attention_at(
      w,
      task.shape(),
      {.own = rows,
       .at = rows,
       .heads = all_heads(task.shape(), w.ranks()),
       .tiles = task.option(kTilesOption, 1)});
}

}  // namespace

Strategy local_attention() {
  return {
      .kind = kAxialAttention,
      .name = "Local",
      .verb = Verb::gather,
      .build = build_whole_lines,
      .options = {line_tiles_option()},
      .summary = "each line is on one rank, no communication; weights are gathered"};
}

}  // namespace paradyse
