// Temporaries of each op, as its implementation in src/run/ops/ allocates them.
#include <algorithm>

#include "paradyse/plan/cost.h"

namespace paradyse {
namespace {

// src/run/kernels/cpu/tile_attention.cc for the largest block: tiles of scores (the adjoint: and of
// their gradient), a maximum, a sum and a factor a query (the adjoint: two numbers); in narrow
// types also the tiles rounded.  `rounds`: and one head's results before they are rounded (the
// adjoint's dK and dV, then its dQ).
std::int64_t attention_bytes(
    const std::vector<AttentionBlock>& blocks,
    Phase phase,
    std::int64_t D,
    Precision precision,
    bool rounds) {
  const bool forward = phase == Phase::forward;
  const bool narrow = precision.activation < precision.statistic;
  std::int64_t most = 0;
  for (const AttentionBlock& block : blocks) {
    const AttentionTile tile = attention_tile(block);
    const std::int64_t scores = (forward ? 1 : 2) * tile.queries * tile.keys;
    const std::int64_t rows = (forward ? 3 : 2) * tile.queries;
    const std::int64_t results =
        (forward ? block.queries.size() : block.queries.size() + 2 * block.keys.size()) * D;
    most = std::max(
        most,
        (scores + rows + (narrow && rounds ? results : 0)) * precision.statistic +
            (narrow ? scores * precision.activation : 0));
  }
  return most;
}

// The blocks of src/run/ops/ring.h, their elements scaled: at each hop the block that is here (at
// the first a rank's own, `first` of it on top) and the next one; going back the sums of their
// gradients, two while one arrives.  Beside them whatever `tile` says of the hop.
template <typename Tile>
std::int64_t ring_bytes(
    const Program& program,
    const Op& op,
    Seat seat,
    Phase phase,
    Precision precision,
    std::int64_t rings,
    Tile tile) {
  const int p = ring_size(program, op);
  // Elements of the block that is here at a hop; after the last one a rank's own is back.
  const auto block = [&](int hop) {
    const int source = ring_source(program, op, seat.group_rank, hop);
    return local_extent(program, op.in[1], {.group_rank = source}).elements() / rings;
  };
  const std::int64_t first = rings > 1 ? block(0) : 0;  // half of it is a copy
  std::int64_t most = 0;
  for (int hop = 0; hop < p; ++hop) {
    const std::int64_t keys =
        ((hop > 0 ? block(hop) : first) + (hop + 1 < p ? block(hop + 1) : 0)) *
        precision.activation;
    if (phase == Phase::forward) {
      most = std::max(most, keys + tile(hop));
      continue;
    }
    const std::int64_t sums = (hop > 0 ? block(hop) : 0) * precision.statistic;
    const std::int64_t before = (hop > 1 ? block(hop - 1) : 0) * precision.statistic;
    most = std::max(most, keys + sums + std::max(tile(hop), before));
  }
  if (phase == Phase::adjoint && p > 1) {
    most = std::max(most, (block(p - 1) + block(0)) * precision.statistic);
  }
  return most;
}

// Results that are kept in the type of sums until they are rounded: a matrix like q, going back
// also one like kv.
std::int64_t unrounded_bytes(
    const Program& program, const Op& op, Seat seat, Phase phase, Precision precision) {
  if (precision.activation == precision.statistic) {
    return 0;
  }
  const std::int64_t q = local_extent(program, op.in[0], seat).elements();
  const std::int64_t kv = local_extent(program, op.in[1], seat).elements();
  return (phase == Phase::forward ? q : q + kv) * precision.statistic;
}

std::int64_t ring_attention_bytes(
    const Program& program, const Op& op, Seat seat, Phase phase, Precision precision) {
  const auto tile = [&](int hop) {
    return attention_bytes(
        ring_blocks(program, op, seat.group_rank, hop), phase, program.head_dim, precision, false);
  };
  return ring_bytes(program, op, seat, phase, precision, 1, tile) +
         unrounded_bytes(program, op, seat, phase, precision);
}

// src/run/ops/score_attention.cc: a ring of keys, then one of values; all scores before they are
// rounded, or a tile of their gradient.
std::int64_t score_attention_bytes(
    const Program& program, const Op& op, Seat seat, Phase phase, Precision precision) {
  const auto nothing = [](int) { return std::int64_t{0}; };
  const bool narrow = precision.activation < precision.statistic;
  const std::int64_t unrounded = unrounded_bytes(program, op, seat, phase, precision);
  if (phase == Phase::forward) {
    const std::int64_t scores =
        narrow ? local_extent(program, op.out[1], seat).elements() * precision.statistic : 0;
    return ring_bytes(program, op, seat, phase, precision, 2, nothing) + unrounded + scores;
  }
  const std::vector<ScoreRun> runs = score_runs(program.tokens, seat.group_rank, 1);
  const std::int64_t tile = score_tile_rows(runs) * longest(runs) *
                            (precision.statistic + (narrow ? precision.activation : 0));
  return ring_bytes(program, op, seat, phase, precision, 1, nothing) + unrounded + tile;
}

// The float32 rows in which a narrow product of this size is made.
std::int64_t product_bytes(std::int64_t rows, std::int64_t cols, Precision precision) {
  const bool narrow = precision.activation < precision.statistic;
  return narrow ? std::min(rows, product_tile_rows(cols)) * cols * precision.statistic : 0;
}

std::int64_t largest_tile_rows(const Op& op) {
  std::int64_t rows = 0;
  for (const Transfer& tile : op.transfers) {
    rows = std::max(rows, tile.destination.front().rows);
  }
  return rows;
}

}  // namespace

std::int64_t workspace_bytes(
    const Program& program, const Op& op, Seat seat, Phase phase, Precision precision) {
  const bool forward = phase == Phase::forward;
  const bool reduced = precision.activation < precision.statistic;
  switch (op.kind) {
    case OpKind::embed: {
      const std::int64_t tile =
          largest_tile_rows(op) * op.transfers.front().destination.front().cols;
      return tile * (forward ? precision.activation : precision.statistic);
    }
    case OpKind::linear: {
      const std::int64_t tokens = linear_rows(program, op, seat);
      if (tokens == 0) {
        return 0;
      }
      std::int64_t most = 0;
      for (const Term& term : op.terms[static_cast<std::size_t>(seat.group_rank)]) {
        const ValueId weight = op.in[static_cast<std::size_t>(term.operand)];
        const std::int64_t in = program.values[static_cast<std::size_t>(weight)].whole.cols;
        const std::int64_t out = term.rows.size();
        if (out == 0) {  // as of a rank without a head: nothing to multiply by
          continue;
        }
        if (forward) {
          most = std::max(most, product_bytes(tokens, op.transposed ? in : out, precision));
          continue;
        }
        most = std::max(most, product_bytes(tokens, op.transposed ? out : in, precision));
        const Op& maker = program.ops[static_cast<std::size_t>(producer(program, weight))];
        const bool wide = program.values[static_cast<std::size_t>(weight)].wide_gradient;
        if (maker.kind != OpKind::hold_weights && !wide) {  // else straight into a float32 gradient
          most = std::max(most, product_bytes(out, in, precision));
        }
      }
      return most;
    }
    case OpKind::attention:
      return attention_bytes(
          attention_blocks(program, op, seat.group_rank), phase, program.head_dim, precision, true);
    case OpKind::ring_attention:
      return ring_attention_bytes(program, op, seat, phase, precision);
    case OpKind::score_attention:
      return score_attention_bytes(program, op, seat, phase, precision);
    case OpKind::cross_entropy: {
      if (!forward) {
        return 0;
      }
      const std::int64_t tile = largest_tile_rows(op);
      const Extent x = local_extent(program, op.in[0], seat);
      const std::int64_t tokens = std::min(logits_tile_tokens(tile), x.rows);
      const bool keep = !op.out.empty();
      std::int64_t sum = tile * x.cols * precision.activation;  // the weights
      sum += tokens * tile * precision.statistic;
      std::int64_t more = 2 * tokens * precision.statistic;  // a maximum and a sum a row
      if (keep) {
        sum += tile * x.cols * precision.statistic;  // the weights' gradient
        const std::int64_t rounded = reduced ? tokens * tile * precision.activation : 0;
        more = std::max(more, rounded + product_bytes(tokens, x.cols, precision));
      }
      return sum + more;
    }
    case OpKind::norm:
    case OpKind::hold_weights:
    case OpKind::gather_weights:
    case OpKind::bias:
    case OpKind::qk_norm:
    case OpKind::rope:
    case OpKind::redistribute:
    case OpKind::swiglu:
    case OpKind::activation:
    case OpKind::dropout:
    case OpKind::add:
      break;
  }
  return 0;
}

}  // namespace paradyse
