// The MLP of all tokens, each rank with its own piece of the width: weights stay where they are
// (tensor parallelism with sequence parallelism, Korthikanti et al. 2022).
#include <algorithm>

#include "paradyse/plan/writer.h"
#include "src/plan/strategy/table.h"

namespace paradyse {
namespace {

// All tokens, each rank with its own piece of the width.
Program build(const Task& task) {
  const int p = task.tokens.ranks();
  Writer w(task, mlp_weights(*task.model, task.domain), to_string(Verb::hold));
  const std::int64_t F = task.model->ffn;
  const std::size_t down = w.weights().matrices.size() - 1;
  const std::int64_t in_width = w.weights().rows_of(down).begin;

  const Cuts width = even_cuts(F, p);
  Cuts columns(width.size());  // of h
  std::vector<std::vector<Term>> in_terms;
  std::vector<std::vector<Term>> out_terms;
  for (int r = 0; r < p; ++r) {
    for (std::int64_t first = 0; first < in_width; first += F) {
      for (const Interval rows : width[static_cast<std::size_t>(r)]) {
        append(columns[static_cast<std::size_t>(r)], {first + rows.begin, first + rows.end});
      }
    }
    in_terms.push_back({{.rows = {0, w.weights().rows_of(down, r).begin}}});
    out_terms.push_back({{.rows = w.weights().rows_of(down, r)}});
  }
  const ValueId stack = w.hold();
  const ValueId xg = w.redistribute(w.normed_input(), replicate(), "xg", /*again=*/true);
  const auto tiles = static_cast<int>(std::clamp<std::int64_t>(
      task.option("token_tiles", 1), 1, std::max<std::int64_t>(1, task.tokens.tokens())));
  if (tiles > 1) {
    w.recompute_from_here();
  }
  ValueId y = -1;
  for (const Piece& tokens : even_cuts(task.tokens.tokens(), tiles)) {
    const std::vector<Interval> rows =
        tiles == 1 ? std::vector<Interval>{}
                   : std::vector<Interval>(static_cast<std::size_t>(p), tokens.front());
    const ValueId h = w.linear(xg, {stack}, in_terms, "h", shard(1, columns), in_width, rows);
    const ValueId a = w.activation(w.bias(h, Role::in_bias), shard(1, width));
    y = w.linear_transposed(a, stack, out_terms, partial(), y, rows, /*fresh=*/true);
  }
  return w.residual(w.redistribute(y, w.by_tokens(), "y_T"));
}

}  // namespace

Strategy mlp_hold() {
  return {
      .kind = "mlp",
      .name = "hold",
      .verb = Verb::hold,
      .build = build,
      .options = {token_tiles_option()},
      .summary = "all tokens, own piece of the width; weights stay where they are"};
}

}  // namespace paradyse
