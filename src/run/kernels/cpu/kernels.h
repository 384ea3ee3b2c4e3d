// Loops that torch has no fused CPU kernel for.  Rows are contiguous; one thread.
#pragma once

#include <cstdint>

#include <ATen/ATen.h>

#include "src/run/kernels/kernels.h"

namespace paradyse::kernels {

// Fill the rows of the table (kernels.h) that are such loops, and those whose arithmetic is not
// rearranged (plain_loops.cc).
void add_loops(Kernels& table);
void add_plain_loops(Kernels& table);

// A tile of attention scores in base 2.
struct Scores {
  at::ScalarType type = at::kFloat;  // of the values they are made from
  void* sums = nullptr;              // [rows, cols] in the type of its sums
  void* narrow = nullptr;            // bfloat16, float16: room for the result rounded
  std::int64_t rows = 0;
  std::int64_t cols = 0;
};

// Which of a tile's scores count: of row r the first `first_visible + r + 1` columns, of these the
// last `window` (0: all).  A score s counts as cap tanh(s / cap); 0: as it is.
struct Counted {
  std::int64_t first_visible = 0;
  std::int64_t window = 0;
  double cap = 0;  // in base 2, as scores are
};

// One step of the running softmax: what counts in a row becomes 2^(score - maximum), the rest 0;
// maximum and sum [rows] take it in, and factor [rows] is 2^(maximum before - after), by which
// earlier results have to be multiplied.
void softmax_tile(
    const Scores& scores, const Counted& counted, void* maximum, void* sum, void* factor);

// p: scores, becomes the probabilities 2^(score - log_sum); d: their gradient, becomes that of the
// scores, p (d - dot), where dot is the sum of p d over all keys; of capped ones before their cap.
void softmax_tile_adjoint(
    const Scores& p, const Scores& d, const Counted& counted, const void* log_sum, const void* dot);

// Drops numbers of a tile, for a product where there is room for it rounded, else in place.
void drop_tile(const AttentionDropout& dropout, const Scores& tile);

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
