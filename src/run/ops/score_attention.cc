// Ring self-attention (Li et al. 2021, Colossal-AI's sequence parallelism): a ring of keys builds
// full rows of scores, which become probabilities and are kept; a ring of values makes the output.
//
// Memory is quadratic in a document's tokens: here for completeness and for the comparison.  Going
// back keys and values go round together, as in ring_attention.cc.
#include <cmath>
#include <numbers>

#include "paradyse/plan/index.h"
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
        heads_(head_runs(op, rank_)) {}

  [[nodiscard]] const std::vector<ScoreRun>& runs() const { return runs_; }
  [[nodiscard]] std::int64_t heads() const { return mine_.query.size(); }
  [[nodiscard]] std::int64_t D() const { return program_.shape.head_dim; }
  [[nodiscard]] double scale() const { return program_.shape.scale_of_scores(); }
  [[nodiscard]] double cap() const { return program_.shape.score_cap; }
  [[nodiscard]] bool causal() const { return program_.documents.causal; }

  // Calls body(queries, keys, head, key head, their scores [queries, keys]) for a hop's blocks;
  // scores lie as rows of a document's keys, `heads()` of them a token.
  template <typename Body>
  void for_blocks(int hop, const at::Tensor& scores, Body body) const {
    for (const AttentionBlock& block : ring_blocks(program_, op_, rank_, hop)) {
      const ScoreRun& run = *std::find_if(
          runs_.begin(), runs_.end(), [&](const ScoreRun& r) { return r.rows == block.queries; });
      const std::int64_t first_key =
          run.tokens.begin - block.diagonal - run.first_key;  // of the run's rows
      for (const HeadRun& together : heads_) {
        for (std::int64_t h = together.queries.begin; h < together.queries.end; ++h) {
          body(
              block.queries,
              block.keys,
              h,
              together.key,
              scores.as_strided(
                  {block.queries.size(), block.keys.size()},
                  {heads() * run.keys, 1},
                  scores.storage_offset() + run.first_score + h * run.keys + first_key));
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
  std::vector<HeadRun> heads_;
};

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
         .seen = run.tokens.begin + 1 - run.first_key,
         .causal = scores.causal(),
         .window = frame.program().shape.window,
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
              const at::Tensor& to) {
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
            const at::Tensor& from) {
          frame.kernels().scaled_product(
              1, from, part(ring.block(), keys, key * D, D), 1, part(o_sums, queries, h * D, D));
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
  const std::int64_t height = score_tile_rows(scores.runs());
  const std::int64_t width = longest(scores.runs());
  const bool narrow = frame.activation != frame.statistic;
  const at::Tensor d_sums = frame.empty(height * width, 1, frame.statistic).flatten();
  const at::Tensor d_narrow =
      narrow ? frame.empty(height * width, 1, frame.activation).flatten() : d_sums;
  const double cap = scores.cap();  // whose slope is made of the scores again
  const at::Tensor slopes =
      cap > 0 ? frame.empty(height * width, 1, frame.statistic).flatten() : at::Tensor();

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
            const at::Tensor& from) {
          const std::int64_t m = keys.size();
          const at::Tensor k_rows = part(ring.block(), keys, key * D, D);
          const at::Tensor v_rows = part(ring.block(), keys, half + key * D, D);
          for (std::int64_t i = queries.begin; i < queries.end; i += height) {
            const Interval tile{i, std::min(i + height, queries.end)};
            const at::Tensor q_rows = part(q_TN, tile, h * D, D);
            const at::Tensor g_rows = part(grad_o_TN, tile, h * D, D);
            const at::Tensor p_rows = from.narrow(0, i - queries.begin, tile.size());
            const auto of_tile = [&](const at::Tensor& room) {
              return room.narrow(0, 0, tile.size() * m).view({tile.size(), m});
            };
            const at::Tensor d = of_tile(d_sums);
            const at::Tensor factor = narrow ? of_tile(d_narrow) : d;
            frame.kernels().scaled_product(1, g_rows, v_rows.t(), 0, d);
            frame.kernels().score_gradient(p_rows, part(o_TN, tile, h * D, D), g_rows, d, factor);
            if (cap > 0) {
              at::Tensor slope = of_tile(slopes);
              frame.kernels().scaled_product(scores.scale() / cap, q_rows, k_rows.t(), 0, slope);
              at::Tensor(factor).mul_(slope.tanh_().square_().neg_().add_(1));
            }
            frame.kernels().scaled_product(
                scores.scale(), factor, k_rows, 1, part(grad_q_sums, tile, h * D, D));
            frame.kernels().scaled_product(
                scores.scale(), factor.t(), q_rows, 1, part(to, keys, key * D, D));
            frame.kernels().scaled_product(
                1, p_rows.t(), g_rows, 1, part(to, keys, half + key * D, D));
          }
        });
    ring.advance();
  }
  sums.come_home();
  finish(grad_q_sums, grad_q_TN);
  finish(own_sums, grad_kv);
}

}  // namespace paradyse::ops
