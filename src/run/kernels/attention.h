// What attention kernels are given: heads as columns of matrices, and blocks of tokens.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include <ATen/ATen.h>

#include "paradyse/plan/detail/index.h"
#include "paradyse/plan/program.h"
#include "src/run/kernels/dropout.h"

namespace paradyse::ops {

// Columns of a matrix with a row a token.
struct Columns {
  at::Tensor matrix;  // rows contiguous
  std::int64_t first = 0;
};

// `heads` consecutive query heads and the one key/value head they share.
struct Attention {
  AttentionBlock block;
  std::int64_t heads = 1;
  std::int64_t head_dim = 0;
  double scale = 1;    // of q k
  bool masked = true;  // block.diagonal and block.window say which keys a query sees
  double cap = 0;  // scores s are cap tanh(s / cap); 0: as they are.  None with a bias or a mask
  kernels::AttentionDropout dropout = {};  // of the block's first query and key
};

// What it reads (q, k, v) and makes.
//   q, o: heads * head_dim columns; k, v: head_dim; l: heads.  q, k, v of one type, l of its sums'
//   type, o of either.  bias, where its matrix is there: heads, of q's type, a row for each query
//   of the block and each key, query by query.  mask, where it is there: one column of l's type, a
//   row for each key, which is added to its scores.
struct AttentionTensors {
  Columns q;
  Columns k;
  Columns v;
  Columns o;
  Columns l;
  Columns bias = {};
  Columns mask = {};
};

// Of the same columns; those of q, k and v are all of q's type or all of its sums' type, that of
// bias is of the latter.
struct AttentionGradients {
  Columns o;
  Columns q;
  Columns k;
  Columns v;
  Columns bias = {};
};

// Consecutive query heads of a rank that share a key/value head, and that one; both counted from
// the rank's first.
struct HeadRun {
  Interval queries;
  std::int64_t key = 0;
};

// All heads of a rank over blocks of its tokens; blocks of the same queries follow one another.
struct BlockAttention {
  std::vector<AttentionBlock> blocks;
  std::vector<HeadRun> runs;
  std::int64_t query_heads = 0;
  std::int64_t key_heads = 0;
  std::int64_t head_dim = 0;
  double scale = 1;
  double cap = 0;
  bool masked = true;           // as in Attention
  std::int64_t dense_from = 0;  // tokens; SessionOptions
  kernels::Dropout dropout = {};
  std::int64_t first_head = 0;  // of the rank's query heads, among the model's
  // [packed token] With dropout: its index in the global batch, and its position in its document.
  std::span<const std::int64_t> tokens = {};
  std::span<const std::int64_t> positions = {};
  // Such a list as int32 on the device, where it is sent once; none: each call sends its own.
  std::function<at::Tensor(const std::vector<std::int64_t>& list)> on_device = {};

  [[nodiscard]] Attention of(const AttentionBlock& block, const HeadRun& run) const {
    return {
        .block = block,
        .heads = run.queries.size(),
        .head_dim = head_dim,
        .scale = scale,
        .masked = masked,
        .cap = cap,
        .dropout = dropout_of(block, run)};
  }
  [[nodiscard]] kernels::AttentionDropout dropout_of(
      const AttentionBlock& block, const HeadRun& run) const {
    if (dropout.probability == 0) {
      return {};
    }
    return {
        .drawn = dropout,
        .token = tokens[idx(block.query_token)],
        .head = first_head + run.queries.begin,
        .key = positions[idx(block.key_token)]};
  }
};

// The matrices of it: q | k | v in one, or q and k | v; a bias or none; a mask or none, [keys].
struct AttentionMatrices {
  at::Tensor q;
  at::Tensor kv;
  at::Tensor o;
  at::Tensor l = {};
  at::Tensor bias = {};
  at::Tensor mask = {};
};

// Of them the columns of a run of heads.
AttentionTensors tensors_of(
    const BlockAttention& attention, const HeadRun& run, const AttentionMatrices& in);
AttentionGradients gradients_of(
    const BlockAttention& attention, const HeadRun& run, const AttentionMatrices& in);

}  // namespace paradyse::ops
