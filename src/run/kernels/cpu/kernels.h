// Loops that torch has no fused CPU kernel for.  Rows are contiguous; one thread.
#pragma once

#include <cstdint>
#include <span>

#include <ATen/ATen.h>

#include "paradyse/plan/cuts.h"

namespace paradyse::kernels {

// RMSNorm (Zhang & Sennrich 2019): y = x / rms(x) * w, rms = sqrt(mean(x^2) + eps).
//   x, y [t, n H]: each of the n runs of a row is normed by itself; w [H]; sums in float32 (float64
//   for float64).
void rms_norm(const at::Tensor& x, const at::Tensor& w, double eps, const at::Tensor& y);

// The gradient of y is read, that of x made or added to; those of w and b [H] (statistic type) are
// always added to.
struct NormGradients {
  at::Tensor y;
  at::Tensor x;
  bool accumulate = false;  // into x
  at::Tensor w;
  at::Tensor b = {};  // of a LayerNorm
};
void rms_norm_adjoint(
    const at::Tensor& x, const at::Tensor& w, double eps, const NormGradients& gradients);

// LayerNorm (Ba et al. 2016): y = (x - mean(x)) / sqrt(mean((x - mean(x))^2) + eps) * w + b.
//   x, y [t, H]; w, b [H].
void layer_norm(
    const at::Tensor& x, const at::Tensor& w, const at::Tensor& b, double eps, const at::Tensor& y);

void layer_norm_adjoint(
    const at::Tensor& x, const at::Tensor& w, double eps, const NormGradients& gradients);

// Adds b [n] to every row of y [t, n], which is of b's type or of that of its sums.
void add_to_rows(const at::Tensor& y, const at::Tensor& b);

// Adds the sum of y's rows to sums [n] of the statistic type; y [t, n] of any type.
void add_sum_of_rows(const at::Tensor& y, const at::Tensor& sums);

// Adds the sum over rows of a b, both [t, n] of any type, to sums [n] of the statistic type.
void add_sum_of_products(const at::Tensor& a, const at::Tensor& b, const at::Tensor& sums);

// Adds numbers [n] of the statistic type to `to` [n] of any type.
void add_numbers(const at::Tensor& to, const at::Tensor& numbers);

// Which elements become zero: a function of the seed, the place in the model, the token's index in
// the global batch and the column; by Philox4x32-10 (Salmon et al. 2011), counter {column / 4,
// site, token (two words)}, four columns a draw.
struct Dropout {
  double probability = 0;
  std::uint64_t seed = 0;
  std::uint32_t site = 0;
};
// to [t, H] = from / (1 - probability), or 0; `tokens`: the index of every row's.
void dropout(
    const Dropout& dropout,
    std::span<const std::int64_t> tokens,
    const at::Tensor& from,
    const at::Tensor& to);

struct Rotation {
  std::int64_t heads = 0;  // that are rotated: the first of every row
  std::int64_t head_dim = 0;
  at::Tensor cosines;  // [positions, D/2] in the statistic type
  at::Tensor sines;
  std::span<const std::int64_t> positions;  // a row's
  bool inverse = false;                     // back: the adjoint
};
// Rotates heads in place (Su et al. 2021, in Hugging Face's convention: dim i is paired with
// i + D/2).
//   x [t, >= heads * D]
void rotate(const at::Tensor& x, const Rotation& rotation);

// SwiGLU (Shazeer 2020): a = silu(gate) up, silu(x) = x / (1 + exp(-x)).
//   h [t, 2F]: gate, then up; a [t, F]
void swiglu(const at::Tensor& h, const at::Tensor& a);
// grad_h from grad_a [t, F]: d gate = da up silu'(gate), d up = da silu(gate).
void swiglu_adjoint(const at::Tensor& h, const at::Tensor& grad_a, const at::Tensor& grad_h);

// A tile of attention scores in base 2.
struct Scores {
  at::ScalarType type = at::kFloat;  // of the values they are made from
  void* sums = nullptr;              // [rows, cols] in the type of its sums
  void* narrow = nullptr;            // bfloat16, float16: room for the result rounded
  std::int64_t rows = 0;
  std::int64_t cols = 0;
};

// One step of the running softmax: row r, whose first `first_visible + r + 1` columns count,
// becomes 2^(score - maximum), others 0; maximum and sum [rows] take them in, and factor [rows] is
// 2^(maximum before - after), by which earlier results have to be multiplied.
void softmax_tile(
    const Scores& scores, std::int64_t first_visible, void* maximum, void* sum, void* factor);

// p: scores, becomes the probabilities 2^(score - log_sum); d: their gradient, becomes that of the
// scores, p (d - dot), where dot is the sum of p d over all keys.
void softmax_tile_adjoint(
    const Scores& p,
    const Scores& d,
    std::int64_t first_visible,
    const void* log_sum,
    const void* dot);

// Rows of numbers, `stride` elements apart.
struct StridedRows {
  const void* data = nullptr;
  std::int64_t stride = 0;
};
// to [rows, cols], side by side, in the type of sums.
void rows_to_numbers(
    at::ScalarType type, StridedRows from, std::int64_t rows, std::int64_t cols, void* to);
// Back, rounded: `to`, rows `stride` elements apart.
void numbers_to_rows(
    at::ScalarType type,
    const void* from,
    std::int64_t rows,
    std::int64_t cols,
    void* to,
    std::int64_t stride);

// dots [rows], in the type of sums: row r of a times row r of b.
void dot_rows(
    at::ScalarType type,
    StridedRows a,
    StridedRows b,
    std::int64_t rows,
    std::int64_t cols,
    void* dots);

// Multiplies row r by factor[r].
void scale_rows(
    at::ScalarType type,
    void* data,
    std::int64_t stride,
    std::int64_t rows,
    std::int64_t cols,
    const void* factor);

}  // namespace paradyse::kernels
