// Temporaries of each op, as its implementation in src/run/ops/ allocates them.
#include <algorithm>

#include "paradyse/cost.h"

namespace paradyse {
namespace {

// Buffers of torch 2.11's CPU flash kernel for one call by one thread: scores of a block of queries
// and keys, running maximum and sum, and an accumulator.  Block sizes as in
// aten/src/ATen/native/cpu/FlashAttentionKernel.cpp.
struct FlashBlocks {
  std::int64_t queries;
  std::int64_t keys;
};

FlashBlocks forward_blocks(std::int64_t tokens) {
  const std::int64_t queries = tokens >= 768 ? 256 : tokens >= 192 ? 64 : 32;
  return {std::min(queries, tokens), std::min<std::int64_t>(512, tokens)};
}

FlashBlocks backward_blocks(std::int64_t tokens) {
  const std::int64_t queries = tokens >= 768 ? 256 : tokens >= 192 ? 64 : 32;
  return {std::min(queries, tokens), std::min<std::int64_t>(512, tokens)};
}

std::int64_t flash_forward_bytes(const AttentionCall& call, std::int64_t D, Precision precision) {
  const FlashBlocks block = forward_blocks(call.tokens);
  const std::int64_t results =
      call.tokens * call.query.size() * (D * precision.activation + precision.statistic);
  const std::int64_t accumulators =
      (block.queries * block.keys + 2 * block.queries + block.queries * D) * precision.statistic;
  const bool reduced = precision.activation < precision.statistic;
  const std::int64_t packed = reduced ? block.queries * block.keys * precision.activation : 0;
  return results + accumulators + packed;
}

std::int64_t flash_backward_bytes(const AttentionCall& call, std::int64_t D, Precision precision) {
  const FlashBlocks block = backward_blocks(call.tokens);
  const std::int64_t results = call.tokens * (call.query.size() + 2 * call.key.size()) * D *
                               precision.activation;
  const bool reduced = precision.activation < precision.statistic;
  const std::int64_t scores = 2 * block.queries * block.keys;
  return results + scores * precision.statistic + (reduced ? scores * precision.activation : 0);
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
    case OpKind::linear: {  // a weight gradient that cannot be added in place
      if (forward || !reduced) {
        return 0;
      }
      std::int64_t rows = 0;
      for (const Term& term : op.terms[static_cast<std::size_t>(seat.group_rank)]) {
        rows = std::max(rows, term.rows.size());
      }
      const auto held = program.values[static_cast<std::size_t>(op.in[1])].placement.kind ==
                        Placement::Kind::shard;
      return held ? rows * program.values[static_cast<std::size_t>(op.in[1])].whole.cols *
                        precision.activation
                  : 0;
    }
    case OpKind::attention: {
      const auto calls = attention_calls(program, op, seat.group_rank);
      std::int64_t most = 0;
      for (const AttentionCall& call : calls) {
        most = std::max(
            most,
            forward ? flash_forward_bytes(call, program.head_dim, precision)
                    : flash_backward_bytes(call, program.head_dim, precision));
      }
      if (forward && calls.size() == 1) {  // the kernel's results are the op's
        most -= bytes(program, op.out[0], seat, precision) +
                bytes(program, op.out[1], seat, precision);
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
        sum += tile * x.cols * (precision.statistic + (reduced ? precision.activation : 0));
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
