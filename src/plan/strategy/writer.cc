#include "src/plan/strategy/writer.h"

#include <algorithm>

namespace paradyse {

Writer::Writer(const Task& task, PartWeights weights, std::string strategy, bool has_input)
    : weights_(std::move(weights)) {
  program_.part = weights_.part;
  program_.strategy = std::move(strategy);
  program_.tokens = task.tokens;
  program_.domain = task.domain;
  program_.head_dim = task.model->head_dim;
  if (has_input) {
    program_.input = value("x", {task.tokens.tokens(), task.model->hidden}, by_tokens());
  }
}

ValueId Writer::value(const std::string& name, Extent whole, Placement placement, Element element) {
  program_.values.push_back(
      {.name = name, .whole = whole, .placement = std::move(placement), .element = element});
  return static_cast<ValueId>(program_.values.size()) - 1;
}

Op& Writer::op(
    OpKind kind, std::vector<ValueId> in, std::vector<ValueId> out, std::vector<ValueId> needs) {
  program_.ops.push_back(
      {.kind = kind, .in = std::move(in), .out = std::move(out), .needs = std::move(needs)});
  return program_.ops.back();
}

ValueId Writer::hold() {
  const ValueId w = value("w", {weights_.rows(), weights_.cols}, shard(0, weights_.cuts()));
  program_.values.back().over_domain = true;
  op(OpKind::hold_weights, {}, {w}, {}).recompute = true;
  return w;
}

ValueId Writer::gather() { return gather(0, weights_.matrices.size() - 1); }

ValueId Writer::gather(std::size_t first_matrix, std::size_t last_matrix) {
  const Extent stack{weights_.rows(), weights_.cols};
  Piece wanted;
  append(wanted, {weights_.rows_of(first_matrix).begin, weights_.rows_of(last_matrix).end});
  const Placement everywhere = shard(0, Cuts(static_cast<std::size_t>(program_.domain), wanted));
  const ValueId w = value("w_gathered", stack, everywhere);
  program_.values.back().over_domain = true;
  Op& gather = op(OpKind::gather_weights, {}, {w}, {});
  gather.recompute = true;
  gather.transfers = {transfer(stack, shard(0, weights_.cuts()), everywhere, program_.domain)};
  return w;
}

ValueId Writer::norm(ValueId x) {
  const Value& in = program_.values[static_cast<std::size_t>(x)];
  const ValueId xn = value(in.name + "n", in.whole, in.placement);
  op(OpKind::norm, {x}, {xn}, {x});
  return xn;
}

ValueId Writer::linear(
    ValueId x,
    const std::vector<ValueId>& weights,
    std::vector<std::vector<Term>> terms,
    const std::string& name,
    Placement placement,
    std::int64_t width) {
  const std::int64_t rows = program_.values[static_cast<std::size_t>(x)].whole.rows;
  const ValueId y = value(name, {rows, width}, std::move(placement));
  std::vector<ValueId> in = {x};
  in.insert(in.end(), weights.begin(), weights.end());
  op(OpKind::linear, in, {y}, in).terms = std::move(terms);
  return y;
}

ValueId Writer::linear_transposed(
    ValueId x, ValueId weights, std::vector<std::vector<Term>> terms, Placement placement) {
  const std::int64_t rows = program_.values[static_cast<std::size_t>(x)].whole.rows;
  const ValueId y = value("y", {rows, weights_.cols}, std::move(placement));
  Op& linear = op(OpKind::linear, {x, weights}, {y}, {x, weights});
  linear.terms = std::move(terms);
  linear.transposed = true;
  return y;
}

ValueId Writer::rope(ValueId qkv, std::vector<Heads> heads) {
  const Value in = program_.values[static_cast<std::size_t>(qkv)];
  const ValueId out = value("qkv_rotated", in.whole, in.placement);
  Op& rope = op(OpKind::rope, {qkv}, {out}, {});
  rope.heads = std::move(heads);
  rope.in_place = true;
  return out;
}

ValueId Writer::attention(ValueId qkv, std::vector<Heads> heads, Placement out) {
  std::int64_t queries = 0;
  for (const Heads& h : heads) {
    queries = std::max(queries, h.query.end);
  }
  const std::int64_t tokens = program_.tokens.tokens();
  const std::int64_t D = program_.head_dim;
  Placement statistics = out;
  for (Piece& piece : statistics.cuts) {
    if (out.dim == 1) {
      for (Interval& interval : piece) {
        interval = {interval.begin / D, interval.end / D};
      }
    }
  }
  const ValueId o = value("o", {tokens, queries * D}, std::move(out));
  const ValueId l = value("l", {tokens, queries}, std::move(statistics), Element::statistic);
  op(OpKind::attention, {qkv}, {o, l}, {qkv, o, l}).heads = std::move(heads);
  return o;
}

ValueId Writer::swiglu(ValueId gate_up, Placement out) {
  const Extent in = program_.values[static_cast<std::size_t>(gate_up)].whole;
  const ValueId a = value("a", {in.rows, in.cols / 2}, std::move(out));
  op(OpKind::swiglu, {gate_up}, {a}, {gate_up});
  return a;
}

ValueId Writer::redistribute(ValueId x, const Placement& to, const std::string& name, bool again) {
  if (program_.ranks() == 1) {
    return x;  // every placement over one rank is the same
  }
  const Value in = program_.values[static_cast<std::size_t>(x)];
  const Redistribution row = redistribution(in.placement, to);
  const ValueId y = value(name, in.whole, to);
  Op& move = op(OpKind::redistribute, {x}, {y}, {});
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

std::vector<Transfer> Writer::vocabulary_tiles() const {
  const Extent stack{weights_.rows(), weights_.cols};
  std::vector<Transfer> tiles;
  for (std::int64_t begin = 0; begin < stack.rows; begin += kVocabularyTile) {
    Piece rows;
    append(rows, {begin, std::min(begin + kVocabularyTile, stack.rows)});
    const Placement everywhere = shard(0, Cuts(static_cast<std::size_t>(program_.domain), rows));
    tiles.push_back(transfer(stack, shard(0, weights_.cuts()), everywhere, program_.domain));
  }
  return tiles;
}

ValueId Writer::embed() {
  const ValueId x = value("x", {program_.tokens.tokens(), weights_.cols}, by_tokens());
  op(OpKind::embed, {}, {x}, {}).transfers = vocabulary_tiles();
  program_.output = x;
  return x;
}

void Writer::cross_entropy(ValueId xn, bool keep) {
  const Value in = program_.values[static_cast<std::size_t>(xn)];
  std::vector<ValueId> out;
  if (keep) {
    out = {value("d", in.whole, in.placement)};
  }
  op(OpKind::cross_entropy, {xn}, out, out).transfers = vocabulary_tiles();
}

Program Writer::residual(ValueId y) {
  const Value in = program_.values[static_cast<std::size_t>(program_.input)];
  program_.output = value("out", in.whole, in.placement);
  op(OpKind::add, {program_.input, y}, {program_.output}, {}).in_place = true;
  return finish();
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
