// The blocks of an attention op, head by head: which columns of its matrices belong together.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "paradyse/plan/index.h"
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

// The matrices of an attention op on a rank: q | k | v in one, or q and k | v; a bias or none.
struct AttentionMatrices {
  at::Tensor q;
  at::Tensor kv;
  at::Tensor o;
  at::Tensor l = {};
  at::Tensor bias = {};
};

// Where a run of heads lies in them.
struct RunColumns {
  const Heads& mine;
  const HeadRun& run;
  std::int64_t D = 0;

  [[nodiscard]] Columns queries(const at::Tensor& matrix) const {
    return {matrix, run.queries.begin * D};
  }
  [[nodiscard]] Columns keys(const AttentionMatrices& in) const { return key_columns(in, 0); }
  [[nodiscard]] Columns values(const AttentionMatrices& in) const {
    return key_columns(in, mine.key.size());
  }

 private:
  [[nodiscard]] Columns key_columns(const AttentionMatrices& in, std::int64_t head) const {
    const std::int64_t first = in.q.is_same(in.kv) ? mine.query.size() : 0;
    return {in.kv, (first + head + run.key) * D};
  }
};

inline AttentionTensors tensors_of(const AttentionMatrices& in, const RunColumns& at) {
  return {
      .q = at.queries(in.q),
      .k = at.keys(in),
      .v = at.values(in),
      .o = at.queries(in.o),
      .l = {in.l, at.run.queries.begin},
      .bias = {in.bias, at.run.queries.begin}};
}
inline AttentionGradients gradients_of(const AttentionMatrices& in, const RunColumns& at) {
  return {
      .o = at.queries(in.o),
      .q = at.queries(in.q),
      .k = at.keys(in),
      .v = at.values(in),
      .bias = {in.bias, at.run.queries.begin}};
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
  return through_aten(q) && aten::attention_kernels().flash &&
         aten::flash_takes(q, program.shape.head_dim);
}
inline std::vector<aten::Pack> packs_of(
    const Frame& frame, const std::vector<AttentionBlock>& blocks, const at::Tensor& q) {
  const bool dense =
      aten::attention_kernels().cudnn && aten::dense_takes(q, frame.program().shape.head_dim);
  return aten::packs(
      blocks,
      frame.program().documents.causal,
      dense ? frame.rank->attention_dense_from : aten::kNeverDense);
}

// Whether each row is in just one block, in their order.
inline bool in_a_row(
    const std::vector<AttentionBlock>& blocks, Interval AttentionBlock::* side, std::int64_t rows) {
  std::int64_t end = 0;
  for (const AttentionBlock& block : blocks) {
    if ((block.*side).begin != end) {
      return false;
    }
    end = (block.*side).end;
  }
  return end == rows;
}

// Attends to the keys and values in these blocks.  `merge`: what o and l hold of them is the result
// of earlier keys; else the first block of some queries begins with nothing.
inline void attend_blocks(
    const Frame& frame,
    const Op& op,
    const std::vector<AttentionBlock>& blocks,
    const AttentionMatrices& in,
    bool merge) {
  const Program& program = frame.program();
  const int rank = frame.rank->seat.group_rank;
  const Heads& heads = op.heads[idx(rank)];
  const std::int64_t D = program.shape.head_dim;
  const std::vector<HeadRun> runs = head_runs(op, rank);
  const auto tiles = [&](const AttentionBlock& block, bool onto) {
    for (const HeadRun& run : runs) {
      attend(attention_of(program, block, run), tensors_of(in, {heads, run, D}), onto);
    }
  };
  if (by_flash(in.q, program) && !in.bias.defined()) {
    for (const aten::Pack& pack : packs_of(frame, blocks, in.q)) {
      const bool onto = merge || pack.onto;
      if (!pack.plain && !pack.dense) {
        tiles(pack.blocks.front(), onto);
        continue;
      }
      for (const FlashRuns& run : flash_runs(program, runs)) {
        aten::flash_attend(pack, run.heads, tensors_of(in, {heads, run.first, D}), onto);
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

// Adds what these blocks give to the gradients of q and kv; that of o is read.  `fresh`: nothing is
// in them yet, and all of their rows get their numbers here.
inline void attend_blocks_adjoint(
    const Frame& frame,
    const Op& op,
    const std::vector<AttentionBlock>& blocks,
    const AttentionMatrices& in,
    const AttentionMatrices& gradients,
    bool fresh) {
  const Program& program = frame.program();
  const int rank = frame.rank->seat.group_rank;
  const Heads& heads = op.heads[idx(rank)];
  const std::int64_t D = program.shape.head_dim;
  const std::vector<HeadRun> runs = head_runs(op, rank);
  const auto zero = [&] {
    at::Tensor(gradients.q).zero_();
    if (!gradients.kv.is_same(gradients.q)) {
      at::Tensor(gradients.kv).zero_();
    }
  };
  const auto tiles = [&](const AttentionBlock& block) {
    for (const HeadRun& run : runs) {
      const RunColumns columns{heads, run, D};
      attend_adjoint(
          attention_of(program, block, run),
          tensors_of(in, columns),
          gradients_of(gradients, columns));
    }
  };
  if (by_flash(in.q, program) && !in.bias.defined()) {
    const std::vector<aten::Pack> packs = packs_of(frame, blocks, in.q);
    const auto is_tiles = [](const aten::Pack& pack) { return !pack.plain && !pack.dense; };
    // written by the kernels' results alone, every row and column once
    const bool writes = fresh && std::ranges::none_of(packs, is_tiles) &&
                        in_a_row(blocks, &AttentionBlock::queries, gradients.q.size(0)) &&
                        in_a_row(blocks, &AttentionBlock::keys, gradients.kv.size(0)) &&
                        std::ssize(runs) == heads.key.size();
    if (fresh && !writes) {
      zero();
    }
    for (const aten::Pack& pack : packs) {
      if (is_tiles(pack)) {
        tiles(pack.blocks.front());
        continue;
      }
      for (const FlashRuns& run : flash_runs(program, runs)) {
        const RunColumns columns{heads, run.first, D};
        aten::flash_attend_adjoint(
            pack, run.heads, tensors_of(in, columns), gradients_of(gradients, columns), writes);
      }
    }
    return;
  }
  if (fresh) {
    zero();
  }
  for (const AttentionBlock& block : blocks) {
    tiles(block);
  }
}

}  // namespace paradyse::ops
