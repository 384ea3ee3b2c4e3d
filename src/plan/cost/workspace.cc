// Temporaries of each op, as its implementation in src/run/ops/ allocates them.
#include <algorithm>

#include "paradyse/cost.h"

namespace paradyse {
namespace {

// Results and buffers of torch 2.11's CPU flash kernel for one call by one thread: as in
// aten/src/ATen/native/cpu/FlashAttentionKernel.cpp, and measured call by call with the accountant
// (1 to 1500 tokens, 1 to 8 heads, D 8 to 64; November 2026): to the byte in float32 and float64.
struct FlashBlocks {
  std::int64_t queries;
  std::int64_t keys;
};

FlashBlocks flash_blocks(std::int64_t tokens) {
  const std::int64_t queries = tokens >= 768 ? 256 : tokens >= 192 ? 64 : 32;
  return {std::min(queries, tokens), std::min<std::int64_t>(512, tokens)};
}

// Output and log-sum-exp; scores of a block of queries and keys, running maximum and sum, and an
// accumulator.
std::int64_t flash_forward_bytes(const AttentionCall& call, std::int64_t D, Precision precision) {
  const FlashBlocks block = flash_blocks(call.tokens);
  const std::int64_t results =
      call.tokens * call.query.size() * (D * precision.activation + precision.statistic);
  const std::int64_t accumulators =
      (block.queries * block.keys + 2 * block.queries + block.queries * D) * precision.statistic;
  const bool reduced = precision.activation < precision.statistic;
  const std::int64_t packed = reduced ? block.queries * block.keys * precision.activation : 0;
  return results + accumulators + packed;
}

// The three gradients; scores and their gradient for a block, and sum(o grad_o) a query.  The
// gradient of the output is copied where the call takes only some of the rank's `heads`.
std::int64_t flash_backward_bytes(
    const AttentionCall& call, std::int64_t heads, std::int64_t D, Precision precision) {
  const FlashBlocks block = flash_blocks(call.tokens);
  const bool copied = call.query.size() < heads && call.tokens > 1;
  const std::int64_t results = call.tokens *
                               (call.query.size() * (copied ? 2 : 1) + 2 * call.key.size()) * D *
                               precision.activation;
  const bool reduced = precision.activation < precision.statistic;
  const std::int64_t scores = 2 * block.queries * block.keys;
  return results + (scores + block.queries) * precision.statistic +
         (reduced ? scores * precision.activation : 0);
}

// An element of a narrow product that is added to a wide sum: torch widens a copy of it first.
std::int64_t product_bytes(Precision precision) {
  return precision.activation + precision.statistic;
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
    case OpKind::linear: {  // gradients of held weights that cannot be added in place
      if (forward || !reduced) {
        return 0;
      }
      std::int64_t most = 0;
      for (const Term& term : op.terms[static_cast<std::size_t>(seat.group_rank)]) {
        const ValueId weight = op.in[static_cast<std::size_t>(term.operand)];
        const Op& maker = program.ops[static_cast<std::size_t>(producer(program, weight))];
        if (maker.kind == OpKind::hold_weights) {
          most = std::max(
              most, term.rows.size() * program.values[static_cast<std::size_t>(weight)].whole.cols);
        }
      }
      return most * product_bytes(precision);
    }
    case OpKind::attention: {
      const auto calls = attention_calls(program, op, seat.group_rank);
      const std::int64_t heads = op.heads[static_cast<std::size_t>(seat.group_rank)].query.size();
      std::int64_t most = 0;
      for (const AttentionCall& call : calls) {
        most = std::max(
            most,
            forward ? flash_forward_bytes(call, program.head_dim, precision)
                    : flash_backward_bytes(call, heads, program.head_dim, precision));
      }
      if (forward && calls.size() == 1) {  // the kernel's results are the op's
        most -=
            bytes(program, op.out[0], seat, precision) + bytes(program, op.out[1], seat, precision);
      }
      return most;
    }
    case OpKind::cross_entropy: {
      if (!forward) {
        return 0;
      }
      const std::int64_t tile = largest_tile_rows(op);
      const Extent x = local_extent(program, op.in[0], seat);
      const std::int64_t tokens = std::min(logits_tile_tokens(tile), x.rows);
      const bool keep = !op.out.empty();
      std::int64_t sum = tile * x.cols * precision.activation;  // the weights
      sum += tokens * tile * (precision.activation + (reduced ? precision.statistic : 0));
      sum += 2 * tokens * precision.statistic;  // a maximum and a sum a row
      if (keep) {
        sum += tile * x.cols *
               (precision.statistic + (reduced && x.rows > 0 ? product_bytes(precision) : 0));
      }
      return sum;
    }
    case OpKind::norm:
    case OpKind::hold_weights:
    case OpKind::gather_weights:
    case OpKind::rope:
    case OpKind::redistribute:
    case OpKind::swiglu:
    case OpKind::add:
      break;
  }
  return 0;
}

}  // namespace paradyse
