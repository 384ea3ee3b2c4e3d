#include "paradyse/program.h"

#include <algorithm>
#include <numeric>
#include <sstream>
#include <stdexcept>

namespace paradyse {

std::int64_t TokenLayout::tokens() const {
  return std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
}

TokenLayout token_layout(std::vector<std::int64_t> lengths, int ranks, bool causal) {
  Cuts cuts = token_cuts(lengths, ranks, causal);
  return {.lengths = std::move(lengths), .cuts = std::move(cuts), .causal = causal};
}

Extent local_extent(const Program& program, ValueId value, Seat seat) {
  const Value& v = program.values.at(static_cast<std::size_t>(value));
  return local_extent(v.whole, v.placement, v.over_domain ? seat.domain_rank : seat.group_rank);
}

int producer(const Program& program, ValueId value) {
  for (std::size_t i = 0; i < program.ops.size(); ++i) {
    const auto& out = program.ops[i].out;
    if (std::find(out.begin(), out.end(), value) != out.end()) {
      return static_cast<int>(i);
    }
  }
  return -1;
}

// A *group* is the query heads that share a key/value head.  A rank's heads may begin and end in
// the middle of one; only whole groups go into one call.
std::vector<AttentionCall> attention_calls(const Program& program, const Op& op, int group_rank) {
  const Heads mine = op.heads.at(static_cast<std::size_t>(group_rank));
  std::vector<AttentionCall> calls;
  if (mine.query.empty()) {
    return calls;
  }
  // own_heads: the key heads are exactly those the queries read, so the group size follows from any
  // rank that has all of a group; all ranks know the model's.
  std::int64_t queries = 0;
  std::int64_t keys = 0;
  for (const Heads& heads : op.heads) {
    queries = std::max(queries, heads.query.end);
    keys = std::max(keys, heads.key.end);
  }
  const std::int64_t group = keys == 0 ? 0 : queries / keys;
  if (group == 0) {
    throw std::logic_error("attention_calls: an op with fewer query heads than key heads");
  }
  std::vector<Interval> runs;
  std::int64_t at = mine.query.begin;
  const auto take = [&](std::int64_t end) {
    if (at < end) {
      runs.push_back({at, end});
      at = end;
    }
  };
  if (at % group != 0) {
    take(std::min(mine.query.end, (at / group + 1) * group));
  }
  take(mine.query.end / group * group);
  take(mine.query.end);

  std::int64_t first = 0;
  for (const std::int64_t n : program.tokens.lengths) {
    for (const Interval run : runs) {
      if (n > 0) {
        calls.push_back(
            {.first_token = first,
             .tokens = n,
             .query = {run.begin - mine.query.begin, run.end - mine.query.begin},
             .key = {
                 run.begin / group - mine.key.begin, (run.end - 1) / group + 1 - mine.key.begin}});
      }
    }
    first += n;
  }
  return calls;
}

std::int64_t logits_tile_tokens(std::int64_t vocabulary_tile_rows) {
  return std::max<std::int64_t>(1, kLogitsTile / std::max<std::int64_t>(1, vocabulary_tile_rows));
}

std::string to_string(OpKind kind) {
  switch (kind) {
    case OpKind::embed:
      return "embed";
    case OpKind::norm:
      return "norm";
    case OpKind::hold_weights:
      return "hold_weights";
    case OpKind::gather_weights:
      return "gather_weights";
    case OpKind::linear:
      return "linear";
    case OpKind::rope:
      return "rope";
    case OpKind::redistribute:
      return "redistribute";
    case OpKind::attention:
      return "attention";
    case OpKind::swiglu:
      return "swiglu";
    case OpKind::add:
      return "add";
    case OpKind::cross_entropy:
      return "cross_entropy";
  }
  throw std::logic_error("to_string: unknown OpKind");
}

std::string explain(const Program& program) {
  std::ostringstream out;
  const auto names = [&](const std::vector<ValueId>& ids) {
    std::string text;
    for (const ValueId id : ids) {
      const Value& value = program.values[static_cast<std::size_t>(id)];
      text += (text.empty() ? "" : ", ") + value.name + ":" + to_string(value.placement);
    }
    return text;
  };
  for (const Op& op : program.ops) {
    out << (op.recompute ? "~ " : "  ") << to_string(op.kind);
    if (op.kind == OpKind::redistribute) {
      out << " " << to_string(op.collective);
    }
    out << "(" << names(op.in) << ") -> " << names(op.out);
    if (!op.needs.empty()) {
      out << "   adjoint needs " << names(op.needs);
    }
    out << "\n";
  }
  return out.str();
}

}  // namespace paradyse
