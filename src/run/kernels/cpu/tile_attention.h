// Softmax attention of one head, a tile of scores at a time (FlashAttention-2, Dao 2023): exact,
// memory linear in the tokens, sums in float32 (float64 for float64) throughout.
//
// Beside torch's CPU kernel it stops at the diagonal more closely, never rounds a sum, merges into
// results of other key blocks (which is what rings need), and holds what attention_bytes() of
// src/plan/ops/attention.cc says.
#pragma once

#include <ATen/ATen.h>

#include "paradyse/plan/program.h"

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
  bool causal = true;  // block.diagonal says which keys a query sees
};

// What it reads (q, k, v) and makes.
//   q, o: heads * head_dim columns; k, v: head_dim; l: heads.  q, k, v of one type, l of its sums'
//   type, o of either.  bias, where its matrix is there: heads, of q's type, a row for each query
//   of the block and each key, query by query.
struct AttentionTensors {
  Columns q;
  Columns k;
  Columns v;
  Columns o;
  Columns l;
  Columns bias = {};
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

// Rows block.queries of o = softmax(scale q k^T + bias) v and of l, the log-sum-exp of the scores.
// `merge`: o and l hold the result of earlier keys, which these join.  A query that sees no key has
// o = 0 and l = -inf.
void attend(const Attention& attention, const AttentionTensors& tensors, bool merge = false);

// Adds to the gradients of q, k, v and bias what comes from this block; o and l are those of all
// keys.
void attend_adjoint(
    const Attention& attention,
    const AttentionTensors& tensors,
    const AttentionGradients& gradients);

}  // namespace paradyse::ops
