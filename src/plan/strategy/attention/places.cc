#include "src/plan/strategy/attention/places.h"

#include <stdexcept>
#include <utility>

#include "src/plan/strategy/table.h"

namespace paradyse {

Program attention_at(Writer& w, const PartShape& shape, const AttentionPlaces& places) {
  const auto& [own, at, heads, tiles] = places;
  const ValueId stack = w.gather(/*wide_gradient=*/tiles > 1);
  const ValueId xn = w.redistribute(w.normed_input(), own.with_columns(shape.hidden), "xn_in");
  const std::int64_t width = shape.heads * shape.head_dim;
  const ValueId bias =
      w.pair_bias(xn, stack, at.with_columns(width, output_columns(shape, heads)), heads);
  if (tiles > 1) {  // what is made bit by bit is made again
    w.recompute_from_here();
  }
  ValueId y = -1;
  for (const TokenTile& tile : w.tiles(own.with_columns(qkv_width(shape)), tiles)) {
    const Layout& lines = tile.rows.empty() ? at : tile.layout;
    const ValueId qkv_own = w.qkv(
        xn,
        {stack},
        w.terms(stack, w.weights().between("q", "v")),
        all_heads(shape, w.ranks()),
        "qkv_T",
        tile.layout,
        tile.rows);
    const ValueId qkv = w.redistribute(
        qkv_own, lines.with_columns(qkv_width(shape), qkv_columns(shape, heads)), "qkv_N");
    const ValueId o_N =
        w.attention({qkv}, heads, lines.with_columns(width, output_columns(shape, heads)), bias);
    const ValueId o = w.gated_heads(
        w.redistribute(o_N, tile.layout.with_columns(width), "o_T"), xn, stack, tile.rows);
    y = w.linear_transposed(
        o,
        stack,
        w.terms(stack, w.weights().rows("o")),
        own.with_columns(shape.hidden),
        y,
        tile.rows,
        /*fresh=*/!tile.rows.empty());
  }
  return w.residual(w.redistribute(y, w.layout(w.input()), "y_T"));
}

void expect_whole_lines(const Task& task, const Layout& rows, const char* instead) {
  const std::string& along = task.part->along;
  if (!rows.dims[rows.place(along)].cuts.empty() && task.documents.ranks() > 1) {
    throw std::invalid_argument(
        task.part->name + ": 'Local' attends along '" + along + "', and " + to_string(rows) +
        " shards it: shard the tensor along another dim, or take " + instead);
  }
}

std::vector<const Dim*> other_rows(const Layout& rows, const std::string& along) {
  std::vector<const Dim*> found;
  for (std::size_t d = 0; d + 1 < rows.dims.size(); ++d) {
    if (rows.dims[d].name != along) {
      found.push_back(&rows.dims[d]);
    }
  }
  return found;
}

Option line_tiles_option() {
  Option option = token_tiles_option();
  option.meaning = "Number of tiles of a rank's lines, run one after the other (default: 1)";
  return option;
}

Strategy along_a_dim(Strategy strategy) {
  strategy.kind = kAxialAttention;
  return strategy;
}

}  // namespace paradyse
