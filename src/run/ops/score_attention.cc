// Ring self-attention (Li et al. 2021, Colossal-AI's sequence parallelism): a ring of keys builds
// full rows of scores, which become probabilities and are kept; a ring of values makes the output.
//
// Memory is quadratic in a document's tokens: here for completeness and for the comparison.  Going
// back keys and values go round together, as in ring_attention.cc.
#include <cmath>
#include <numbers>

#include "src/run/ops/attention_blocks.h"
#include "src/run/ops/kernels.h"
#include "src/run/ops/products.h"
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
        mine_(op.heads[static_cast<std::size_t>(rank_)]),
        runs_(score_runs(program_.tokens, rank_, mine_.query.size())),
        heads_(head_runs(op, rank_)) {}

  [[nodiscard]] const std::vector<ScoreRun>& runs() const { return runs_; }
  [[nodiscard]] std::int64_t heads() const { return mine_.query.size(); }
  [[nodiscard]] std::int64_t D() const { return program_.head_dim; }
  [[nodiscard]] double scale() const { return 1 / std::sqrt(static_cast<double>(D())); }
  [[nodiscard]] bool causal() const { return program_.tokens.causal; }

  // Calls body(queries, keys, head, key head, scores of the head's first query and key) for a
  // hop's blocks, scores as rows of a document's keys, `heads()` of them a token.
  template <typename T, typename Body>
  void for_blocks(int hop, const at::Tensor& scores, Body body) const {
    for (const AttentionBlock& block : ring_blocks(program_, op_, rank_, hop)) {
      const ScoreRun& run = *std::find_if(
          runs_.begin(), runs_.end(), [&](const ScoreRun& r) { return r.rows == block.queries; });
      const std::int64_t first_key = run.tokens.begin - block.diagonal;  // in the document
      for (const HeadRun& together : heads_) {
        for (std::int64_t h = together.queries.begin; h < together.queries.end; ++h) {
          T* data = scores.mutable_data_ptr<T>() + run.first_score + h * run.keys + first_key;
          body(block.queries, block.keys, h, together.key, Rows<T>{data, heads() * run.keys});
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

template <typename T>
Rows<T> rows_of(const at::Tensor& matrix, Interval rows, std::int64_t column) {
  if constexpr (std::is_const_v<T>) {
    const auto* data = matrix.const_data_ptr<std::remove_const_t<T>>();
    return {data + rows.begin * matrix.size(1) + column, matrix.size(1)};
  } else {
    return {matrix.mutable_data_ptr<T>() + rows.begin * matrix.size(1) + column, matrix.size(1)};
  }
}

// Scores, in base 2, become probabilities.
template <typename S>
void softmax(const Scores& scores, const at::Tensor& sums) {
  const at::ScalarType type = sums.scalar_type();
  for (const ScoreRun& run : scores.runs()) {
    S* row = sums.mutable_data_ptr<S>() + run.first_score;
    for (std::int64_t token = run.tokens.begin; token < run.tokens.end; ++token) {
      for (std::int64_t h = 0; h < scores.heads(); ++h, row += run.keys) {
        S maximum = -std::numeric_limits<S>::infinity();
        S sum = 0;
        S factor = 0;
        kernels::softmax_tile(
            {.type = type, .sums = row, .rows = 1, .cols = run.keys},
            scores.causal() ? token : run.keys,
            &maximum,
            &sum,
            &factor);
        factor = 1 / sum;
        kernels::scale_rows(type, row, run.keys, 1, run.keys, &factor);
      }
    }
  }
}

template <typename T>
void forward(Frame& frame, const Op& op) {
  using S = Sum<T>;
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
      scores.for_blocks<S>(
          hop,
          p_sums,
          [&](Interval queries, Interval keys, std::int64_t h, std::int64_t key, Rows<S> to) {
            gemm<T>(
                queries.size(),
                keys.size(),
                D,
                scores.scale() * std::numbers::log2e,
                rows_of<const T>(q_TN, queries, h * D),
                rows_of<const T>(ring.block(), keys, key * D).t(),
                0,
                to);
          });
      ring.advance();
    }
  }
  softmax<S>(scores, p_sums);
  finish(p_sums, p);
  Ring ring(frame, op, kv.narrow(1, half, half).contiguous());
  for (int hop = 0; hop < ring.hops(); ++hop) {
    ring.issue();
    scores.for_blocks<T>(
        hop,
        p,
        [&](Interval queries, Interval keys, std::int64_t h, std::int64_t key, Rows<T> from) {
          gemm<T>(
              queries.size(),
              D,
              keys.size(),
              1,
              {from.data, from.stride},
              rows_of<const T>(ring.block(), keys, key * D),
              1,
              rows_of<S>(o_sums, queries, h * D));
        });
    ring.advance();
  }
  finish(o_sums, o_TN);
}

// o grad_o of each row.
template <typename T>
std::vector<Sum<T>> dots(
    const at::Tensor& o,
    const at::Tensor& grad_o,
    Interval rows,
    std::int64_t column,
    std::int64_t D) {
  std::vector<Sum<T>> sums(static_cast<std::size_t>(rows.size()));
  const Rows<const T> a = rows_of<const T>(o, rows, column);
  const Rows<const T> b = rows_of<const T>(grad_o, rows, column);
  for (std::int64_t r = 0; r < rows.size(); ++r) {
    for (std::int64_t c = 0; c < D; ++c) {
      sums[static_cast<std::size_t>(r)] += static_cast<Sum<T>>(a.data[r * a.stride + c]) *
                                           static_cast<Sum<T>>(b.data[r * b.stride + c]);
    }
  }
  return sums;
}

// d, the gradient of probabilities p, becomes that of the scores, and is rounded into `narrow`.
template <typename T>
void score_gradient(
    std::int64_t rows,
    std::int64_t cols,
    Rows<const T> p,
    const std::vector<Sum<T>>& dots,
    Rows<Sum<T>> d,
    const at::Tensor& narrow) {
  for (std::int64_t r = 0; r < rows; ++r) {
    const T* p_row = p.data + r * p.stride;
    Sum<T>* d_row = d.data + r * d.stride;
    for (std::int64_t c = 0; c < cols; ++c) {
      d_row[c] = static_cast<Sum<T>>(p_row[c]) * (d_row[c] - dots[static_cast<std::size_t>(r)]);
    }
    if constexpr (kNarrow<T>) {
      T* to = narrow.mutable_data_ptr<T>() + r * cols;
      for (std::int64_t c = 0; c < cols; ++c) {
        to[c] = static_cast<T>(d_row[c]);
      }
    }
  }
}

template <typename T>
void adjoint(Frame& frame, const Op& op) {
  using S = Sum<T>;
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
  const at::Tensor d_sums = frame.empty(height, width, frame.statistic);
  const at::Tensor d = kNarrow<T> ? frame.empty(height, width, frame.activation) : d_sums;

  Ring ring(frame, op, kv);
  RingSums sums(frame, ring, own_sums);
  for (int hop = 0; hop < ring.hops(); ++hop) {
    const at::Tensor to = sums.target(hop, [&] { ring.issue(); });
    scores.for_blocks<T>(
        hop,
        p,
        [&](Interval queries, Interval keys, std::int64_t h, std::int64_t key, Rows<T> from) {
          const std::int64_t m = keys.size();
          const Rows<const T> k_rows = rows_of<const T>(ring.block(), keys, key * D);
          const Rows<const T> v_rows = rows_of<const T>(ring.block(), keys, half + key * D);
          for (std::int64_t i = queries.begin; i < queries.end; i += height) {
            const Interval tile{i, std::min(i + height, queries.end)};
            const Rows<const T> q_rows = rows_of<const T>(q_TN, tile, h * D);
            const Rows<const T> g_rows = rows_of<const T>(grad_o_TN, tile, h * D);
            const Rows<const T> p_rows{from.from(i - queries.begin).data, from.stride};
            const Rows<S> d_rows{d_sums.mutable_data_ptr<S>(), m};
            gemm<T>(tile.size(), m, D, 1, g_rows, v_rows.t(), 0, d_rows);
            score_gradient<T>(
                tile.size(), m, p_rows, dots<T>(o_TN, grad_o_TN, tile, h * D, D), d_rows, d);
            const Rows<const T> factor{d.const_data_ptr<T>(), m};
            gemm<T>(
                tile.size(),
                D,
                m,
                scores.scale(),
                factor,
                k_rows,
                1,
                rows_of<S>(grad_q_sums, tile, h * D));
            gemm<T>(
                m,
                D,
                tile.size(),
                scores.scale(),
                factor.t(),
                q_rows,
                1,
                rows_of<S>(to, keys, key * D));
            gemm<T>(
                m, D, tile.size(), 1, p_rows.t(), g_rows, 1, rows_of<S>(to, keys, half + key * D));
          }
        });
    ring.advance();
  }
  sums.come_home();
  finish(grad_q_sums, grad_q_TN);
  finish(own_sums, grad_kv);
}

}  // namespace

void score_attention(Frame& frame, const Op& op) {
  AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kBFloat16, at::kHalf, frame.activation, "score_attention", [&] {
        forward<scalar_t>(frame, op);
      });
}

void score_attention_adjoint(Frame& frame, const Op& op) {
  AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kBFloat16, at::kHalf, frame.activation, "score_attention_adjoint", [&] {
        adjoint<scalar_t>(frame, op);
      });
}

}  // namespace paradyse::ops
