// The MLP under either weight verb, gated (SwiGLU, Shazeer 2020) or not, and the ends of the model.
#include <algorithm>

#include "paradyse/plan/writer.h"

namespace paradyse {

namespace {

// Every rank's tokens, whose weights come whole, or (`pass`) a piece of the width after the other.
Program mlp_of_own_tokens(const Task& task, Verb verb) {
  const int p = task.tokens.ranks();
  Writer w(task, mlp_weights(*task.model, task.domain), to_string(verb));
  const std::int64_t F = task.model->ffn;
  const std::size_t down = w.weights().matrices.size() - 1;  // what stands before it makes h
  const std::int64_t in_width = w.weights().rows_of(down).begin;

  const ValueId xn = w.normed_input();
  if (verb == Verb::pass || task.token_tiles > 1) {  // what is made bit by bit is made again
    w.recompute_from_here();
  }
  ValueId y = -1;
  for (const Piece& piece : even_cuts(F, verb == Verb::pass ? p : 1)) {
    if (piece.empty()) {
      continue;
    }
    const auto [begin, end] = piece.front();
    Piece columns;  // of the whole h
    for (std::int64_t first = 0; first < in_width; first += F) {
      append(columns, {first + begin, first + end});
    }
    Piece rows = columns;
    append(rows, {in_width + begin, in_width + end});
    const ValueId stack = w.gather(rows, /*wide_gradient=*/task.token_tiles > 1);
    const std::int64_t width = size(columns);
    for (const TokenTile& tile : w.token_tiles(task.token_tiles)) {
      const ValueId h =
          w.linear(xn, {stack}, same_terms(p, {0, width}), "h", tile.placement, width, tile.rows);
      const ValueId a = w.activation(w.bias(h, Role::in_bias, columns), tile.placement);
      y = w.linear_transposed(
          a,
          stack,
          same_terms(p, {width, width + end - begin}),
          w.by_tokens(),
          y,
          tile.rows,
          /*fresh=*/begin == 0 && !tile.rows.empty());
    }
  }
  return w.residual(y);
}

// All tokens, each rank with its own piece of the width.
Program mlp_of_all_tokens(const Task& task) {
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
      task.token_tiles, 1, std::max<std::int64_t>(1, task.tokens.tokens())));
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

Program mlp_program(const Task& task, Verb verb) {
  return verb == Verb::hold ? mlp_of_all_tokens(task) : mlp_of_own_tokens(task, verb);
}

Program embedding_program(const Task& task) {
  Writer w(task, embedding_weights(*task.model, task.domain), "gather", /*has_input=*/false);
  ValueId x = w.embed();
  if (!w.weights().vectors.empty()) {
    x = w.norm(x);
  }
  return w.finish(w.dropout(x, task.model->embedding_dropout));
}

Program transform_program(const Task& task) {
  const std::int64_t H = task.model->hidden;
  Writer w(task, transform_weights(*task.model, task.domain), "gather");
  const ValueId stack = w.gather();
  const ValueId h =
      w.linear(w.input(), {stack}, same_terms(task.tokens.ranks(), {0, H}), "h", w.by_tokens(), H);
  return w.finish(w.norm(w.activation(w.bias(h, Role::in_bias), w.by_tokens())));
}

Program head_program(const Task& task, bool keep) {
  Writer w(task, head_weights(*task.model, task.domain), "gather");
  const bool normed = !w.weights().vectors_of(Role::norm).empty();
  return w.cross_entropy(normed ? w.norm(w.input()) : w.input(), keep);
}

}  // namespace paradyse
