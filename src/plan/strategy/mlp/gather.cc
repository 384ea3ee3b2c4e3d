// The MLP of every rank's own tokens, gated (SwiGLU, Shazeer 2020) or not: weights come whole from
// the domain (`gather`, ZeRO-3), or a piece of the width after the other (`pass`).
#include "paradyse/plan/writer.h"
#include "src/plan/strategy/table.h"

namespace paradyse {
namespace {

// Every rank's tokens, whose weights come whole, or (`pass`) a piece of the width after the other.
Program build(const Task& task, Verb verb) {
  const std::int64_t tiles = task.option(kTilesOption, 1);
  const int p = task.documents.ranks();
  Writer w(task);
  const std::int64_t F = task.shape().ffn;

  const ValueId xn = w.normed_input();
  if (verb == Verb::pass || tiles > 1) {  // what is made bit by bit is made again
    w.recompute_from_here();
  }
  ValueId y = -1;
  for (const Piece& piece : even_cuts(F, verb == Verb::pass ? p : 1)) {
    if (piece.empty()) {
      continue;
    }
    const auto [begin, end] = piece.front();
    const Piece columns = mlp_columns(task.shape(), piece.front());
    const WeightRows in = w.weights().between(mlp_input(task.shape()), "up", piece.front());
    const WeightRows down = w.weights().rows("down", piece.front());
    const ValueId stack = w.gather({in, down}, /*wide_gradient=*/tiles > 1);
    const std::int64_t width = size(columns);
    for (const TokenTile& tile : w.tiles(w.own_rows(width), tiles)) {
      const ValueId h = w.linear(xn, {stack}, w.terms(stack, in), "h", tile.layout, tile.rows);
      const ValueId a = w.activation(w.bias(h, Role::in_bias, columns));
      y = w.linear_transposed(
          a,
          stack,
          w.terms(stack, down),
          w.layout(w.input()),
          y,
          tile.rows,
          /*fresh=*/begin == 0 && !tile.rows.empty());
    }
  }
  return w.residual(y);
}

Program build_gather(const Task& task) { return build(task, Verb::gather); }
Program build_pass(const Task& task) { return build(task, Verb::pass); }

std::vector<std::int64_t> other_tiles(const Task& /*task*/) { return {4, 16}; }

// Each tile is ops of its own: a plan of thousands is a slip, and takes as long to look at.
constexpr std::int64_t kMostTiles = 256;

std::string too_many_tiles(std::int64_t value, const Task& /*task*/) {
  return value > kMostTiles ? "at most " + std::to_string(kMostTiles) +
                                  ": smaller tiles take longer and save nothing"
                            : "";
}

}  // namespace

Option token_tiles_option() {
  return {
      .name = kTilesOption,
      .meaning =
          "Number of tiles of a rank's tokens (in attention: of its lines) that run one after the "
          "other (default: 1)",
      .why_not = too_many_tiles,
      .candidates = other_tiles};
}

Strategy mlp_gather() {
  return {
      .kind = "mlp",
      .name = "gather",
      .verb = Verb::gather,
      .build = build_gather,
      .options = {token_tiles_option()},
      .summary = "each rank has its own tokens; weights are gathered"};
}

Strategy mlp_pass() {
  return {
      .kind = "mlp",
      .name = "pass",
      .verb = Verb::pass,
      .build = build_pass,
      .options = {token_tiles_option()},
      .summary = "each rank has its own tokens; weights are streamed, piece by piece of the width"};
}

}  // namespace paradyse
