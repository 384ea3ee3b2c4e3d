// Global attention (Jumper et al. 2021, algorithm 19): of every line one query a head, made of the
// mean of its rows; heads share one key and value head, D wide; what attention makes of a line goes
// to all of its rows, through a gate of their own.  Weights gathered (ZeRO-3).
//
//   Local    ranks have whole lines and exchange nothing
//   SwitchKV ranks have parts of lines: means are added up, and keys and values, 2D of a row's
//            columns, are switched, to where lines are whole; a row a line comes back
#include <algorithm>
#include <stdexcept>

#include "src/plan/strategy/attention/places.h"
#include "src/plan/strategy/table.h"

namespace paradyse {
namespace {

// `at`: where lines are whole.
Program build_at(Writer& w, const Task& task, const Layout& at) {
  const PartShape& shape = task.shape();
  const std::int64_t width = shape.heads * shape.head_dim;
  const Layout own = w.layout(w.input());
  const std::int64_t tiles = task.option(kTilesOption, 1);
  const ValueId stack = w.gather(/*wide_gradient=*/tiles > 1);
  const ValueId xn = w.normed_input();
  const auto product = [&](ValueId x, const char* first, const char* last) {
    const WeightRows rows = w.weights().between(first, last);
    return w.linear(x, {stack}, w.terms(stack, rows), first, w.layout(x).with_columns(rows.rows()));
  };
  const ValueId kv = w.redistribute(
      product(xn, "k", "v"), at.with_columns(2 * shape.kv_heads * shape.head_dim), "kv_lines");
  const ValueId mean =
      w.redistribute(w.line_mean(xn), w.one_a_line(at.with_columns(shape.hidden)), "mean_lines");
  const ValueId q = product(mean, "q", "q");
  const ValueId o_lines =
      w.attention({q, kv}, all_heads(shape, w.ranks()), w.one_a_line(at.with_columns(width)));
  const ValueId o = w.redistribute(o_lines, w.one_a_line(own.with_columns(width)), "o_own");
  if (tiles > 1) {  // what is made bit by bit is made again
    w.recompute_from_here();
  }
  ValueId y = -1;
  for (const TokenTile& tile : w.tiles(own.with_columns(width), tiles)) {
    const ValueId spread = w.spread(o, Layout(tile.layout), tile.rows);
    y = w.linear_transposed(
        w.gated_heads(spread, xn, stack, tile.rows),
        stack,
        w.terms(stack, w.weights().rows("o")),
        own.with_columns(shape.hidden),
        y,
        tile.rows,
        /*fresh=*/!tile.rows.empty());
  }
  return w.residual(y);
}

Program build_local(const Task& task) {
  Writer w(task);
  const Layout rows = w.layout(w.input());
  expect_whole_lines(task, rows, "SwitchKV");
  return build_at(w, task, rows);
}

Program build_switch(const Task& task) {
  Writer w(task);
  const Layout rows = w.layout(w.input());
  const std::vector<const Dim*> others = other_rows(rows, task.part->along);
  if (others.empty()) {
    throw std::invalid_argument(
        task.part->name + ": 'SwitchKV' switches to another dim, and there is only '" +
        task.part->along + "'");
  }
  const Dim& longest =
      **std::ranges::max_element(others, {}, [](const Dim* dim) { return dim->size; });
  return build_at(
      w, task, w.lined_up(rows.whole()).cut(longest.name, even_cuts(longest.size, w.ranks())));
}

}  // namespace

Strategy global_local() {
  return {
      .kind = kGlobalAttention,
      .name = "Local",
      .verb = Verb::gather,
      .build = build_local,
      .options = {line_tiles_option()},
      .summary = "each line is on one rank, no communication; weights are gathered"};
}

Strategy global_switch() {
  return {
      .kind = kGlobalAttention,
      .name = "SwitchKV",
      .verb = Verb::gather,
      .build = build_switch,
      .summary =
          "reshards means, keys and values so that each line is on one rank; weights are gathered"};
}

}  // namespace paradyse
