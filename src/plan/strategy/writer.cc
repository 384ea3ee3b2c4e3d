#include "paradyse/plan/writer.h"

#include <algorithm>

#include "paradyse/plan/op_traits.h"

namespace paradyse {

Writer::Writer(const Task& task, PartWeights weights, std::string strategy, bool has_input)
    : model_(task.model), dropout_(task.dropout), weights_(std::move(weights)) {
  program_.part = weights_.part;
  program_.strategy = std::move(strategy);
  program_.tokens = task.tokens;
  program_.domain = task.domain;
  program_.head_dim = task.model->head_dim;
  if (has_input) {
    program_.reads = {{"x", value("x", {task.tokens.tokens(), task.model->hidden}, by_tokens())}};
  }
}

ValueId Writer::value(const std::string& name, Extent whole, Placement placement, Element element) {
  program_.values.push_back(
      {.name = name, .whole = whole, .placement = std::move(placement), .element = element});
  return static_cast<ValueId>(program_.values.size()) - 1;
}

Op& Writer::op(OpKind kind, std::vector<ValueId> in, std::vector<ValueId> out) {
  program_.ops.push_back(
      {.kind = kind,
       .in = std::move(in),
       .out = std::move(out),
       .recompute = traits(kind).weights || (recompute_ && !traits(kind).core)});
  return program_.ops.back();
}

std::vector<TokenTile> Writer::token_tiles(int count) const {
  if (count <= 1) {
    return {{.rows = {}, .placement = by_tokens()}};
  }
  std::vector<TokenTile> tiles;
  for (int i = 0; i < count; ++i) {
    std::vector<Interval> rows;
    Cuts tokens;
    for (const Piece& mine : program_.tokens.cuts) {
      const Piece cut = even_cuts(size(mine), count)[static_cast<std::size_t>(i)];
      rows.push_back(cut.empty() ? Interval{} : cut.front());
      tokens.push_back(slice(mine, rows.back()));
    }
    tiles.push_back({std::move(rows), shard(0, std::move(tokens))});
  }
  return tiles;
}

ValueId Writer::hold() {
  const ValueId w = value("w", {weights_.rows(), weights_.cols}, shard(0, weights_.cuts()));
  program_.values.back().over_domain = true;
  op(OpKind::hold_weights, {}, {w});
  return w;
}

ValueId Writer::gather() { return gather(0, weights_.matrices.size() - 1); }

ValueId Writer::gather(std::size_t first_matrix, std::size_t last_matrix) {
  Piece rows;
  append(rows, {weights_.rows_of(first_matrix).begin, weights_.rows_of(last_matrix).end});
  return gather(rows);
}

ValueId Writer::gather(const Piece& rows, bool wide_gradient) {
  const Extent stack{weights_.rows(), weights_.cols};
  const Placement everywhere = shard(0, Cuts(static_cast<std::size_t>(program_.domain), rows));
  const ValueId w = value("w_gathered", stack, everywhere);
  program_.values.back().over_domain = true;
  program_.values.back().wide_gradient = wide_gradient;
  Op& gather = op(OpKind::gather_weights, {}, {w});
  gather.transfers = {transfer(stack, shard(0, weights_.cuts()), everywhere, program_.domain)};
  return w;
}

ValueId Writer::normed_input() { return model_->post_norm ? input() : norm(input()); }

ValueId Writer::qkv(
    ValueId xn,
    const std::vector<ValueId>& weights,
    std::vector<std::vector<Term>> terms,
    const std::vector<Heads>& heads,
    const std::string& name,
    Placement placement) {
  const ValueId y = bias(
      linear(xn, weights, std::move(terms), name, std::move(placement), qkv_width(*model_)),
      Role::in_bias);
  return prepared(y, heads);
}

Writer::QueriesAndKeys Writer::q_and_kv(ValueId xn, ValueId stack, Heads mine) {
  const std::int64_t D = model_->head_dim;
  const std::int64_t q_rows = mine.query.size() * D;
  const std::int64_t kv_rows = 2 * mine.key.size() * D;
  // `taken`: of these heads.
  const auto part = [&](const char* name, Interval rows, Heads taken) {
    const ValueId y =
        linear(xn, {stack}, same_terms(ranks(), rows), name, by_tokens(), rows.size());
    const Piece columns = qkv_columns(*model_, {taken}).front();
    return prepared(
        bias(y, Role::in_bias, columns),
        std::vector<Heads>(static_cast<std::size_t>(ranks()), taken));
  };
  return {
      .q = part("q", {0, q_rows}, {.query = mine.query, .key = {}}),
      .kv = part("kv", {q_rows, q_rows + kv_rows}, {.query = {}, .key = mine.key})};
}

ValueId Writer::prepared(ValueId y, const std::vector<Heads>& heads) {
  const ValueId normed = model_->qk_norm ? qk_norm(y, heads) : y;
  return model_->learned_positions ? normed : rope(normed, heads);
}

ValueId Writer::norm(ValueId x) {
  const Value& in = program_.values[static_cast<std::size_t>(x)];
  const ValueId xn = value(in.name + "n", in.whole, in.placement);
  op(OpKind::norm, {x}, {xn}).vectors = weights_.vectors_of(Role::norm);
  return xn;
}

ValueId Writer::bias(ValueId y, Role role) {
  const Value& in = program_.values[static_cast<std::size_t>(y)];
  Piece whole;
  append(whole, {0, in.whole.cols});
  const bool by_columns = in.placement.kind == Placement::Kind::shard && in.placement.dim == 1;
  return add_bias(
      y, role, by_columns ? in.placement.cuts : Cuts(static_cast<std::size_t>(ranks()), whole));
}

ValueId Writer::bias(ValueId y, Role role, const Piece& entries) {
  return add_bias(y, role, Cuts(static_cast<std::size_t>(ranks()), entries));
}

ValueId Writer::add_bias(ValueId y, Role role, Cuts entries) {
  const Interval vectors = weights_.vectors_of(role);
  if (vectors.empty()) {
    return y;
  }
  const Value in = program_.values[static_cast<std::size_t>(y)];
  const ValueId out = value(in.name + "b", in.whole, in.placement);
  Op& bias = op(OpKind::bias, {y}, {out});
  bias.entries = std::move(entries);
  bias.vectors = vectors;
  bias.in_place = true;
  return out;
}

ValueId Writer::dropout(ValueId y, double probability) {
  if (!dropout_ || probability == 0) {
    return y;
  }
  const Value in = program_.values[static_cast<std::size_t>(y)];
  const ValueId out = value(in.name + "d", in.whole, in.placement);
  Op& dropout = op(OpKind::dropout, {y}, {out});
  dropout.probability = probability;
  dropout.in_place = true;
  return out;
}

ValueId Writer::linear(
    ValueId x,
    const std::vector<ValueId>& weights,
    std::vector<std::vector<Term>> terms,
    const std::string& name,
    Placement placement,
    std::int64_t width,
    std::vector<Interval> tile) {
  // Of a matrix that all ranks have all of, a tile is the same rows on each.
  const bool by_columns = placement.dim == 1;
  const std::int64_t rows = tile.empty() || !by_columns
                                ? program_.values[static_cast<std::size_t>(x)].whole.rows
                                : tile.front().size();
  const ValueId y = value(name, {rows, width}, std::move(placement));
  std::vector<ValueId> in = {x};
  in.insert(in.end(), weights.begin(), weights.end());
  Op& linear = op(OpKind::linear, std::move(in), {y});
  linear.terms = std::move(terms);
  linear.tile = std::move(tile);
  return y;
}

ValueId Writer::linear_transposed(
    ValueId x,
    ValueId weights,
    std::vector<std::vector<Term>> terms,
    Placement placement,
    ValueId onto,
    std::vector<Interval> tile,
    bool fresh) {
  const ValueId y = value("y", {program_.tokens.tokens(), weights_.cols}, std::move(placement));
  Op& linear = op(OpKind::linear, {x, weights}, {y});
  linear.terms = std::move(terms);
  linear.transposed = true;
  linear.tile = std::move(tile);
  if (onto >= 0) {
    linear.in.push_back(onto);
    linear.in_place = true;
    linear.fresh = fresh;
  }
  return y;
}

ValueId Writer::qk_norm(ValueId qkv, const std::vector<Heads>& heads) {
  const Value in = program_.values[static_cast<std::size_t>(qkv)];
  const ValueId out = value(in.name + "_normed", in.whole, in.placement);
  Op& norm = op(OpKind::qk_norm, {qkv}, {out});
  norm.vectors = weights_.vectors_of(Role::qk_norm);
  norm.heads = heads;
  return out;
}

ValueId Writer::rope(ValueId qkv, std::vector<Heads> heads) {
  const Value in = program_.values[static_cast<std::size_t>(qkv)];
  const ValueId out = value(in.name + "_rotated", in.whole, in.placement);
  Op& rope = op(OpKind::rope, {qkv}, {out});
  rope.heads = std::move(heads);
  rope.in_place = true;
  return out;
}

ValueId Writer::attention(std::vector<ValueId> in, std::vector<Heads> heads, Placement out) {
  return attend(OpKind::attention, std::move(in), std::move(heads), std::move(out));
}

ValueId Writer::ring_attention(ValueId q, ValueId kv, std::vector<Heads> heads, int stride) {
  const ValueId o = attend(
      OpKind::ring_attention,
      {q, kv},
      std::move(heads),
      program_.values[static_cast<std::size_t>(q)].placement);
  program_.ops.back().stride = stride;
  return o;
}

ValueId Writer::score_attention(ValueId q, ValueId kv, std::vector<Heads> heads) {
  const Value queries = program_.values[static_cast<std::size_t>(q)];
  const ValueId o = value("o", queries.whole, queries.placement);
  ScoreMatrix scores = score_matrix(program_.tokens, heads.front().query.size());
  const ValueId p = value("p", scores.whole, std::move(scores.placement));
  op(OpKind::score_attention, {q, kv}, {o, p}).heads = std::move(heads);
  return o;
}

ValueId Writer::attend(
    OpKind kind, std::vector<ValueId> in, std::vector<Heads> heads, Placement out) {
  std::int64_t queries = 0;
  for (const Heads& h : heads) {
    queries = std::max(queries, h.query.end);
  }
  const std::int64_t tokens = program_.tokens.tokens();
  const std::int64_t D = program_.head_dim;
  Placement statistics = out;  // one column a head
  for (Piece& piece : out.dim == 1 ? statistics.cuts : statistics.across) {
    for (Interval& interval : piece) {
      interval = {interval.begin / D, interval.end / D};
    }
  }
  const ValueId o = value("o", {tokens, queries * D}, std::move(out));
  const ValueId l = value("l", {tokens, queries}, std::move(statistics), Element::statistic);
  op(kind, std::move(in), {o, l}).heads = std::move(heads);
  return o;
}

ValueId Writer::activation(ValueId h, Placement out) {
  const Extent in = program_.values[static_cast<std::size_t>(h)].whole;
  const bool gated = model_->gated();
  const ValueId a = value("a", {in.rows, gated ? in.cols / 2 : in.cols}, std::move(out));
  op(gated ? OpKind::swiglu : OpKind::activation, {h}, {a});
  return a;
}

ValueId Writer::redistribute(ValueId x, const Placement& to, const std::string& name, bool again) {
  if (program_.ranks() == 1) {
    return x;  // every placement over one rank is the same
  }
  const Value in = program_.values[static_cast<std::size_t>(x)];
  const Redistribution row = redistribution(in.placement, to);
  const ValueId y = value(name, in.whole, to);
  Op& move = op(OpKind::redistribute, {x}, {y});
  move.collective = row.forward;
  move.adjoint_collective = row.backward;
  move.recompute = again;
  // A reduce-scatter runs the table of its adjoint, the all-gather, backwards.
  move.transfers = {
      row.forward == Collective::reduce_scatter
          ? transfer(in.whole, to, replicate(), program_.ranks())
          : transfer(in.whole, in.placement, to, program_.ranks())};
  return y;
}

std::vector<Transfer> Writer::tiles(std::int64_t rows) const {
  const Extent stack{weights_.rows(), weights_.cols};
  std::vector<Transfer> tiles;
  for (std::int64_t begin = 0; begin < rows; begin += kVocabularyTile) {
    Piece tile;
    append(tile, {begin, std::min(begin + kVocabularyTile, rows)});
    const Placement everywhere = shard(0, Cuts(static_cast<std::size_t>(program_.domain), tile));
    tiles.push_back(transfer(stack, shard(0, weights_.cuts()), everywhere, program_.domain));
  }
  return tiles;
}

ValueId Writer::embed() {
  const ValueId x = value("x", {program_.tokens.tokens(), weights_.cols}, by_tokens());
  op(OpKind::embed, {}, {x}).transfers = tiles(weights_.rows());
  return x;
}

Program Writer::cross_entropy(ValueId xn, bool keep) {
  const Value in = program_.values[static_cast<std::size_t>(xn)];
  std::vector<ValueId> out;
  if (keep) {
    out = {value("d", in.whole, in.placement)};
  }
  Op& loss = op(OpKind::cross_entropy, {xn}, std::move(out));
  loss.transfers = tiles(weights_.rows_of(0).end);
  loss.vectors = weights_.vectors_of(Role::out_bias);
  return finish(-1);
}

Program Writer::residual(ValueId y) {
  // Weights that passed by leave y's gradient to be read by shard after shard, while that of their
  // input grows; without a norm between them the input is x itself.
  const bool apart = recompute_ && model_->post_norm;
  recompute_ = false;  // a norm after the sum would make all of it again
  const ValueId added = dropout(bias(y, Role::out_bias), model_->residual_dropout);
  const Value in = program_.values[static_cast<std::size_t>(input())];
  const ValueId sum = value("out", in.whole, in.placement);
  Op& add = op(OpKind::add, {input(), added}, {sum});
  add.in_place = true;
  add.apart = apart;
  return finish(model_->post_norm ? norm(sum) : sum);
}

Program Writer::finish(ValueId output) {
  if (output >= 0) {
    program_.writes = {{"x", output}};
  }
  for (Op& op : program_.ops) {
    op.needs = traits(op.kind).needs(op);
  }
  return std::move(program_);
}

std::int64_t qkv_width(const ModelShape& model) {
  return (model.heads + 2 * model.kv_heads) * model.head_dim;
}

Cuts qkv_columns(const ModelShape& model, const std::vector<Heads>& heads) {
  const std::int64_t D = model.head_dim;
  const std::int64_t keys = model.heads * D;
  const std::int64_t values = keys + model.kv_heads * D;
  Cuts cuts;
  for (const Heads& h : heads) {
    Piece piece;
    append(piece, {h.query.begin * D, h.query.end * D});
    append(piece, {keys + h.key.begin * D, keys + h.key.end * D});
    append(piece, {values + h.key.begin * D, values + h.key.end * D});
    cuts.push_back(piece);
  }
  return cuts;
}

Cuts output_columns(const ModelShape& model, const std::vector<Heads>& heads) {
  Cuts cuts;
  for (const Heads& h : heads) {
    Piece piece;
    append(piece, {h.query.begin * model.head_dim, h.query.end * model.head_dim});
    cuts.push_back(piece);
  }
  return cuts;
}

std::vector<std::vector<Term>> same_terms(int ranks, Interval rows) {
  return std::vector<std::vector<Term>>(
      static_cast<std::size_t>(ranks), {Term{.operand = 1, .rows = rows}});
}

}  // namespace paradyse
