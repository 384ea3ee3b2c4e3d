// The outer product mean (Jumper et al. 2021, algorithm 10), of a and b made from m row by row;
// weights gathered (ZeRO-3).  As AlphaFold 2 and OpenFold compute it,
//
//   z_ij += (W sum_s a_si outer b_sj + bias) / (S + 1e-3),   S: number of sequences
//
//   gather   each rank has a of its own rows of z and b of its columns, one of them of all residues
//   scatter  each rank makes terms of all pairs from its own sequences, which are scattered
//
// With a mask a and b are zero where a letter does not count, and S is the number of sequences that
// count for both residues of the pair.
#include <stdexcept>

#include "paradyse/plan/detail/index.h"
#include "paradyse/plan/writer.h"
#include "src/plan/strategy/table.h"

namespace paradyse {
namespace {

enum class Exchanged { gather, scatter };

// Added to S: `epsilon` of AlphaFold's OuterProductMean, `eps` of OpenFold's.
constexpr double kEpsilon = 1e-3;

// Of a tile of o's rows, i then j, the i.
std::vector<Interval> of_i(const Layout& o, const TokenTile& tile) {
  std::vector<Interval> all;
  for (std::size_t r = 0; r < tile.rows.size(); ++r) {
    const std::int64_t each = std::max<std::int64_t>(1, size(o.line(static_cast<int>(r))));
    all.push_back({tile.rows[r].begin / each, tile.rows[r].end / each});
  }
  return all;
}

Program build(const Task& task, Exchanged exchanged) {
  Writer w(task);
  const PartShape& shape = task.shape();
  const std::int64_t C = shape.channels;
  const ValueId z = w.input();
  const Layout of_z = w.layout(z);
  const std::int64_t tiles = task.option(kTilesOption, 1);
  const ValueId stack = w.gather(/*wide_gradient=*/tiles > 1);
  const ValueId mn = w.norm(w.input(shape.pair), Role::pair_norm);
  const Layout made = w.layout(mn).with_columns(C);
  std::int64_t first = 0;
  const auto linear = [&](const char* matrix) {
    const ValueId y =
        w.linear(mn, {stack}, w.terms(stack, w.weights().rows(matrix)), matrix, Layout(made));
    const Piece entries = {{first, first + C}};
    first += C;
    return w.mask_rows(w.bias(y, Role::in_bias, entries));
  };
  ValueId a = linear("a");
  ValueId b = linear("b");
  Layout of_o = of_z.with_columns(C * C);
  // Residues are the last row dim, so that those of a sequence are neighbours.
  Layout sides = made.along("residues");
  if (exchanged == Exchanged::gather) {
    const auto residues = [&](const char* dim) {
      return sides.whole().cut("residues", of_z.dims[of_z.place(dim)].cuts);
    };
    a = w.redistribute(a, residues("i"), "a_all");
    b = w.redistribute(b, residues("j"), "b_all");
  } else {
    const bool whole_rows = made.dims[made.place("residues")].cuts.empty();
    if (w.ranks() > 1 && !(whole_rows && is_partition(made, w.ranks()))) {
      throw std::invalid_argument(
          task.part->name +
          ": 'scatter' makes terms of sums over sequences, each whole on one rank, but " +
          shape.pair +
          " is "
          "sharded as " +
          to_string(made) + ": shard it along S(" + sides.dims.front().name + "), or use gather");
    }
    a = w.redistribute(a, Layout(sides), "a_lines");
    b = w.redistribute(b, Layout(sides), "b_lines");
    of_o = w.ranks() > 1 ? of_o.whole().sum() : of_o;
  }
  // o is stored as z is where it is no sum; rows of o are i, then j
  const Layout i_first = of_o.along("j");
  Layout of_y = i_first.with_columns(shape.hidden);
  of_y.partial = i_first.partial;
  if (tiles > 1) {  // what is made bit by bit is made again
    w.recompute_from_here();
  }
  const std::int64_t sequences = sides.dims.front().size;
  const double scale = 1 / (static_cast<double>(sequences) + kEpsilon);
  ValueId y = -1;
  for (const TokenTile& tile : w.tiles(i_first, tiles)) {
    y = w.linear_transposed(
        w.outer_product(a, b, tile.layout, scale, of_i(i_first, tile)),
        stack,
        w.terms(stack, w.weights().rows("o")),
        of_y,
        y,
        tile.rows,
        /*fresh=*/!tile.rows.empty());
  }
  return w.residual(
      w.redistribute(y, Layout(of_z), "y_T"),
      /*bias_scale=*/scale,
      {.over = sides.dims.front().name, .added = kEpsilon});
}

Option row_tiles_option() {
  Option option = token_tiles_option();
  option.meaning =
      "Number of tiles of a rank's rows of pairs, run one after the other (default: 1)";
  return option;
}

Program build_gather(const Task& task) { return build(task, Exchanged::gather); }
Program build_scatter(const Task& task) { return build(task, Exchanged::scatter); }

}  // namespace

Strategy outer_product_gather() {
  return {
      .kind = "outer_product",
      .name = "gather",
      .verb = Verb::gather,
      .build = build_gather,
      .options = {row_tiles_option()},
      .summary = "own rows of pairs, of all residues one side; weights are gathered"};
}
Strategy outer_product_scatter() {
  return {
      .kind = "outer_product",
      .name = "scatter",
      .verb = Verb::gather,
      .build = build_scatter,
      .options = {row_tiles_option()},
      .summary = "terms of all pairs from own sequences are scattered; weights are gathered"};
}

}  // namespace paradyse
