// The heads of an attention op on a rank, and the blocks that they work on, as kernels take them.
#pragma once

#include <vector>

#include "paradyse/plan/detail/index.h"
#include "src/run/ops/frame.h"

namespace paradyse::ops {

inline std::vector<HeadRun> head_runs(const Op& op, int group_rank) {
  const Heads mine = op.heads[idx(group_rank)];
  std::vector<HeadRun> runs;
  if (mine.query.empty()) {
    return runs;
  }
  const std::int64_t group = heads_per_key(op);
  for (std::int64_t head = mine.query.begin; head < mine.query.end;) {
    const std::int64_t key = head / group;
    const std::int64_t end = std::min(mine.query.end, (key + 1) * group);
    runs.push_back(
        {.queries = {head - mine.query.begin, end - mine.query.begin},
         .key = key - mine.key.begin});
    head = end;
  }
  return runs;
}

inline BlockAttention over_blocks(
    const Frame& frame, const Op& op, std::vector<AttentionBlock> blocks) {
  const Program& program = frame.program();
  const int rank = frame.rank->seat.group_rank;
  const Heads& heads = op.heads[idx(rank)];
  return {
      .blocks = std::move(blocks),
      .runs = head_runs(op, rank),
      .query_heads = heads.query.size(),
      .key_heads = heads.key.size(),
      .head_dim = program.shape.head_dim,
      .scale = program.shape.scale_of_scores(),
      .cap = program.shape.score_cap,
      .masked = masks(program),
      .dense_from = frame.rank->attention_dense_from,
      .dropout =
          {.probability = op.probability,
           .seed = frame.batch->dropout_seed,
           .site = frame.part->site},
      .first_head = heads.query.begin,
      .tokens = frame.batch->all_tokens_of,
      .positions = frame.batch->all_positions,
      .on_device = [numbers = frame.numbers](const std::vector<std::int64_t>& list) {
        return numbers->narrow(list);
      }};
}

}  // namespace paradyse::ops
