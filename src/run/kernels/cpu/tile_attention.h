// Softmax attention of one head, a tile of scores at a time (FlashAttention-2, Dao 2023): exact,
// memory linear in the tokens, sums in float32 (float64 for float64) throughout.
//
// Beside torch's CPU kernel it stops at the diagonal more closely, never rounds a sum, merges into
// results of other key blocks (which is what rings need), and holds what attention_bytes() of
// src/plan/ops/attention.cc says.
#pragma once

#include <ATen/ATen.h>

#include "src/run/kernels/attention.h"

namespace paradyse::ops {

// Rows block.queries of o = softmax(scale q k^T + bias) v and of l, the log-sum-exp of the scores;
// with dropout of the softmax, of which l and the sums know nothing.
// `merge`: o and l hold the result of earlier keys, which these join.  A query that sees no key has
// o = 0 and l = -inf.
void attend(const Attention& attention, const AttentionTensors& tensors, bool merge = false);

// Adds to the gradients of q, k, v and bias what comes from this block; o and l are those of all
// keys.
void attend_adjoint(
    const Attention& attention,
    const AttentionTensors& tensors,
    const AttentionGradients& gradients);

// Those of the table (kernels.h): head by head, block by block.
void attend_blocks(const BlockAttention& attention, const AttentionMatrices& in, bool merge);
void attend_blocks_adjoint(
    const BlockAttention& attention,
    const AttentionMatrices& in,
    const AttentionMatrices& gradients,
    bool fresh);

}  // namespace paradyse::ops
