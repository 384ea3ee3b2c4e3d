#include "paradyse/plan/program.h"

#include <algorithm>
#include <numeric>
#include <sstream>
#include <stdexcept>
#include <utility>

#include "paradyse/plan/detail/index.h"
#include "paradyse/plan/detail/op_traits.h"
#include "src/plan/base/text_match.h"

namespace paradyse {

std::int64_t Documents::tokens() const {
  return std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
}

Documents packed(
    std::vector<std::int64_t> lengths, int ranks, bool causal, std::vector<double> shares) {
  Cuts cuts = token_cuts(lengths, ranks, causal, shares);
  return {
      .lengths = std::move(lengths),
      .cuts = std::move(cuts),
      .causal = causal,
      .shares = std::move(shares)};
}

bool shares_gradient(const Op& op, std::size_t operand) {
  switch (op.in_place ? traits(op.kind).shares : OpTraits::Shares::nothing) {
    case OpTraits::Shares::nothing:
      return false;
    case OpTraits::Shares::all:
      return operand + 1 == op.in.size() || !op.apart;
    case OpTraits::Shares::last:
      return operand + 1 == op.in.size();
  }
  throw std::logic_error("shares_gradient: unknown Shares");
}

int place_in_domain(const Program& program, Seat seat) { return seat.domain_rank % program.domain; }

Extent local_extent(const Program& program, ValueId value, Seat seat) {
  const Value& v = program.values.at(idx(value));
  return v.layout.extent(v.over_domain ? place_in_domain(program, seat) : seat.group_rank);
}

Op& append(Program& program, Op op) {
  for (const ValueId made : op.out) {
    program.values[idx(made)].maker = static_cast<int>(program.ops.size());
  }
  return program.ops.emplace_back(std::move(op));
}

bool is_held(const Program& program, ValueId value) {
  const int maker = program.values[idx(value)].maker;
  if (maker < 0) {
    return false;
  }
  const OpTraits& kind = traits(program.ops[idx(maker)].kind);
  return kind.weights && kind.meets == OpTraits::Meets::nobody;
}

bool masks(const Program& program) { return program.documents.causal || program.shape.window > 0; }

std::int64_t AttentionBlock::pairs(bool masked) const {
  if (!masked) {
    return queries.size() * keys.size();
  }
  // The sum over queries i of clamp(i + last + 1, 0, keys).
  const auto up_to = [&](std::int64_t last) {
    const std::int64_t first = std::clamp<std::int64_t>(-last, 0, queries.size());
    const std::int64_t full = std::clamp(keys.size() - last, first, queries.size());
    return (full - first) * (first + full - 1) / 2 + (full - first) * (last + 1) +
           (queries.size() - full) * keys.size();
  };
  return up_to(diagonal) - (window > 0 ? up_to(diagonal - window) : 0);
}

namespace {

// A run of tokens of one document, and where its rows begin among those that are stored.
struct Run {
  std::size_t document;
  Interval tokens;
  std::int64_t row;
};

std::vector<Run> runs(const Documents& documents, const Piece& piece) {
  std::vector<Run> found;
  std::size_t document = 0;
  Interval in{0, documents.lengths.empty() ? 0 : documents.lengths[0]};
  std::int64_t row = 0;
  for (Interval left : piece) {
    while (!left.empty()) {
      while (left.begin >= in.end) {
        ++document;
        in = {in.end, in.end + documents.lengths.at(document)};
      }
      const Interval here{left.begin, std::min(left.end, in.end)};
      found.push_back({.document = document, .tokens = here, .row = row});
      row += here.size();
      left.begin = here.end;
    }
  }
  return found;
}

// How far a token sees in its document: behind its own, and how many in all (0: as many as there
// are before).  Where a document in both directions has no window all is seen, whatever this says.
struct Sight {
  std::int64_t ahead = 0;
  std::int64_t width = 0;
};
Sight sight_of(const Documents& documents, std::int64_t window) {
  return documents.causal || window == 0 ? Sight{0, window}
                                         : Sight{.ahead = window - 1, .width = 2 * window - 1};
}

// Of a document those tokens that some of these see.
Interval seen_by(
    const Documents& documents, Interval tokens, Interval document, std::int64_t window) {
  if (window == 0) {
    return {document.begin, documents.causal ? std::min(document.end, tokens.end) : document.end};
  }
  const std::int64_t ahead = sight_of(documents, window).ahead;
  return {
      std::max(document.begin, tokens.begin - window + 1),
      std::min(document.end, tokens.end + ahead)};
}

// Rows are the tokens of documents, one after the other.
bool packs_documents(const Layout& layout) {
  return layout.dims.size() == 2 && layout.dims.front().name == "tokens";
}

}  // namespace

std::vector<AttentionBlock> attention_blocks(
    const Documents& documents, const Piece& queries, const Piece& keys, std::int64_t window) {
  const auto [ahead, width] = sight_of(documents, window);
  std::vector<AttentionBlock> blocks;
  const std::vector<Run> all_keys = runs(documents, keys);
  auto first = all_keys.begin();  // of the queries' document
  for (const Run& q : runs(documents, queries)) {
    while (first != all_keys.end() && first->document < q.document) {
      ++first;
    }
    for (auto k = first; k != all_keys.end() && k->document == q.document; ++k) {
      const Interval seen = seen_by(documents, q.tokens, k->tokens, window);
      if (!seen.empty()) {
        const std::int64_t row = k->row - k->tokens.begin;  // of the document's first token
        const bool all = window == 0 || q.tokens.end - window <= seen.begin;
        blocks.push_back(
            {.queries = {q.row, q.row + q.tokens.size()},
             .keys = {row + seen.begin, row + seen.end},
             .diagonal = q.tokens.begin + ahead - seen.begin,
             .window = all ? 0 : width,
             .query_token = q.tokens.begin,
             .key_token = seen.begin});
      }
    }
  }
  return blocks;
}

namespace {

// All that some of them hold, once, ascending.
Piece union_of(std::vector<Interval> intervals) {
  std::ranges::sort(intervals, {}, &Interval::begin);
  Piece all;
  for (const Interval one : intervals) {
    if (!all.empty() && one.begin <= all.back().end) {
      all.back().end = std::max(all.back().end, one.end);
    } else {
      append(all, one);
    }
  }
  return all;
}

}  // namespace

Piece seen_tokens(const Documents& documents, const Piece& queries, std::int64_t window) {
  std::vector<Interval> seen;
  std::int64_t first = 0;  // token of the document
  std::size_t document = 0;
  for (const Run& q : runs(documents, queries)) {
    for (; document < q.document; ++document) {
      first += documents.lengths[document];
    }
    seen.push_back(
        seen_by(documents, q.tokens, {first, first + documents.lengths[document]}, window));
  }
  return union_of(std::move(seen));
}

ValueId keys_of(const Op& op) { return op.in[op.in.size() - (op.biased ? 2 : 1)]; }

ValueId bias_of(const Op& op) { return op.biased ? op.in.back() : -1; }

namespace {

// Between queries of one rank and keys of another, or its own.
std::vector<AttentionBlock> line_blocks(
    const Layout& queries, int reader, const Layout& keys, int source) {
  const auto rows = [](const Layout& layout) { return layout.dims.size() - 1; };
  std::size_t shared = 0;
  std::int64_t lines = 1;
  while (shared + 1 < std::min(rows(queries), rows(keys)) &&
         queries.dims[shared].name == keys.dims[shared].name) {
    lines *= size(queries.dims[shared].piece(reader));
    ++shared;
  }
  const auto each = [&](const Layout& layout, int rank) {
    std::int64_t line = 1;
    for (std::size_t d = shared; d < rows(layout); ++d) {
      line *= size(layout.dims[d].piece(rank));
    }
    return line;
  };
  const std::int64_t q = each(queries, reader);
  const std::int64_t k = each(keys, source);
  std::vector<AttentionBlock> blocks;
  for (std::int64_t line = 0; line < lines && q > 0 && k > 0; ++line) {
    blocks.push_back(
        {.queries = {line * q, (line + 1) * q}, .keys = {line * k, (line + 1) * k}, .diagonal = k});
  }
  return blocks;
}

std::vector<AttentionBlock> blocks_between(
    const Program& program, const Op& op, int reader, int source) {
  if (op.heads.at(idx(reader)).query.empty()) {
    return {};
  }
  const Layout& queries = program.values[idx(op.in.front())].layout;
  const Layout& keys = program.values[idx(keys_of(op))].layout;
  if (packs_documents(queries)) {
    return attention_blocks(
        program.documents, queries.line(reader), keys.line(source), program.shape.window);
  }
  if (program.shape.window > 0) {
    throw std::invalid_argument(
        program.part + ": attention along lines has no windows: set the window to 0");
  }
  return line_blocks(queries, reader, keys, source);
}

// What stored rows of `piece` hold those of these tokens that it has, both ascending.
Piece rows_with(const Piece& piece, const Piece& tokens) {
  Piece rows;
  std::int64_t row = 0;
  auto next = tokens.begin();  // the first that does not end before what the piece has
  for (const Interval has : piece) {
    while (next != tokens.end() && next->end <= has.begin) {
      ++next;
    }
    for (auto wanted = next; wanted != tokens.end() && wanted->begin < has.end; ++wanted) {
      append(
          rows,
          {row + std::max(has.begin, wanted->begin) - has.begin,
           row + std::min(has.end, wanted->end) - has.begin});
    }
    row += has.size();
  }
  return rows;
}

}  // namespace

std::vector<AttentionBlock> attention_blocks(const Program& program, const Op& op, int group_rank) {
  return blocks_between(program, op, group_rank, group_rank);
}

int ring_size(const Program& program, const Op& op) { return program.ranks() / op.stride; }

int ring_source(const Program& program, const Op& op, int group_rank, int hop) {
  const int p = program.ranks();
  return (group_rank + (ring_size(program, op) - hop) * op.stride) % p;
}

RingPass ring_pass(const Program& program, const Op& op, int owner) {
  const int p = ring_size(program, op);
  RingPass pass;
  if (program.shape.window == 0) {
    append(pass.rows, {0, local_extent(program, keys_of(op), {.group_rank = owner}).rows});
    pass.hops = p - 1;
    return pass;
  }
  const Layout& queries = program.values[idx(op.in.front())].layout;
  const Piece keys = program.values[idx(keys_of(op))].layout.line(owner);
  std::vector<Interval> seen;
  for (int hop = 1; hop < p; ++hop) {
    const int reader = (owner + hop * op.stride) % program.ranks();
    if (op.heads.at(idx(reader)).query.empty()) {
      continue;
    }
    const Piece rows =
        rows_with(keys, seen_tokens(program.documents, queries.line(reader), program.shape.window));
    pass.hops = rows.empty() ? pass.hops : hop;
    seen.insert(seen.end(), rows.begin(), rows.end());
  }
  pass.rows = union_of(std::move(seen));
  return pass;
}

std::int64_t ring_rows(const Program& program, const Op& op, int group_rank, int hop) {
  const int owner = ring_source(program, op, group_rank, hop);
  if (hop == 0) {
    return local_extent(program, keys_of(op), {.group_rank = owner}).rows;
  }
  const RingPass pass = ring_pass(program, op, owner);
  return hop <= pass.hops ? size(pass.rows) : 0;
}

std::vector<AttentionBlock> ring_blocks(
    const Program& program, const Op& op, int group_rank, int hop) {
  const int owner = ring_source(program, op, group_rank, hop);
  if (hop == 0 || program.shape.window == 0) {
    return blocks_between(program, op, group_rank, owner);
  }
  const RingPass pass = ring_pass(program, op, owner);
  if (hop > pass.hops || op.heads.at(idx(group_rank)).query.empty()) {
    return {};
  }
  const Piece all = program.values[idx(keys_of(op))].layout.line(owner);
  Piece keys;  // that came round
  for (const Interval rows : pass.rows) {
    for (const Interval tokens : slice(all, rows)) {
      append(keys, tokens);
    }
  }
  return attention_blocks(
      program.documents,
      program.values[idx(op.in.front())].layout.line(group_rank),
      keys,
      program.shape.window);
}

std::int64_t linear_rows(const Program& program, const Op& op, Seat seat) {
  return op.tile.empty() ? local_extent(program, op.in[0], seat).rows
                         : op.tile[idx(seat.group_rank)].size();
}

std::vector<ScoreRun> score_runs(
    const Documents& documents, int group_rank, std::int64_t heads, std::int64_t window) {
  const auto [ahead, width] = sight_of(documents, window);
  std::vector<std::int64_t> first_token(documents.lengths.size());
  std::exclusive_scan(
      documents.lengths.begin(), documents.lengths.end(), first_token.begin(), std::int64_t{0});
  std::vector<ScoreRun> found;
  std::int64_t score = 0;
  for (const Run& run : runs(documents, documents.cuts[idx(group_rank)])) {
    const std::int64_t first = first_token[run.document];
    const Interval tokens{run.tokens.begin - first, run.tokens.end - first};
    // Without a window a row has all of the document, also what a causal one does not see.
    const Interval document{0, documents.lengths[run.document]};
    const Interval seen = window > 0 ? seen_by(documents, tokens, document, window) : document;
    const std::int64_t keys = seen.size();
    found.push_back(
        {.tokens = tokens,
         .rows = {run.row, run.row + run.tokens.size()},
         .first_key = seen.begin,
         .keys = keys,
         .seen = tokens.begin + ahead + 1 - seen.begin,
         .window = width,
         .first_score = score});
    score += run.tokens.size() * heads * keys;
  }
  return found;
}

std::int64_t longest(const std::vector<ScoreRun>& runs) {
  std::int64_t most = 0;
  for (const ScoreRun& run : runs) {
    most = std::max(most, run.keys);
  }
  return most;
}

std::int64_t score_tile_rows(const std::vector<ScoreRun>& runs) {
  std::int64_t most = 0;
  for (const ScoreRun& run : runs) {
    most = std::max(most, run.rows.size());
  }
  return std::min<std::int64_t>(64, most);
}

Layout score_layout(const Documents& documents, std::int64_t heads, std::int64_t window) {
  if (window > 0) {
    Cuts apart(documents.cuts.size());
    std::int64_t all = 0;
    for (int r = 0; r < documents.ranks(); ++r) {
      const std::int64_t first = all;
      for (const ScoreRun& run : score_runs(documents, r, heads, window)) {
        all += run.tokens.size() * heads * run.keys;
      }
      append(apart[idx(r)], {first, all});
    }
    return matrix("scores", {all, 1}, std::move(apart));
  }
  std::vector<std::int64_t> first_score(documents.lengths.size());  // of each document
  std::int64_t scores = 0;
  for (std::size_t d = 0; d < documents.lengths.size(); ++d) {
    first_score[d] = scores;
    scores += heads * documents.lengths[d] * documents.lengths[d];
  }
  Cuts cuts(documents.cuts.size());
  for (int r = 0; r < documents.ranks(); ++r) {
    std::size_t document = 0;
    std::int64_t begin = 0;
    for (const Run& run : runs(documents, documents.cuts[idx(r)])) {
      for (; document < run.document; ++document) {
        begin += documents.lengths[document];
      }
      const std::int64_t width = heads * documents.lengths[document];
      append(
          cuts[idx(r)],
          {first_score[document] + (run.tokens.begin - begin) * width,
           first_score[document] + (run.tokens.end - begin) * width});
    }
  }
  return matrix("scores", {scores, 1}, std::move(cuts));
}

std::int64_t heads_per_key(const Op& op) {
  std::int64_t queries = 0;
  std::int64_t keys = 0;
  for (const Heads& heads : op.heads) {
    queries = std::max(queries, heads.query.end);
    keys = std::max(keys, heads.key.end);
  }
  if (keys == 0 || queries < keys) {
    throw std::logic_error("heads_per_key: an op with fewer query heads than key heads");
  }
  return queries / keys;
}

AttentionTile attention_tile(const AttentionBlock& block) {
  // Higher tiles multiply faster, lower ones waste less above the diagonal.
  const std::int64_t queries = block.queries.size() >= 768 ? 128 : 64;
  return {std::min(queries, block.queries.size()), std::min<std::int64_t>(512, block.keys.size())};
}

std::string to_string(OpKind kind) { return traits(kind).name; }

std::string explain(const Program& program) {
  std::ostringstream out;
  const auto names = [&](const std::vector<ValueId>& ids) {
    return joined(ids, ", ", [&](ValueId id) {
      const Value& value = program.values[idx(id)];
      return value.name + ":" + to_string(value.layout);
    });
  };
  for (const Op& op : program.ops) {
    out << (op.recompute ? "~ " : "  ") << to_string(op.kind);
    if (traits(op.kind).meets == OpTraits::Meets::group && !op.copies.empty()) {
      out << " "
          << collective(
                 program.values[idx(op.in[0])].layout, program.values[idx(op.out[0])].layout);
    }
    out << "(" << names(op.in) << ") -> " << names(op.out);
    if (!op.needs.empty()) {
      out << "   backward reads " << names(op.needs);
    }
    out << "\n";
  }
  return out.str();
}

}  // namespace paradyse
