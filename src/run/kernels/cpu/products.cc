#include "src/run/kernels/cpu/products.h"

#include <algorithm>
#include <stdexcept>

#include "paradyse/run/accountant.h"

// Of the BLAS inside torch.  Weak: builds of torch with another BLAS may lack some, or hide them.
extern "C" {
#define PARADYSE_GEMM(name, T)     \
  __attribute__((weak)) void name( \
      const char* ta,              \
      const char* tb,              \
      const int* m,                \
      const int* n,                \
      const int* k,                \
      const T* alpha,              \
      const T* a,                  \
      const int* lda,              \
      const T* b,                  \
      const int* ldb,              \
      const T* beta,               \
      T* c,                        \
      const int* ldc)
PARADYSE_GEMM(sgemm_, float);
PARADYSE_GEMM(dgemm_, double);
#undef PARADYSE_GEMM
// layout 101: row-major; 111: as it is, 112: transposed.
#define PARADYSE_GEMM(name)        \
  __attribute__((weak)) void name( \
      int layout,                  \
      int ta,                      \
      int tb,                      \
      int m,                       \
      int n,                       \
      int k,                       \
      float alpha,                 \
      const void* a,               \
      int lda,                     \
      const void* b,               \
      int ldb,                     \
      float beta,                  \
      float* c,                    \
      int ldc)
PARADYSE_GEMM(cblas_gemm_bf16bf16f32);
PARADYSE_GEMM(cblas_gemm_f16f16f32);
#undef PARADYSE_GEMM
}

namespace paradyse::ops {
namespace {

template <typename T>
at::Tensor tensor_of(Rows<T> matrix, std::int64_t rows, std::int64_t cols) {
  using Element = std::remove_const_t<T>;
  const auto options = at::TensorOptions().dtype(c10::CppTypeToScalarType<Element>::value);
  auto* data = const_cast<Element*>(matrix.data);
  return matrix.transposed ? at::from_blob(data, {rows, cols}, {1, matrix.stride}, options)
                           : at::from_blob(data, {rows, cols}, {matrix.stride, 1}, options);
}

// Where torch's BLAS shows no such function.
template <typename T>
void torch_gemm(
    std::int64_t m,
    std::int64_t n,
    std::int64_t k,
    double alpha,
    Rows<const T> a,
    Rows<const T> b,
    double beta,
    Rows<Sum<T>> c) {
  const HostScope library_memory;  // a BLAS's own is not counted either
  constexpr auto kSum = c10::CppTypeToScalarType<Sum<T>>::value;
  const at::Tensor product = at::mm(tensor_of(a, m, k).to(kSum), tensor_of(b, k, n).to(kSum));
  at::Tensor to = tensor_of(c, m, n);
  if (beta == 0) {
    to.copy_(product).mul_(alpha);
  } else {
    to.mul_(beta).add_(product, alpha);
  }
}

template <typename T>
Rows<const T> rows_of(const at::Tensor& matrix) {
  const auto* data = matrix.const_data_ptr<T>();
  // Strides of a dimension of size 1 mean nothing.
  if (matrix.stride(1) == 1 || (matrix.size(1) == 1 && matrix.stride(0) != 1)) {
    return {data, matrix.size(0) == 1 ? matrix.size(1) : matrix.stride(0)};
  }
  return {data, matrix.size(1) == 1 ? matrix.size(0) : matrix.stride(1), true};
}

template <typename T>
void product_of(
    const at::Tensor& a,
    const at::Tensor& b,
    at::Tensor to,
    bool accumulate,
    std::int64_t rows_at_once) {
  const std::int64_t m = to.size(0);
  const std::int64_t n = to.size(1);
  const std::int64_t k = a.size(1);
  const Rows<const T> left = rows_of<T>(a);
  const Rows<const T> right = rows_of<T>(b);
  const auto in_sums = [&](std::int64_t first, std::int64_t rows, at::Tensor& sums, double beta) {
    const Rows<const T> part{
        left.data + first * (left.transposed ? 1 : left.stride), left.stride, left.transposed};
    const std::int64_t stride = sums.size(0) == 1 ? n : sums.stride(0);
    gemm<T>(rows, n, k, 1, part, right, beta, {sums.mutable_data_ptr<Sum<T>>(), stride});
  };
  if (to.scalar_type() == c10::CppTypeToScalarType<Sum<T>>::value) {
    in_sums(0, m, to, accumulate ? 1 : 0);
    return;
  }
  if (rows_at_once == 0) {
    throw std::invalid_argument(
        "product: a narrow result, and no room to make it in (Tiles::products is 0)");
  }
  const std::int64_t height = std::min(m, rows_at_once);
  const at::Tensor sums = at::empty({height, n}, to.options().dtype(at::kFloat));
  for (std::int64_t row = 0; row < m; row += height) {
    const std::int64_t rows = std::min(height, m - row);
    at::Tensor tile = sums.narrow(0, 0, rows);
    at::Tensor here = to.narrow(0, row, rows);
    if (accumulate) {
      tile.copy_(here);
    }
    in_sums(row, rows, tile, accumulate ? 1 : 0);
    here.copy_(tile);
  }
}

}  // namespace

bool bfloat16_products_have_amx() {
#if defined(__x86_64__) && !defined(__clang__)
  static const bool have =
      cblas_gemm_bf16bf16f32 != nullptr && __builtin_cpu_supports("amx-bf16") != 0;
  return have;
#else
  return false;
#endif
}

void product(
    const at::Tensor& a,
    const at::Tensor& b,
    const at::Tensor& to,
    bool accumulate,
    std::int64_t rows) {
  at::Tensor out = to;
  if (out.numel() == 0) {
    return;
  }
  if (a.size(1) == 0) {
    if (!accumulate) {
      out.zero_();
    }
    return;
  }
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, a.scalar_type(), "product", [&] {
    product_of<scalar_t>(a, b, out, accumulate, rows);
  });
}

