#include "paradyse/plan/writer.h"

#include <algorithm>
#include <limits>
#include <stdexcept>

#include "paradyse/plan/detail/index.h"
#include "paradyse/plan/detail/op_traits.h"

namespace paradyse {

Writer::Writer(const Task& task)
    : part_(task.part), training_(task.training), weights_(part_->weights(task.domain)) {
  program_.part = part_->name;
  program_.strategy = task.choice.strategy;
  program_.shape = part_->shape;
  program_.documents = task.documents;
  program_.domain = task.domain;
  for (const std::string& stream : part_->reads) {
    program_.reads.push_back({stream, value(stream, task.streams.at(stream))});
  }
  rows_ = task.streams.at(part_->reads.empty() ? part_->writes.front() : part_->reads.front());
}

ValueId Writer::input(const std::string& stream) const {
  const auto found = std::ranges::find(program_.reads, stream, &Port::stream);
  if (found == program_.reads.end()) {
    throw std::logic_error(program_.part + ": reads no tensor '" + stream + "'");
  }
  return found->value;
}

ValueId Writer::value(const std::string& name, Layout layout, Element element) {
  program_.values.push_back({.name = name, .layout = std::move(layout), .element = element});
  return static_cast<ValueId>(program_.values.size()) - 1;
}

Layout Writer::own_rows(std::int64_t columns) const { return rows_.with_columns(columns); }

Layout Writer::all_rows(std::int64_t columns, Cuts cuts) const {
  return rows_.whole().with_columns(columns, std::move(cuts));
}

void Writer::expect_whole_rows(ValueId x, const char* what) const {
  if (layout(x).cuts_columns()) {
    throw std::invalid_argument(
        program_.part + ": " + what + " takes whole rows, and " + to_string(layout(x)) +
        " shards them: shard the tensor along another dim");
  }
}

void Writer::expect_own_queries(ValueId q) const {
  const std::vector<Dim>& dims = layout(q).dims;
  for (std::size_t d = 0; d + 2 < dims.size(); ++d) {
    if (!dims[d].cuts.empty() && ranks() > 1) {
      throw std::invalid_argument(
          program_.part + ": in a ring the ranks have parts of the same lines, but '" +
          dims[d].name + "' is sharded: shard the tensor along S(" + dims[dims.size() - 2].name +
          ")");
    }
  }
  if (!is_partition(layout(q), ranks())) {
    throw std::invalid_argument(
        program_.part +
        ": in a ring every rank needs its own queries, but some have copies: shard the tensor over "
        "all ranks");
  }
}

Op& Writer::op(OpKind kind, std::vector<ValueId> in, std::vector<ValueId> out) {
  return append(
      program_,
      {.kind = kind,
       .in = std::move(in),
       .out = std::move(out),
       .recompute = traits(kind).weights || (recompute_ && !traits(kind).core)});
}

std::vector<TokenTile> Writer::tiles(const Layout& layout, std::int64_t wanted) const {
  // Rows of the first row dim of which somebody has several stand one after the other, and so do
  // those of the next dim at one index of that.  The last, of a line, stays whole where there are
  // others.
  const auto most_of = [&](std::size_t d) {
    std::int64_t most = 1;
    for (int r = 0; r < ranks(); ++r) {
      most = std::max(most, size(layout.dims[d].piece(r)));
    }
    return std::min<std::int64_t>(most, std::numeric_limits<int>::max());
  };
  const auto may_be_cut = [&](std::size_t d) { return d == 0 || d + 2 < layout.dims.size(); };
  std::size_t outer = 0;
  while (most_of(outer) == 1 && may_be_cut(outer + 1)) {
    ++outer;
  }
  const std::int64_t of_outer = most_of(outer);
  const bool nested = wanted > of_outer && may_be_cut(outer + 1);
  const auto inner_tiles = static_cast<int>(
      nested ? std::min((wanted + of_outer - 1) / of_outer, most_of(outer + 1)) : 1);
  const auto outer_tiles = static_cast<int>(std::min(wanted, of_outer));
  if (outer_tiles * inner_tiles <= 1) {
    return {{.rows = {}, .layout = layout}};
  }
  const Dim& dim = layout.dims[outer];
  std::vector<TokenTile> tiles;
  for (int i = 0; i < outer_tiles; ++i) {
    for (int j = 0; j < inner_tiles; ++j) {
      TokenTile& tile = tiles.emplace_back();
      Cuts of_dim;
      Cuts of_next;
      for (int r = 0; r < ranks(); ++r) {
        const auto mine = [](const Cuts& cuts, int at) {
          return cuts[idx(at)].empty() ? Interval{} : cuts[idx(at)].front();
        };
        const std::int64_t held = size(dim.piece(r));
        const std::int64_t each = held == 0 ? 0 : layout.extent(r).rows / held;
        const Interval here = mine(even_cuts(held, outer_tiles), i);
        of_dim.push_back(slice(dim.piece(r), here));
        if (inner_tiles == 1) {
          tile.rows.push_back({here.begin * each, here.end * each});
          continue;
        }
        const Dim& next = layout.dims[outer + 1];
        const std::int64_t of_it = size(next.piece(r));
        const std::int64_t inside = of_it == 0 ? 0 : each / of_it;
        const Interval there = here.empty() ? Interval{} : mine(even_cuts(of_it, inner_tiles), j);
        of_next.push_back(slice(next.piece(r), there));
        const std::int64_t first = here.begin * each;
        tile.rows.push_back({first + there.begin * inside, first + there.end * inside});
      }
      tile.layout = layout.cut(dim.name, std::move(of_dim));
      if (inner_tiles > 1) {
        tile.layout = tile.layout.cut(layout.dims[outer + 1].name, std::move(of_next));
      }
    }
  }
  return tiles;
}

ValueId Writer::hold(bool wide_gradient) {
  held_ = part_->weights(ranks());
  if (ranks() != program_.domain && program_.domain > 1) {
    const Layout of_group = held_.stack();
    Cuts wanted;
    wanted.reserve(idx(program_.domain));
    for (int d = 0; d < program_.domain; ++d) {
      wanted.push_back(of_group.columns().piece(d % ranks()));
    }
    return gather(std::move(wanted), wide_gradient);
  }
  return hold_stack();
}

ValueId Writer::hold_stack() {
  const ValueId w = value("w", weights_.stack());
  program_.values.back().over_domain = true;
  op(OpKind::hold_weights, {}, {w}).frozen = weights_.frozen;
  return w;
}

ValueId Writer::gather(bool wide_gradient) {
  return gather(
      {weights_.between(weights_.matrices.front().name, weights_.matrices.back().name)},
      wide_gradient);
}

ValueId Writer::gather(const std::vector<WeightRows>& rows, bool wide_gradient) {
  Piece elements;
  for (const WeightRows& some : rows) {
    for (const Interval run : some.elements) {
      append(elements, run);
    }
  }
  return gather(Cuts(idx(program_.domain), elements), wide_gradient);
}

Redistribution Writer::gathered(Cuts wanted) const {
  const Layout stack = weights_.stack();
  return {stack, stack.cut("elements", std::move(wanted)), program_.domain};
}

ValueId Writer::gather(Cuts wanted, bool wide_gradient) {
  if (program_.domain == 1) {
    return hold_stack();  // all is there
  }
  Redistribution copy = gathered(std::move(wanted));
  const ValueId w = value("w_gathered", copy.to());
  program_.values.back().over_domain = true;
  program_.values.back().wide_gradient = wide_gradient;
  Op& gather = op(OpKind::gather_weights, {}, {w});
  gather.copies = {std::move(copy)};
  gather.frozen = weights_.frozen;
  return w;
}

std::vector<Term> Writer::runs(
    ValueId weights, const WeightRows& rows, int rank, int operand) const {
  std::vector<Term> found;
  const Piece stored = layout(weights).columns().piece(rank % program_.domain);
  std::int64_t next = -1;  // where another run would be the last one's neighbour
  for (const Interval run : rows.elements) {
    std::int64_t before = 0;
    const auto holder = std::ranges::find_if(stored, [&](Interval has) {
      const bool inside = has.begin <= run.begin && run.end <= has.end;
      before += inside ? run.begin - has.begin : has.size();
      return inside;
    });
    if (holder == stored.end()) {
      throw std::logic_error(
          program_.part + ": rank " + std::to_string(rank) + " has not all rows of a term of " +
          program_.values[idx(weights)].name);
    }
    if (next != before) {
      found.push_back({.operand = operand, .first = before, .rows = 0, .cols = rows.cols});
    }
    found.back().rows += run.size() / rows.cols;
    next = before + run.size();
  }
  if (found.empty()) {  // of a rank without rows
    found.push_back({.operand = operand, .rows = 0, .cols = rows.cols});
  }
  return found;
}

Term Writer::term(ValueId weights, const WeightRows& rows, int rank, int operand) const {
  const std::vector<Term> found = runs(weights, rows, rank, operand);
  if (found.size() > 1) {
    throw std::logic_error(
        program_.part + ": rank " + std::to_string(rank) + " has the rows of a term of " +
        program_.values[idx(weights)].name + ", but not one after the other");
  }
  return found.front();
}

std::vector<std::vector<Term>> Writer::terms(ValueId weights, const WeightRows& rows) const {
  return std::vector<std::vector<Term>>(idx(ranks()), runs(weights, rows));
}

ValueId Writer::normed_input() {
  if (!part_->shape.condition.empty()) {
    return adaptive_norm(input());
  }
  const bool normed = !part_->shape.post_norm && !weights_.vectors_of(Role::norm).empty();
  return normed ? norm(input()) : input();
}

Layout Writer::lined_up(const Layout& layout) const { return layout.along(part_->along); }

ValueId Writer::lined_up(ValueId x) { return redistribute(x, lined_up(layout(x)), "x_lines"); }

ValueId Writer::pair_bias(
    ValueId xn, ValueId stack, Layout queries, const std::vector<Heads>& heads) {
  const PartShape& shape = part_->shape;
  if (shape.pair.empty()) {
    return -1;
  }
  const ValueId pair = input(shape.pair);
  const ValueId zn = pair == input() ? xn : norm(pair, Role::pair_norm);
  const ValueId made = linear(
      zn,
      {stack},
      terms(stack, weights_.rows("bias")),
      "bias",
      layout(zn).with_columns(shape.heads));
  // Rows are queries, then keys: along the part's dim where the pair is the part's own stream.
  Layout all = layout(made).whole();
  all = pair == input() ? lined_up(all) : all;
  all.dims.front().cuts = std::move(queries.dims.at(queries.dims.size() - 2).cuts);
  Cuts columns;
  for (const Heads& mine : heads) {
    append(columns.emplace_back(), mine.query);
  }
  const bool all_heads = std::ranges::all_of(
      heads, [&](const Heads& mine) { return mine.query.size() == shape.heads; });
  return redistribute(
      made, all.with_columns(shape.heads, all_heads ? Cuts{} : std::move(columns)), "bias_all");
}

ValueId Writer::gated_heads(
    ValueId o, ValueId xn, ValueId stack, const std::vector<Interval>& tile) {
  if (!part_->shape.gated_heads) {
    return o;
  }
  const ValueId g =
      linear(xn, {stack}, terms(stack, weights_.rows("gate")), "g", Layout(layout(o)), tile);
  return gate(o, bias(g, Role::gate));
}

ValueId Writer::qkv(
    ValueId xn,
    const std::vector<ValueId>& weights,
    std::vector<std::vector<Term>> terms,
    const std::vector<Heads>& heads,
    const std::string& name,
    Layout layout,
    std::vector<Interval> tile) {
  const ValueId y = linear(xn, weights, std::move(terms), name, std::move(layout), std::move(tile));
  return prepared(bias(y, Role::in_bias), heads);
}

Writer::QueriesAndKeys Writer::q_and_kv(ValueId xn, ValueId stack, Heads mine) {
  const std::int64_t D = part_->shape.head_dim;
  const auto rows = [&](const char* first, const char* last, Interval heads) {
    return weights_.between(first, last, {heads.begin * D, heads.end * D});
  };
  // `taken`: of these heads.
  const auto part = [&](const char* name, const WeightRows& matrix, Heads taken) {
    const Layout made = layout(xn).with_columns(matrix.rows());
    const ValueId y = linear(xn, {stack}, terms(stack, matrix), name, made);
    const Piece columns = qkv_columns(part_->shape, {taken}).front();
    return prepared(bias(y, Role::in_bias, columns), std::vector<Heads>(idx(ranks()), taken));
  };
  return {
      .q = part("q", rows("q", "q", mine.query), {.query = mine.query, .key = {}}),
      .kv = part("kv", rows("k", "v", mine.key), {.query = {}, .key = mine.key})};
}

ValueId Writer::prepared(ValueId y, const std::vector<Heads>& heads) {
  const ValueId normed = part_->shape.qk_norm ? qk_norm(y, heads) : y;
  return part_->shape.rope ? rope(normed, heads) : normed;
}

ValueId Writer::norm(ValueId x, Role role) {
  expect_whole_rows(x, "a norm");
  const Value in = program_.values[idx(x)];
  const ValueId xn = value(in.name + "n", in.layout);
  read_vectors(op(OpKind::norm, {x}, {xn}), role);
  return xn;
}

ValueId Writer::alongside(const std::string& stream, ValueId x) {
  const ValueId other = input(stream);
  Layout wanted = layout(other);
  for (std::size_t d = 0; d + 1 < wanted.dims.size(); ++d) {
    Dim& dim = wanted.dims[d];
    const auto same = std::ranges::find(layout(x).dims, dim.name, &Dim::name);
    if (same != layout(x).dims.end()) {
      dim.cuts = same->cuts;
    }
  }
  return redistribute(other, wanted, stream + "_own");
}

ValueId Writer::adaptive_norm(ValueId x) {
  expect_whole_rows(x, "a norm");
  const Value in = program_.values[idx(x)];
  const ValueId c = alongside(part_->shape.condition, x);
  const ValueId xn = value(in.name + "n", in.layout);
  Op& norm = op(OpKind::adaptive_norm, {x, c}, {xn});
  norm.vectors = weights_.vectors_of(Role::modulate);
  const std::int64_t first = part_->shape.condition_first;
  const std::int64_t columns = part_->shape.condition_once ? 1 : 2;
  norm.condition = {first, first + columns * part_->shape.hidden};
  return xn;
}

ValueId Writer::adaptive_gate(ValueId y) {
  const Value in = program_.values[idx(y)];
  const ValueId c = alongside(part_->shape.condition, y);
  const ValueId out = value(in.name + "g", in.layout);
  Op& gate = op(OpKind::adaptive_gate, {y, c}, {out});
  gate.vectors = weights_.vectors_of(Role::gate);
  const std::int64_t first = part_->shape.condition_first + 2 * part_->shape.hidden;
  gate.condition = {first, first + part_->shape.hidden};
  return out;
}

ValueId Writer::add(ValueId x, ValueId y) {
  const ValueId sum = value("sum", Layout(layout(y)));
  op(OpKind::add, {x, y}, {sum}).in_place = true;
  return sum;
}

ValueId Writer::gate(ValueId y, ValueId g) {
  const Value in = program_.values[idx(y)];
  const ValueId out = value(in.name + "g", in.layout);
  op(OpKind::gate, {y, g}, {out});
  return out;
}

ValueId Writer::bias(ValueId y, Role role, double scale) {
  const Dim& columns = layout(y).columns();
  return add_bias(
      y, role, columns.cuts.empty() ? whole_cuts(columns.size, ranks()) : columns.cuts, scale);
}

ValueId Writer::bias(ValueId y, Role role, const Piece& entries) {
  return add_bias(y, role, Cuts(idx(ranks()), entries), 1);
}

ValueId Writer::add_bias(ValueId y, Role role, Cuts entries, double scale) {
  const Interval vectors = weights_.vectors_of(role);
  if (vectors.empty()) {
    return y;
  }
  const Value in = program_.values[idx(y)];
  const ValueId out = value(in.name + "b", in.layout);
  Op& bias = op(OpKind::bias, {y}, {out});
  bias.entries = std::move(entries);
  bias.vectors = vectors;
  bias.scale = scale;
  bias.in_place = true;
  return out;
}

void Writer::read_vectors(Op& op, Role role) const {
  op.vectors = weights_.vectors_of(role);
  std::vector<std::int64_t> untrained;
  for (std::int64_t v = op.vectors.begin; v < op.vectors.end; ++v) {
    const Vector& vector = weights_.vectors[idx(v)];
    untrained.push_back(vector.frozen ? vector.size : 0);
  }
  if (std::ranges::any_of(untrained, [](std::int64_t entries) { return entries > 0; })) {
    op.untrained = std::move(untrained);
  }
}

void Writer::set_mask(Op& op) const {
  op.mask = part_->shape.mask;
  op.along = part_->along;
}

ValueId Writer::mask_rows(ValueId y) {
  if (part_->shape.mask.empty()) {
    return y;
  }
  const Value in = program_.values[idx(y)];
  const ValueId out = value(in.name + "m", in.layout);
  Op& mask = op(OpKind::mask_rows, {y}, {out});
  set_mask(mask);
  mask.in_place = true;
  return out;
}

void Writer::drop_probabilities(Op& attention) const {
  const double probability = part_->shape.attention_dropout;
  if (!training_ || probability == 0) {
    return;
  }
  const std::vector<Dim>& dims = layout(attention.in.front()).dims;
  if (dims.size() != 2 || dims.front().name != "tokens") {
    throw std::invalid_argument(
        program_.part +
        ": attention dropout is implemented for attention in documents of tokens alone: set "
        "attention_dropout to 0");
  }
  attention.probability = probability;
}

ValueId Writer::dropout(ValueId y, double probability) {
  if (!training_ || probability == 0) {
    return y;
  }
  const Value in = program_.values[idx(y)];
  const ValueId out = value(in.name + "d", in.layout);
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
    Layout layout,
    std::vector<Interval> tile) {
  expect_whole_rows(x, "a product");
  const ValueId y = value(name, std::move(layout));
  std::vector<ValueId> in = {x};
  in.insert(in.end(), weights.begin(), weights.end());
  Op& linear = op(OpKind::linear, std::move(in), {y});
  linear.terms = std::move(terms);
  linear.tile = std::move(tile);
  add_adapters(linear);
  return y;
}

ValueId Writer::linear_transposed(
    ValueId x,
    ValueId weights,
    std::vector<std::vector<Term>> terms,
    Layout layout,
    ValueId onto,
    std::vector<Interval> tile,
    bool fresh) {
  const ValueId y = value("y", std::move(layout));
  Op& linear = op(OpKind::linear, {x, weights}, {y});
  linear.terms = std::move(terms);
  linear.transposed = true;
  linear.tile = std::move(tile);
  if (onto >= 0) {
    linear.in.push_back(onto);
    linear.in_place = true;
    linear.fresh = fresh;
  }
  add_adapters(linear);
  return y;
}

void Writer::add_adapters(Op& linear) const {
  linear.frozen = weights_.frozen;
  const auto adapted = [](const Matrix& matrix) { return matrix.adapter.a >= 0; };
  if (std::ranges::none_of(weights_.matrices, adapted)) {
    return;
  }
  bool any = false;
  std::vector<std::vector<LowRank>> of_ranks(idx(ranks()));
  for (int rank = 0; rank < ranks(); ++rank) {
    std::vector<LowRank>& mine = of_ranks[idx(rank)];
    std::int64_t column = 0;  // of y, or, transposed, of x
    for (const Term& term : linear.terms[idx(rank)]) {
      const Value& stack = program_.values[idx(linear.in[idx(term.operand)])];
      const Piece elements = slice(
          stack.layout.columns().piece(rank % program_.domain),
          {term.first, term.first + term.elements()});
      for (const Interval run : elements) {
        add_columns(run, term.cols, column, mine);
      }
    }
    any = any || !mine.empty();
  }
  if (any) {
    linear.adapters = std::move(of_ranks);
    const Matrix& first = *std::ranges::find_if(weights_.matrices, adapted);
    linear.inner = static_cast<int>(weights_.vectors[idx(first.adapter.a)].stored_rows);
  }
}

void Writer::add_columns(
    Interval run, std::int64_t cols, std::int64_t& column, std::vector<LowRank>& to) const {
  std::int64_t start = 0;  // of the matrix in the stack
  for (const Matrix& matrix : weights_.matrices) {
    const Interval here{std::max(run.begin, start), std::min(run.end, start + matrix.elements())};
    const std::int64_t first = (here.begin - start) / cols;
    start += matrix.elements();
    if (here.empty()) {
      continue;
    }
    const std::int64_t rows = here.size() / cols;
    const Matrix::Adapter& adapter = matrix.adapter;
    if (adapter.a >= 0) {
      auto known = std::ranges::find(to, adapter.a, &LowRank::a);
      if (known == to.end()) {
        to.push_back({.a = adapter.a, .b = adapter.b, .scale = adapter.scale});
        known = to.end() - 1;
      }
      known->columns.push_back(
          {.here = {column, column + rows},
           .there = {adapter.first + first, adapter.first + first + rows}});
    }
    column += rows;
  }
}

ValueId Writer::qk_norm(ValueId qkv, const std::vector<Heads>& heads) {
  const PartShape& shape = part_->shape;
  const auto apart = [&](const Heads& mine) {
    const auto some = [](Interval of, std::int64_t all) { return !of.empty() && of.size() < all; };
    return some(mine.query, shape.heads) || some(mine.key, shape.kv_heads);
  };
  if (shape.qk_norm_wide && std::ranges::any_of(heads, apart)) {
    if (layout(qkv).columns().cuts.empty()) {
      throw std::invalid_argument(
          program_.part +
          ": the model's QK norm is over all heads of a token, so no rank may compute some of the "
          "heads separately: use a strategy that computes all heads at once");
    }
    const Layout of_heads = layout(qkv);
    const ValueId own = redistribute(qkv, own_rows(of_heads.columns().size), "qkv_T");
    return redistribute(qk_norm(own, all_heads(shape, ranks())), of_heads, "qkv_N");
  }
  const Value in = program_.values[idx(qkv)];
  const ValueId out = value(in.name + "_normed", in.layout);
  Op& norm = op(OpKind::qk_norm, {qkv}, {out});
  read_vectors(norm, Role::qk_norm);
  norm.heads = heads;
  return out;
}

ValueId Writer::rope(ValueId qkv, std::vector<Heads> heads) {
  const Value in = program_.values[idx(qkv)];
  const ValueId out = value(in.name + "_rotated", in.layout);
  Op& rope = op(OpKind::rope, {qkv}, {out});
  rope.heads = std::move(heads);
  rope.in_place = true;
  return out;
}

ValueId Writer::attention(
    std::vector<ValueId> in, std::vector<Heads> heads, Layout out, ValueId bias) {
  if (bias >= 0) {
    in.push_back(bias);
  }
  const ValueId o = attend(OpKind::attention, std::move(in), std::move(heads), std::move(out));
  program_.ops.back().biased = bias >= 0;
  return o;
}

ValueId Writer::ring_attention(ValueId q, ValueId kv, std::vector<Heads> heads, int stride) {
  expect_own_queries(q);
  const ValueId o = attend(OpKind::ring_attention, {q, kv}, std::move(heads), layout(q));
  program_.ops.back().stride = stride;
  return o;
}

ValueId Writer::score_attention(ValueId q, ValueId kv, std::vector<Heads> heads) {
  expect_own_queries(q);
  const ValueId o = value("o", Layout(layout(q)));
  const ValueId p = value(
      "p", score_layout(program_.documents, heads.front().query.size(), program_.shape.window));
  Op& attention = op(OpKind::score_attention, {q, kv}, {o, p});
  attention.heads = std::move(heads);
  drop_probabilities(attention);
  return o;
}

ValueId Writer::attend(OpKind kind, std::vector<ValueId> in, std::vector<Heads> heads, Layout out) {
  const std::int64_t D = program_.shape.head_dim;
  Cuts statistics = out.columns().cuts;  // one column a head
  for (Piece& piece : statistics) {
    for (Interval& interval : piece) {
      interval = {interval.begin / D, interval.end / D};
    }
  }
  Layout of_heads = out.with_columns(out.columns().size / D, std::move(statistics));
  const ValueId o = value("o", std::move(out));
  const ValueId l = value("l", std::move(of_heads), Element::statistic);
  Op& attention = op(kind, std::move(in), {o, l});
  attention.heads = std::move(heads);
  set_mask(attention);
  drop_probabilities(attention);
  if (program_.shape.score_cap > 0 && (!program_.shape.pair.empty() || !attention.mask.empty())) {
    throw std::invalid_argument(
        program_.part +
        ": a cap of scores beside a bias or a mask of them is not implemented: set score_cap to 0");
  }
  return o;
}

ValueId Writer::activation(ValueId h, Cuts cuts) {
  const bool gated = part_->shape.gated();
  const std::int64_t columns = layout(h).columns().size;
  const ValueId a =
      value("a", layout(h).with_columns(gated ? columns / 2 : columns, std::move(cuts)));
  op(gated ? OpKind::swiglu : OpKind::activation, {h}, {a});
  return a;
}

namespace {

// What ranks hold of a sum, as if it were copies.
Layout all_terms(Layout sum) {
  sum.partial = false;
  return sum;
}

}  // namespace

// `to` is a copy, here and below: that of a value would move as values are added.
ValueId Writer::redistribute(ValueId x, Layout to, const std::string& name, bool again) {
  const Layout from = layout(x);
  if (lie_alike(from, to, ranks())) {
    return x;
  }
  if (from.partial && !is_partition(to, ranks())) {
    throw std::invalid_argument(
        program_.part + ": " + name + " is to go from a sum to " + to_string(to) +
        "; a sum becomes a partition, which may be gathered: shard the tensor over all ranks");
  }
  const ValueId y = value(name, std::move(to));
  Op& move = op(OpKind::redistribute, {x}, {y});
  move.transposed = from.partial;
  move.recompute = again;
  move.copies = {
      from.partial ? Redistribution(layout(y), all_terms(from), ranks())
                   : Redistribution(from, layout(y), ranks())};
  return y;
}

ValueId Writer::added_up(ValueId terms, Layout to, const std::string& name) {
  if (is_partition(to, ranks())) {
    return redistribute(terms, std::move(to), name);
  }
  // Copies are gathered from an even cut of the longest row dim.
  const auto longest =
      std::max_element(to.dims.begin(), to.dims.end() - 1, [](const Dim& a, const Dim& b) {
        return a.size < b.size;
      });
  const Layout apart = to.whole().cut(longest->name, even_cuts(longest->size, ranks()));
  const ValueId own = redistribute(terms, apart, name);
  return redistribute(own, std::move(to), name);
}

Layout Writer::one_a_line(Layout rows) const {
  rows.dims[rows.place(part_->along)] = {.name = "line", .size = 1};
  return rows;
}

ValueId Writer::line_mean(ValueId x) {
  const Value in = program_.values[idx(x)];
  Layout out = one_a_line(in.layout);
  out.partial = ranks() > 1 && !in.layout.dims[in.layout.place(part_->along)].cuts.empty();
  if (out.partial && !is_partition(in.layout, ranks())) {
    throw std::invalid_argument(
        program_.part + ": a mean over '" + part_->along + "' adds up terms of all ranks, and at " +
        to_string(in.layout) + " some have copies: shard the tensor over all ranks");
  }
  const ValueId mean = value(in.name + "_mean", std::move(out));
  set_mask(op(OpKind::line_mean, {x}, {mean}));
  return mean;
}

ValueId Writer::spread(ValueId y, Layout out, std::vector<Interval> tile) {
  const ValueId all = value(program_.values[idx(y)].name + "_lines", std::move(out));
  Op& spread = op(OpKind::spread, {y}, {all});
  spread.tile = std::move(tile);
  spread.recompute = true;
  return all;
}

ValueId Writer::outer_product(
    ValueId a, ValueId b, Layout out, double scale, std::vector<Interval> tile) {
  const ValueId o = value("o", std::move(out));
  Op& product = op(OpKind::outer_product, {a, b}, {o});
  product.recompute = recompute_;  // the core of no attention
  product.scale = scale;
  product.tile = std::move(tile);
  return o;
}

ValueId Writer::triangle(ValueId a, ValueId b, bool incoming, Layout out) {
  const ValueId o = value("o", std::move(out));
  op(OpKind::triangle, {a, b}, {o}).incoming = incoming;
  return o;
}

std::vector<Redistribution> Writer::vocabulary_tiles(std::int64_t rows) const {
  const std::int64_t cols = weights_.matrices.front().cols;
  std::vector<Redistribution> tiles;
  const std::int64_t height = part_->shape.tiles.vocabulary;
  for (std::int64_t begin = 0; begin < rows; begin += height) {
    Piece tile;
    append(tile, {begin * cols, std::min(begin + height, rows) * cols});
    tiles.push_back(gathered(Cuts(idx(program_.domain), tile)));
  }
  return tiles;
}

ValueId Writer::embed() {
  const std::int64_t H = weights_.matrices.front().cols;
  const ValueId x = value("x", own_rows(H));
  Op& embed = op(OpKind::embed, {}, {x});
  embed.copies = vocabulary_tiles(weights_.stack().elements() / H);
  embed.frozen = weights_.frozen;
  return x;
}

Program Writer::cross_entropy(ValueId xn) {
  std::vector<ValueId> out;
  if (training_) {
    out = {value("d", Layout(layout(xn)))};
  }
  Op& loss = op(OpKind::cross_entropy, {xn}, std::move(out));
  loss.copies = vocabulary_tiles(weights_.matrices.front().rows);
  loss.vectors = weights_.vectors_of(Role::out_bias);
  loss.frozen = weights_.frozen;
  return finish(-1);
}

ValueId Writer::batch_input(Layout layout, Interval columns) {
  const ValueId x = value(part_->input, std::move(layout));
  Op& input = op(OpKind::batch_input, {}, {x});
  input.recompute = true;
  input.condition = columns;
  return x;
}

Program Writer::flow_matching(ValueId y) {
  const ValueId v = batch_input(Layout(layout(y)));
  std::vector<ValueId> out;
  if (training_) {
    out = {value("d", Layout(layout(y)))};
  }
  op(OpKind::flow_matching, {y, v}, std::move(out));
  return finish(-1);
}

Program Writer::residual(ValueId y, double bias_scale, const MeanOfPairs& mean) {
  // Weights that passed by leave y's gradient to be read by shard after shard, while that of their
  // input grows; without a norm between them the input is x itself.
  const bool bare = std::ranges::any_of(program_.ops, [&](const Op& op) {
    return op.kind == OpKind::linear && op.in.front() == input();
  });
  const bool apart = recompute_ && (part_->shape.post_norm || bare);
  recompute_ = false;  // a norm after the sum would make all of it again
  ValueId added = bias(y, Role::out_bias, bias_scale);
  if (!mean.over.empty() && !part_->shape.mask.empty()) {
    const ValueId counted = value("y_pairs", Layout(layout(added)));
    Op& mask = op(OpKind::mask_pairs, {added}, {counted});
    mask.mask = part_->shape.mask;
    mask.along = mean.over;
    mask.scale = mean.added;
    mask.in_place = true;
    added = counted;
  }
  if (!part_->shape.condition.empty()) {
    added = adaptive_gate(added);
  }
  if (!weights_.vectors_of(Role::added_norm).empty()) {
    added = norm(added, Role::added_norm);
  }
  added = dropout(added, part_->shape.dropout);
  if (part_->shape.branch) {
    return finish(added);
  }
  if (const std::string& with = part_->shape.with; !with.empty()) {
    // The branch's gradient outlives the part's, in which that of the input grows.
    added = add(alongside(with, added), added);
    program_.ops.back().apart = true;
  }
  const ValueId sum = value("out", Layout(layout(input())));
  Op& last = op(OpKind::add, {input(), added}, {sum});
  last.in_place = true;
  last.apart = apart;
  return finish(part_->shape.post_norm ? norm(sum) : sum);
}

Program Writer::finish(ValueId output) {
  if (output >= 0) {
    program_.writes = {{part_->writes.front(), output}};
  }
  for (Op& op : program_.ops) {
    op.needs = traits(op.kind).needs(op);
  }
  return std::move(program_);
}

Program move_program(
    const std::string& stream,
    const Layout& from,
    const Layout& to,
    const Documents& documents,
    int domain) {
  Op op{.kind = OpKind::redistribute, .in = {0}, .out = {1}};
  op.copies = {Redistribution(from, to, documents.ranks())};
  op.needs = traits(op.kind).needs(op);
  Program program{
      .part = "move " + stream,
      .strategy = collective(from, to),
      .shape = {},
      .documents = documents,
      .domain = domain,
      .values = {{.name = stream, .layout = from}, {.name = stream, .layout = to}},
      .ops = {},
      .reads = {{stream, 0}},
      .writes = {{stream, 1}}};
  append(program, std::move(op));
  return program;
}

std::int64_t qkv_width(const PartShape& shape) {
  return (shape.heads + 2 * shape.kv_heads) * shape.head_dim;
}

Cuts qkv_columns(const PartShape& shape, const std::vector<Heads>& heads) {
  const std::int64_t D = shape.head_dim;
  const std::int64_t keys = shape.heads * D;
  const std::int64_t values = keys + shape.kv_heads * D;
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

Cuts output_columns(const PartShape& shape, const std::vector<Heads>& heads) {
  Cuts cuts;
  for (const Heads& h : heads) {
    Piece piece;
    append(piece, {h.query.begin * shape.head_dim, h.query.end * shape.head_dim});
    cuts.push_back(piece);
  }
  return cuts;
}

const char* mlp_input(const PartShape& shape) { return shape.gated() ? "gate" : "up"; }

std::int64_t mlp_width(const PartShape& shape) { return shape.ffn * (shape.gated() ? 2 : 1); }

Piece mlp_columns(const PartShape& shape, Interval width) {
  Piece columns;
  for (std::int64_t first = 0; first < mlp_width(shape); first += shape.ffn) {
    append(columns, {first + width.begin, first + width.end});
  }
  return columns;
}

}  // namespace paradyse
