// Ring self-attention (Li et al. 2021, Colossal-AI's sequence parallelism): a ring of keys builds
// full rows of scores, which become probabilities and are kept; a ring of values makes the output.
//
// Dropout is drawn again where probabilities meet values, a tile at a time; those that are kept
// have none.
//
// Memory is quadratic in a document's tokens: here for completeness and for the comparison.  Going
// back keys and values go round together, as in ring_attention.cc.
#include <cmath>
#include <numbers>

#include "paradyse/plan/detail/index.h"
#include "src/run/ops/attention_blocks.h"
#include "src/run/ops/ring.h"

namespace paradyse::ops {
namespace {

// What forward and adjoint both walk over.
class Scores {
 public:
  Scores(const Frame& frame, const Op& op)
      : program_(frame.program()),
        op_(op),
        rank_(frame.rank->seat.group_rank),
        mine_(op.heads[idx(rank_)]),
        runs_(score_runs(program_.documents, rank_, mine_.query.size(), program_.shape.window)),
        heads_(over_blocks(frame, op, {})) {}

  [[nodiscard]] const std::vector<ScoreRun>& runs() const { return runs_; }
  [[nodiscard]] std::int64_t heads() const { return mine_.query.size(); }
  [[nodiscard]] std::int64_t D() const { return program_.shape.head_dim; }
  [[nodiscard]] double scale() const { return program_.shape.scale_of_scores(); }
  [[nodiscard]] double cap() const { return program_.shape.score_cap; }
  [[nodiscard]] bool masked() const { return masks(program_); }

  [[nodiscard]] bool drops() const { return op_.probability > 0; }
  // Rows of a tile, and room for a tile.
  [[nodiscard]] std::int64_t height() const { return score_tile_rows(runs_); }
  [[nodiscard]] at::Tensor room(const Frame& frame, at::ScalarType type) const {
    return frame.empty(height() * longest(runs_), 1, type).flatten();
  }

  // Calls body(queries, keys, head, key head, their scores [queries, keys], their dropout) for a
  // hop's blocks; scores lie as rows of a document's keys, `heads()` of them a token.
  template <typename Body>
  void for_blocks(int hop, const at::Tensor& scores, Body body) const {
    for (const AttentionBlock& block : ring_blocks(program_, op_, rank_, hop)) {
      const ScoreRun& run = *std::find_if(
          runs_.begin(), runs_.end(), [&](const ScoreRun& r) { return r.rows == block.queries; });
      const std::int64_t first_key = run.seen - 1 - block.diagonal;  // of the run's rows
      for (const HeadRun& together : heads_.runs) {
        const kernels::AttentionDropout dropout = heads_.dropout_of(block, together);
        for (std::int64_t h = together.queries.begin; h < together.queries.end; ++h) {
          body(
              block.queries,
              block.keys,
              h,
              together.key,
              scores.as_strided(
                  {block.queries.size(), block.keys.size()},
                  {heads() * run.keys, 1},
                  scores.storage_offset() + run.first_score + h * run.keys + first_key),
              dropout.from(0, h - together.queries.begin, 0));
        }
      }
    }
  }