template <typename T>
void gemm(
    std::int64_t m,
    std::int64_t n,
    std::int64_t k,
    double alpha,
    Rows<const T> a,
    Rows<const T> b,
    double beta,
    Rows<Sum<T>> c) {
  const auto M = static_cast<int>(m);
  const auto N = static_cast<int>(n);
  const auto K = static_cast<int>(k);
  const auto lda = static_cast<int>(a.stride);
  const auto ldb = static_cast<int>(b.stride);
  const auto ldc = static_cast<int>(c.stride);
  // A row-major product is the column-major one of the transposed factors, swapped.
  const char* ta = a.transposed ? "T" : "N";
  const char* tb = b.transposed ? "T" : "N";
  const auto factor = static_cast<Sum<T>>(alpha);
  const auto keep = static_cast<Sum<T>>(beta);
  if constexpr (std::is_same_v<T, float>) {
    if (sgemm_ != nullptr) {
      sgemm_(tb, ta, &N, &M, &K, &factor, b.data, &ldb, a.data, &lda, &keep, c.data, &ldc);
      return;
    }
  } else if constexpr (std::is_same_v<T, double>) {
    if (dgemm_ != nullptr) {
      dgemm_(tb, ta, &N, &M, &K, &factor, b.data, &ldb, a.data, &lda, &keep, c.data, &ldc);
      return;
    }
  } else {
    const auto narrow = std::is_same_v<T, at::Half> ? cblas_gemm_f16f16f32 : cblas_gemm_bf16bf16f32;
    if (narrow != nullptr) {
      narrow(
          101,
          a.transposed ? 112 : 111,
          b.transposed ? 112 : 111,
          M,
          N,
          K,
          factor,
          a.data,
          lda,
          b.data,
          ldb,
          keep,
          c.data,
          ldc);
      return;
    }
  }
  torch_gemm<T>(m, n, k, alpha, a, b, beta, c);
}

void gemm(
    double alpha, const at::Tensor& a, const at::Tensor& b, double beta, const at::Tensor& c) {
  at::Tensor to = c;
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, a.scalar_type(), "gemm", [&] {
    const std::int64_t stride = c.size(0) == 1 ? c.size(1) : c.stride(0);
    gemm<scalar_t>(
        c.size(0),
        c.size(1),
        a.size(1),
        alpha,
        rows_of<scalar_t>(a),
        rows_of<scalar_t>(b),
        beta,
        {to.mutable_data_ptr<Sum<scalar_t>>(), stride});
  });
}

#define PARADYSE_INSTANCE(T) \
  template void gemm<T>(     \
      std::int64_t,          \
      std::int64_t,          \
      std::int64_t,          \
      double,                \
      Rows<const T>,         \
      Rows<const T>,         \
      double,                \
      Rows<Sum<T>>);
PARADYSE_INSTANCE(float)
PARADYSE_INSTANCE(double)
PARADYSE_INSTANCE(at::BFloat16)
PARADYSE_INSTANCE(at::Half)

}  // namespace paradyse::ops
