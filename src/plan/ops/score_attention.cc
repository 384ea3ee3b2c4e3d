// Ring self-attention (Li et al. 2021): (q, kv) -> o, p, with full rows of scores.
//
// Shapes as in ring_attention.cc.  A ring of keys makes S = q k^T / sqrt(D), all rows of it, which
// becomes P = softmax(S) in place; a ring of values makes o = P v.  P is kept for the adjoint: p
// has, for each of a rank's tokens and heads, a number for every token of its document (or of those
// that a window leaves of it: ScoreRun), so memory is quadratic in a document's length.  With
// dropout o = (P m / (1 - p)) v as in attention.cc; P is kept without it.
#include "src/plan/ops/attention.h"
#include "src/plan/ops/needs.h"
#include "src/plan/ops/ring.h"

namespace paradyse {
namespace {

Work score_attention_work(const OpView& view) {
  // capped scores are made again going back
  const int products = view.program.shape.score_cap > 0 ? 5 : 4;
  Work work = attention_work(view, blocks_by_hop(view), products);
  // probabilities: written as scores, made of them in two passes, read
  work.touched_bytes = 6.0 * static_cast<double>(view.bytes(view.op.out[1]));
  return work;
}

// src/run/ops/score_attention.cc: all scores before they are rounded, and a tile of probabilities
// after dropout; or a tile of the scores' gradient.
std::int64_t score_attention_workspace(const OpView& view) {
  const Precision precision = view.precision;
  const std::int64_t round =
      ring_bytes(view, [](int /*hop*/) { return std::int64_t{0}; }) + unrounded_bytes(view);
  const std::vector<ScoreRun> runs =
      score_runs(view.program.documents, view.seat.group_rank, 1, view.program.shape.window);
  const std::int64_t tile = score_tile_rows(runs) * longest(runs);
  if (view.forward()) {
    const std::int64_t scores = view.extent(view.op.out[1]).elements();
    const std::int64_t dropped = view.op.probability > 0 ? tile * precision.activation : 0;
    return round + dropped + (precision.narrow() ? scores * precision.statistic : 0);
  }
  const std::int64_t sums = view.program.shape.score_cap > 0 ? 2 : 1;  // and the slopes of a cap
  return round +
         tile * (sums * precision.statistic + (precision.narrow() ? precision.activation : 0));
}

}  // namespace

extern const OpTraits kScoreAttention = {
    .name = "score_attention",
    .meets = OpTraits::Meets::group,
    .rings = 2,
    .core = true,
    .needs = needs_operands_and_results,
    .exchanges = ring_exchanges,
    .work = score_attention_work,
    .workspace = score_attention_workspace};

}  // namespace paradyse
