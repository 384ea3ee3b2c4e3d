// The MLP of all tokens, each rank with its own piece of the width: weights stay where they are
// (tensor parallelism with sequence parallelism, Korthikanti et al. 2022).
#include <algorithm>

#include "paradyse/plan/detail/index.h"
#include "paradyse/plan/writer.h"
#include "src/plan/strategy/table.h"

namespace paradyse {
namespace {

// All tokens, each rank with its own piece of the width.
Program build_hold(const Task& task) {
  const int p = task.documents.ranks();
  Writer w(task);
  const std::int64_t F = task.shape().ffn;
  const Cuts width = even_cuts(F, p);
  Cuts columns;  // of h
  std::vector<std::vector<Term>> in_terms;
  std::vector<std::vector<Term>> out_terms;
  const std::int64_t tiles = std::clamp<std::int64_t>(
      task.option(kTilesOption, 1), 1, std::max<std::int64_t>(1, task.documents.tokens()));
  const ValueId stack = w.hold(/*wide_gradient=*/tiles > 1);
  for (int r = 0; r < p; ++r) {
    const Piece& mine = width[idx(r)];
    columns.push_back(mlp_columns(task.shape(), mine.empty() ? Interval{} : mine.front()));
    const auto held = [&](const std::string& first, const std::string& last) {
      return w.runs(stack, w.held(first, last, r), r);
    };
    in_terms.push_back(held(mlp_input(task.shape()), "up"));
    out_terms.push_back(held("down", "down"));
  }
  const ValueId xn = w.normed_input();
  const ValueId xg =
      w.redistribute(xn, w.layout(xn).whole(), "xg", task.option(kKeepOption, 0) == 0);
  if (tiles > 1) {
    w.recompute_from_here();
  }
  ValueId y = -1;
  const Layout sum = w.layout(xn).whole().sum();
  for (const TokenTile& tile : w.tiles(w.all_rows(mlp_width(task.shape()), columns), tiles)) {
    const ValueId h = w.linear(xg, {stack}, in_terms, "h", tile.layout, tile.rows);
    const ValueId a = w.activation(w.bias(h, Role::in_bias), width);
    y = w.linear_transposed(a, stack, out_terms, sum, y, tile.rows, /*fresh=*/true);
  }
  return w.residual(w.added_up(y, w.layout(w.input()), "y_T"));
}

std::string not_one(std::int64_t value, const Task& /*task*/) {
  return value == 1 ? "" : "1 keeps them; leave it out to gather them again";
}
std::vector<std::int64_t> keep(const Task& /*task*/) { return {1}; }

}  // namespace

Option keep_gathered_option() {
  return {
      .name = kKeepOption,
      .meaning =
          "1: keep tokens gathered from all ranks for the backward pass (default: gather them "
          "again)",
      .why_not = not_one,
      .candidates = keep};
}

Strategy mlp_hold() {
  return {
      .kind = "mlp",
      .name = "hold",
      .verb = Verb::hold,
      .build = build_hold,
      .options = {token_tiles_option(), keep_gathered_option()},
      .summary = "all tokens, each rank has its piece of the width; weights are tensor parallel"};
}

}  // namespace paradyse
