// The blocks of an attention op, head by head: which columns of its matrices belong together.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "paradyse/plan/index.h"
#include "src/run/device/through_aten.h"
#include "src/run/kernels/aten/aten_attention.h"
#include "src/run/kernels/cpu/tile_attention.h"
#include "src/run/ops/frame.h"

namespace paradyse::ops {

// Consecutive query heads of a rank that share a key/value head, and that one; both counted from
// the rank's first.
struct HeadRun {
  Interval queries;
  std::int64_t key = 0;
};

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

// The columns of a run of query heads, of its key head and of its value head.
struct Operands {
  Columns q;
  Columns k;
  Columns v;
};

// Of q | k | v in one matrix, or of q and of k | v; or of their gradients.
inline Operands operands(
    const at::Tensor& q,
    const at::Tensor& kv,
    const Heads& mine,
    const HeadRun& run,
    std::int64_t D) {
  const std::int64_t keys = q.is_same(kv) ? mine.query.size() : 0;
  return {
      {q, run.queries.begin * D},
      {kv, (keys + run.key) * D},
      {kv, (keys + mine.key.size() + run.key) * D}};
}

inline Attention attention_of(
    const Program& program, const AttentionBlock& block, const HeadRun& run) {
  return {
      .block = block,
      .heads = run.queries.size(),
      .head_dim = program.shape.head_dim,
      .scale = 1 / std::sqrt(static_cast<double>(program.shape.head_dim)),
      .causal = program.documents.causal};
}

// Runs of heads that one flash call takes: all, where each key head has as many queries.
struct FlashRuns {
  HeadRun first;
  aten::FlashHeads heads;
};
inline std::vector<FlashRuns> flash_runs(const Program& program, const std::vector<HeadRun>& runs) {
  const double scale = 1 / std::sqrt(static_cast<double>(program.shape.head_dim));
  std::vector<FlashRuns> all;
  for (const HeadRun& run : runs) {
    const std::int64_t size = run.queries.size();
    if (!all.empty() && size * all.back().heads.key_heads == all.back().heads.heads) {
      all.back().heads.heads += size;
      ++all.back().heads.key_heads;
    } else {
      all.push_back(
          {.first = run,
           .heads = {
               .heads = size, .key_heads = 1, .head_dim = program.shape.head_dim, .scale = scale}});
    }
  }
  return all;
}
inline bool by_flash(const at::Tensor& q, const Program& program) {
  return through_aten(q) && aten::flash_takes(q, program.shape.head_dim);
}

// What an attention op reads and makes on a rank: the queries' side.
struct QuerySide {
  at::Tensor q;
  at::Tensor o;
  at::Tensor l;
};

// Attends to the keys and values of `kv` in these blocks.  `merge`: what o and l hold of them is
// the result of earlier keys; else the first block of some queries begins with nothing.
inline void attend_blocks(
    const Frame& frame,
    const Op& op,
    const std::vector<AttentionBlock>& blocks,
    const QuerySide& mine,
    const at::Tensor& kv,
    bool merge) {
  const Program& program = frame.program();
  const int rank = frame.rank->seat.group_rank;
  const Heads& heads = op.heads[idx(rank)];
  const std::int64_t D = program.shape.head_dim;
  const std::vector<HeadRun> runs = head_runs(op, rank);
  const auto tiles = [&](const AttentionBlock& block, bool onto) {
    for (const HeadRun& run : runs) {
      const auto [q, k, v] = operands(mine.q, kv, heads, run, D);
      const std::int64_t head = run.queries.begin;
      attend(attention_of(program, block, run), q, k, v, {mine.o, head * D}, {mine.l, head}, onto);
    }
  };
  if (by_flash(mine.q, program)) {
    for (const aten::Pack& pack : aten::packs(blocks, program.documents.causal)) {
      const bool onto = merge || pack.onto;
      if (!pack.plain) {
        tiles(pack.blocks.front(), onto);
        continue;
      }
      for (const FlashRuns& run : flash_runs(program, runs)) {
        const auto [q, k, v] = operands(mine.q, kv, heads, run.first, D);
        const std::int64_t head = run.first.queries.begin;
        aten::flash_attend(pack, run.heads, q, k, v, {mine.o, head * D}, {mine.l, head}, onto);
      }
    }
    return;
  }
  std::int64_t begun = 0;  // queries before this one have seen keys
  for (const AttentionBlock& block : blocks) {
    tiles(block, merge || block.queries.begin < begun);
    begun = block.queries.end;
  }
}

// Adds what these blocks give to the gradients of q and kv.
inline void attend_blocks_adjoint(
    const Frame& frame,
    const Op& op,
    const std::vector<AttentionBlock>& blocks,
    const QuerySide& mine,
    const at::Tensor& kv,
    const at::Tensor& grad_o,
    const at::Tensor& grad_q_TN,
    const at::Tensor& grad_kv) {
  const Program& program = frame.program();
  const int rank = frame.rank->seat.group_rank;
  const Heads& heads = op.heads[idx(rank)];
  const std::int64_t D = program.shape.head_dim;
  const std::vector<HeadRun> runs = head_runs(op, rank);
  const auto tiles = [&](const AttentionBlock& block) {
    for (const HeadRun& run : runs) {
      const auto [q, k, v] = operands(mine.q, kv, heads, run, D);
      const auto [grad_q, grad_k, grad_v] = operands(grad_q_TN, grad_kv, heads, run, D);
      const std::int64_t head = run.queries.begin;
      attend_adjoint(
          attention_of(program, block, run),
          q,
          k,
          v,
          {mine.o, head * D},
          {mine.l, head},
          {grad_o, head * D},
          grad_q,
          grad_k,
          grad_v);
    }
  };
  if (by_flash(mine.q, program)) {
    for (const aten::Pack& pack : aten::packs(blocks, program.documents.causal)) {
      if (!pack.plain) {
        tiles(pack.blocks.front());
        continue;
      }
      for (const FlashRuns& run : flash_runs(program, runs)) {
        const auto [q, k, v] = operands(mine.q, kv, heads, run.first, D);
        const auto [grad_q, grad_k, grad_v] = operands(grad_q_TN, grad_kv, heads, run.first, D);
        const std::int64_t head = run.first.queries.begin;
        aten::flash_attend_adjoint(
            pack,
            run.heads,
            q,
            k,
            v,
            {mine.o, head * D},
            {mine.l, head},
            {grad_o, head * D},
            grad_q,
            grad_k,
            grad_v);
      }
    }
    return;
  }
  for (const AttentionBlock& block : blocks) {
    tiles(block);
  }
}

}  // namespace paradyse::ops
