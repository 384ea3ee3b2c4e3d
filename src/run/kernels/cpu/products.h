// Matrix products whose sums are never rounded: narrow factors (bfloat16, float16) are summed in
// float32, and the result is rounded once if it is narrow.
#pragma once

#include <type_traits>

#include <ATen/ATen.h>

namespace paradyse::ops {

// The type in which sums over elements of type T are kept.
template <typename T>
using Sum = std::conditional_t<std::is_same_v<T, double>, double, float>;
template <typename T>
inline constexpr bool kNarrow = !std::is_same_v<T, Sum<T>>;

// to = a b, or to += a b.  a [m, k] and b [k, n] of one type, either may be a transposed view;
// to [m, n] of that type or of its sums, rows contiguous.  An empty k counts as a sum of nothing.
//
// A narrow result is made in float32, so many rows at a time, and then rounded.  Throws
// std::invalid_argument where there is no room for that (kernels.h).
void product(
    const at::Tensor& a,
    const at::Tensor& b,
    const at::Tensor& to,
    bool accumulate,
    std::int64_t rows);

// Whether bfloat16 products go through the matrix unit of this processor (AMX).
bool bfloat16_products_have_amx();

// Rows of numbers, `stride` elements apart.
template <typename T>
struct Rows {
  T* data = nullptr;
  std::int64_t stride = 0;
  bool transposed = false;  // a factor: its rows are the columns

  [[nodiscard]] Rows from(std::int64_t row) const { return {data + row * stride, stride}; }
  [[nodiscard]] Rows t() const { return {data, stride, !transposed}; }
};

// c [m, n] = alpha a b + beta c with a [m, k] and b [k, n].  One thread.
template <typename T>
void gemm(
    std::int64_t m,
    std::int64_t n,
    std::int64_t k,
    double alpha,
    Rows<const T> a,
    Rows<const T> b,
    double beta,
    Rows<Sum<T>> c);

// The same of tensors, each with contiguous rows, or (a, b) the transpose of one that has; c of the
// type of the sums.
void gemm(double alpha, const at::Tensor& a, const at::Tensor& b, double beta, const at::Tensor& c);

}  // namespace paradyse::ops