 private:
  const Program& program_;
  const Op& op_;
  int rank_;
  Heads mine_;
  std::vector<ScoreRun> runs_;
  BlockAttention heads_;
};

// Calls body(tile, the scores' rows of it) for tiles of a block's queries.
template <typename Body>
void for_tiles(Interval queries, std::int64_t height, const at::Tensor& scores, Body body) {
  for (std::int64_t i = queries.begin; i < queries.end; i += height) {
    const Interval tile{i, std::min(i + height, queries.end)};
    body(tile, scores.narrow(0, i - queries.begin, tile.size()));
  }
}

// As much of a room as these scores take.
at::Tensor like(const at::Tensor& scores, const at::Tensor& room) {
  return room.narrow(0, 0, scores.numel()).view(scores.sizes());
}

// Columns [column, column + D) of these rows.
at::Tensor part(const at::Tensor& matrix, Interval rows, std::int64_t column, std::int64_t D) {
  return matrix.narrow(0, rows.begin, rows.size()).narrow(1, column, D);
}

// Scores, in base 2, become probabilities.
void softmax(const Frame& frame, const Scores& scores, const at::Tensor& sums) {
  for (const ScoreRun& run : scores.runs()) {
    const std::int64_t tokens = run.tokens.size();
    frame.kernels().softmax(
        sums.flatten().narrow(0, run.first_score, tokens * scores.heads() * run.keys),
        {.tokens = tokens,
         .heads = scores.heads(),
         .keys = run.keys,
         .seen = run.seen,
         .masked = scores.masked(),
         .window = run.window,
         .cap = scores.cap()});
  }
}

}  // namespace

void score_attention(Frame& frame, const Op& op) {
  const Scores scores(frame, op);
  const std::int64_t D = scores.D();
  const at::Tensor q_TN = frame.value(op.in[0]);
  const at::Tensor kv = frame.value(op.in[1]);
  const at::Tensor o_TN = frame.make(op.out[0]);
  const at::Tensor p = frame.make(op.out[1]);
  const std::int64_t half = kv.size(1) / 2;
  const at::Tensor o_sums = in_sums(frame, o_TN).zero_();
  const at::Tensor p_sums = in_sums(frame, p);
  const at::Tensor dropped =
      scores.drops() ? scores.room(frame, frame.activation) : at::Tensor();  // a tile
  {
    Ring ring(frame, op, kv.narrow(1, 0, half).contiguous());
    for (int hop = 0; hop < ring.hops(); ++hop) {
      ring.issue();
      scores.for_blocks(
          hop,
          p_sums,
          [&](Interval queries,
              Interval keys,
              std::int64_t h,
              std::int64_t key,
              const at::Tensor& to,
              const kernels::AttentionDropout&) {
            frame.kernels().scaled_product(
                scores.scale() * std::numbers::log2e,
                part(q_TN, queries, h * D, D),
                part(ring.block(), keys, key * D, D).t(),
                0,
                to);
          });
      ring.advance();
    }
  }
  softmax(frame, scores, p_sums);
  finish(p_sums, p);
  Ring ring(frame, op, kv.narrow(1, half, half).contiguous());
  for (int hop = 0; hop < ring.hops(); ++hop) {
    ring.issue();
    scores.for_blocks(
        hop,
        p,
        [&](Interval queries,
            Interval keys,
            std::int64_t h,
            std::int64_t key,
            const at::Tensor& from,
            const kernels::AttentionDropout& dropout) {
          const at::Tensor v_rows = part(ring.block(), keys, key * D, D);
          if (!dropout.drops()) {
            frame.kernels().scaled_product(1, from, v_rows, 1, part(o_sums, queries, h * D, D));
            return;
          }
          for_tiles(queries, scores.height(), from, [&](Interval tile, const at::Tensor& p_rows) {
            const at::Tensor factor = like(p_rows, dropped);
            frame.kernels().drop_probabilities(
                dropout.from(tile.begin - queries.begin, 0, 0), p_rows, factor);
            frame.kernels().scaled_product(1, factor, v_rows, 1, part(o_sums, tile, h * D, D));
          });
        });
    ring.advance();
  }
  finish(o_sums, o_TN);
}

void score_attention_adjoint(Frame& frame, const Op& op) {
  const Scores scores(frame, op);
  const std::int64_t D = scores.D();
  const at::Tensor q_TN = frame.value(op.in[0]);
  const at::Tensor kv = frame.value(op.in[1]);
  const at::Tensor o_TN = frame.value(op.out[0]);
  const at::Tensor p = frame.value(op.out[1]);
  const at::Tensor grad_o_TN = frame.gradient(op.out[0]);
  const at::Tensor grad_q_TN = frame.only_gradient_target(op.in[0]);
  const at::Tensor grad_kv = frame.only_gradient_target(op.in[1]);
  const at::Tensor grad_q_sums = in_sums(frame, grad_q_TN).zero_();
  const at::Tensor own_sums = in_sums(frame, grad_kv).zero_();
  const std::int64_t half = kv.size(1) / 2;
  // The gradient of a tile of scores, for the next product in the type of its other factor.
  const bool narrow = frame.activation != frame.statistic;
  const at::Tensor d_sums = scores.room(frame, frame.statistic);
  const at::Tensor d_narrow = narrow ? scores.room(frame, frame.activation) : d_sums;
  const double cap = scores.cap();  // whose slope is made of the scores again
  const at::Tensor slopes = cap > 0 ? scores.room(frame, frame.statistic) : at::Tensor();

  Ring ring(frame, op, kv);
  RingSums sums(ring, own_sums);
  for (int hop = 0; hop < ring.hops(); ++hop) {
    const at::Tensor to = sums.target(hop, [&] { ring.issue(); });
    scores.for_blocks(
        hop,
        p,
        [&](Interval queries,
            Interval keys,
            std::int64_t h,
            std::int64_t key,
            const at::Tensor& from,
            const kernels::AttentionDropout& dropout) {
          const at::Tensor k_rows = part(ring.block(), keys, key * D, D);
          const at::Tensor v_rows = part(ring.block(), keys, half + key * D, D);
          for_tiles(queries, scores.height(), from, [&](Interval tile, const at::Tensor& p_rows) {
            const kernels::AttentionDropout here = dropout.from(tile.begin - queries.begin, 0, 0);
            const at::Tensor q_rows = part(q_TN, tile, h * D, D);
            const at::Tensor g_rows = part(grad_o_TN, tile, h * D, D);
            const at::Tensor d = like(p_rows, d_sums);
            const at::Tensor factor = narrow ? like(p_rows, d_narrow) : d;
            frame.kernels().scaled_product(1, g_rows, v_rows.t(), 0, d);
            if (here.drops()) {
              frame.kernels().drop_probabilities(here, d, d);
            }
            frame.kernels().score_gradient(p_rows, part(o_TN, tile, h * D, D), g_rows, d, factor);
            if (cap > 0) {
              at::Tensor slope = like(p_rows, slopes);
              frame.kernels().scaled_product(scores.scale() / cap, q_rows, k_rows.t(), 0, slope);
              at::Tensor(factor).mul_(slope.tanh_().square_().neg_().add_(1));
            }
            frame.kernels().scaled_product(
                scores.scale(), factor, k_rows, 1, part(grad_q_sums, tile, h * D, D));
            frame.kernels().scaled_product(
                scores.scale(), factor.t(), q_rows, 1, part(to, keys, key * D, D));
            if (here.drops()) {  // the scores' gradient is no longer read
              frame.kernels().drop_probabilities(here, p_rows, factor);
            }
            frame.kernels().scaled_product(
                1,
                (here.drops() ? factor : p_rows).t(),
                g_rows,
                1,
                part(to, keys, half + key * D, D));
          });
        });
    ring.advance();
  }
  sums.come_home();
  finish(grad_q_sums, grad_q_TN);
  finish(own_sums, grad_kv);
}

}  // namespace paradyse::ops
