// Softmax attention in each document, or along each line: (qkv) or (q, kv), and bias -> o, l.
//
//   S = q k^T / sqrt(D) + bias    P = softmax(S) over the keys that a query sees    o = P v
//   l = log of the sum of exp(S) over those keys
//
// Gemma 2 (Gemma Team 2024) caps scores first, cap tanh(S / cap), and divides q k by another root;
// queries may see a window of keys alone (Beltagy et al. 2020).
//
// In training P may have dropout, o = (P m / (1 - p)) v with m 0 with probability p and else 1; l
// is that of all scores.  m is a function of seed, site, the query's token, head and the key's
// position, so tiles of it are drawn where they are needed, in the adjoint again: dP = (do v^T) m /
// (1 - p), and do o is still the sum of P dP.
//
// For each of the rank's heads, queries and keys of one document: q [Tq, D], k and v [Tk, D], o
// like q.  Columns of qkv: query heads | key heads | value heads.  l is kept instead of P, which
// the adjoint makes again from it.  The bias [Tq Tk, heads], in the order of a line's queries, then
// keys, is the same for all lines (Jumper et al. 2021, algorithm 7); its gradient is the sum over
// them of that of the scores.  No rank meets another: a rank has all keys of its queries.  Keys of
// a line that the batch's mask does not count have P = 0 (src/run/ops/masks.h).
#include "src/plan/ops/attention.h"

#include <algorithm>

#include "paradyse/plan/detail/index.h"
#include "src/plan/ops/masks.h"
#include "src/plan/ops/needs.h"

namespace paradyse {

Work attention_work(
    const OpView& view,
    const std::vector<std::vector<AttentionBlock>>& hops,
    int adjoint_products) {
  const Op& op = view.op;
  const std::int64_t heads = op.heads[idx(view.seat.group_rank)].query.size();
  // forward: scores and values; adjoint: scores again (if not kept), dP, dV, dQ, dK
  const double flops_of_pair = 2.0 * (view.forward() ? 2 : adjoint_products);
  Work work;
  for (const std::vector<AttentionBlock>& blocks : hops) {
    for (const AttentionBlock& block : blocks) {
      work.attention_flops += flops_of_pair *
                              static_cast<double>(block.pairs(masks(view.program))) *
                              static_cast<double>(heads * view.program.shape.head_dim);
      work.calls += heads;
    }
    work.launches += blocks.empty() ? 0 : 1;
  }
  for (const ValueId in : op.in) {
    work.operand_bytes += static_cast<double>(view.bytes(in));
  }
  work.operand_bytes += static_cast<double>(view.bytes(op.out[0]));
  work.operand_bytes *= view.forward() ? 1 : 2;
  return work;
}

// Tiles of scores (the adjoint: and of their gradient), a maximum, a sum and a factor a query (the
// adjoint: two numbers); in narrow types also the tiles rounded.  Results: of one head, the
// adjoint's dK and dV, then its dQ.
std::int64_t attention_bytes(
    const OpView& view, const std::vector<AttentionBlock>& blocks, bool rounds) {
  const Precision precision = view.precision;
  std::int64_t most = 0;
  for (const AttentionBlock& block : blocks) {
    const AttentionTile tile = attention_tile(block);
    const std::int64_t scores = (view.forward() ? 1 : 2) * tile.queries * tile.keys;
    const std::int64_t rows = (view.forward() ? 3 : 2) * tile.queries;
    const std::int64_t results =
        view.program.shape.head_dim *
        (view.forward() ? block.queries.size() : block.queries.size() + 2 * block.keys.size());
    most = std::max(
        most,
        (scores + rows + (precision.narrow() && rounds ? results : 0)) * precision.statistic +
            (precision.narrow() ? scores * precision.activation : 0));
  }
  return most;
}

namespace {

Work whole_attention_work(const OpView& view) {
  return attention_work(view, {attention_blocks(view.program, view.op, view.seat.group_rank)}, 5);
}

std::int64_t whole_attention_workspace(const OpView& view) {
  // the gradient of a bias adds up over lines before it is rounded
  const ValueId bias = bias_of(view.op);
  const bool sums = bias >= 0 && !view.forward() && view.precision.narrow();
  return attention_bytes(
             view, attention_blocks(view.program, view.op, view.seat.group_rank), /*rounds=*/true) +
         (sums ? view.extent(bias).elements() * view.precision.statistic : 0) +
         mask_bytes(view, view.value(keys_of(view.op)).layout);
}

bool whole_attention_adds(const Op& op, std::size_t operand) {
  return op.biased && op.in[operand] == bias_of(op);
}

}  // namespace

extern const OpTraits kAttention = {
    .name = "attention",
    .core = true,
    .adds = whole_attention_adds,
    .needs = needs_operands_and_results,
    .work = whole_attention_work,
    .workspace = whole_attention_workspace};

}  // namespace paradyse
