#include "src/run/ops/kernels.h"

#include <cmath>
#include <stdexcept>
#include <type_traits>
#include <vector>

#include <ATen/Dispatch.h>

// Compiled for the wide vectors of newer machines as well; the fitting one is chosen at load.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define PARADYSE_CLONES \
  __attribute__((target_clones("arch=skylake-avx512", "arch=haswell", "default")))
#else
#define PARADYSE_CLONES
#endif

namespace paradyse::kernels {
namespace {

template <typename T>
using Sum = std::conditional_t<std::is_same_v<T, double>, double, float>;

template <typename T>
inline __attribute__((always_inline)) void norm_rows(
    const T* x, const T* w, Sum<T> eps, T* y, std::int64_t rows, std::int64_t H) {
  for (std::int64_t r = 0; r < rows; ++r) {
    const T* in = x + r * H;
    T* out = y + r * H;
    Sum<T> squares = 0;
    for (std::int64_t i = 0; i < H; ++i) {
      const auto v = static_cast<Sum<T>>(in[i]);
      squares += v * v;
    }
    const Sum<T> inverse = 1 / std::sqrt(squares / static_cast<Sum<T>>(H) + eps);
    for (std::int64_t i = 0; i < H; ++i) {
      out[i] = static_cast<T>(static_cast<Sum<T>>(in[i]) * inverse * static_cast<Sum<T>>(w[i]));
    }
  }
}

// With s = 1/rms and g = grad_y: grad_x = s (w g - x s^2 mean(w g x)), grad_w += g x s.
template <typename T>
inline __attribute__((always_inline)) void norm_adjoint_rows(
    const T* x,
    const T* w,
    Sum<T> eps,
    const T* grad_y,
    T* grad_x,
    bool accumulate,
    Sum<T>* grad_w,
    std::int64_t rows,
    std::int64_t H) {
  for (std::int64_t r = 0; r < rows; ++r) {
    const T* in = x + r * H;
    const T* g = grad_y + r * H;
    T* out = grad_x + r * H;
    Sum<T> squares = 0;
    Sum<T> dot = 0;
    for (std::int64_t i = 0; i < H; ++i) {
      const auto v = static_cast<Sum<T>>(in[i]);
      squares += v * v;
      dot += v * static_cast<Sum<T>>(w[i]) * static_cast<Sum<T>>(g[i]);
    }
    const Sum<T> s = 1 / std::sqrt(squares / static_cast<Sum<T>>(H) + eps);
    const Sum<T> c = s * s * dot / static_cast<Sum<T>>(H);
    if (accumulate) {
      for (std::int64_t i = 0; i < H; ++i) {
        const auto v = static_cast<Sum<T>>(in[i]);
        const auto gi = static_cast<Sum<T>>(g[i]);
        out[i] = static_cast<T>(
            static_cast<Sum<T>>(out[i]) + s * (static_cast<Sum<T>>(w[i]) * gi - v * c));
        grad_w[i] += gi * v * s;
      }
    } else {
      for (std::int64_t i = 0; i < H; ++i) {
        const auto v = static_cast<Sum<T>>(in[i]);
        const auto gi = static_cast<Sum<T>>(g[i]);
        out[i] = static_cast<T>(s * (static_cast<Sum<T>>(w[i]) * gi - v * c));
        grad_w[i] += gi * v * s;
      }
    }
  }
}

template <typename T>
inline __attribute__((always_inline)) void rotate_rows(
    T* x,
    std::int64_t stride,
    std::int64_t heads,
    std::int64_t half,
    const Sum<T>* cosines,
    const Sum<T>* sines,
    const std::int64_t* positions,
    std::int64_t rows,
    Sum<T> sign) {
  for (std::int64_t r = 0; r < rows; ++r) {
    const Sum<T>* c = cosines + positions[r] * half;
    const Sum<T>* s = sines + positions[r] * half;
    for (std::int64_t h = 0; h < heads; ++h) {
      T* low = x + r * stride + 2 * half * h;
      T* high = low + half;
      for (std::int64_t i = 0; i < half; ++i) {
        const auto a = static_cast<Sum<T>>(low[i]);
        const auto b = static_cast<Sum<T>>(high[i]);
        low[i] = static_cast<T>(a * c[i] - sign * b * s[i]);
        high[i] = static_cast<T>(b * c[i] + sign * a * s[i]);
      }
    }
  }
}

// One plain function a type: function versions cannot be templates.
PARADYSE_CLONES void norm_f(
    const float* x, const float* w, float eps, float* y, std::int64_t rows, std::int64_t H) {
  norm_rows<float>(x, w, eps, y, rows, H);
}
PARADYSE_CLONES void norm_adjoint_f(
    const float* x,
    const float* w,
    float eps,
    const float* grad_y,
    float* grad_x,
    bool accumulate,
    float* grad_w,
    std::int64_t rows,
    std::int64_t H) {
  norm_adjoint_rows<float>(x, w, eps, grad_y, grad_x, accumulate, grad_w, rows, H);
}
PARADYSE_CLONES void rotate_f(
    float* x,
    std::int64_t stride,
    std::int64_t heads,
    std::int64_t half,
    const float* cosines,
    const float* sines,
    const std::int64_t* positions,
    std::int64_t rows,
    float sign) {
  rotate_rows<float>(x, stride, heads, half, cosines, sines, positions, rows, sign);
}

template <typename T>
void norm_any(const T* x, const T* w, double eps, T* y, std::int64_t rows, std::int64_t H) {
  if constexpr (std::is_same_v<T, float>) {
    norm_f(x, w, static_cast<float>(eps), y, rows, H);
  } else {
    norm_rows<T>(x, w, static_cast<Sum<T>>(eps), y, rows, H);
  }
}

template <typename T>
void norm_adjoint_any(
    const T* x,
    const T* w,
    double eps,
    const T* grad_y,
    T* grad_x,
    bool accumulate,
    Sum<T>* grad_w,
    std::int64_t rows,
    std::int64_t H) {
  if constexpr (std::is_same_v<T, float>) {
    norm_adjoint_f(x, w, static_cast<float>(eps), grad_y, grad_x, accumulate, grad_w, rows, H);
  } else {
    norm_adjoint_rows<T>(
        x, w, static_cast<Sum<T>>(eps), grad_y, grad_x, accumulate, grad_w, rows, H);
  }
}

template <typename T>
void rotate_any(
    T* x,
    std::int64_t stride,
    std::int64_t heads,
    std::int64_t half,
    const Sum<T>* cosines,
    const Sum<T>* sines,
    const std::int64_t* positions,
    std::int64_t rows,
    Sum<T> sign) {
  if constexpr (std::is_same_v<T, float>) {
    rotate_f(x, stride, heads, half, cosines, sines, positions, rows, sign);
  } else {
    rotate_rows<T>(x, stride, heads, half, cosines, sines, positions, rows, sign);
  }
}

}  // namespace

void rms_norm(const at::Tensor& x, const at::Tensor& w, double eps, const at::Tensor& y) {
  AT_DISPATCH_FLOATING_TYPES_AND(at::kBFloat16, x.scalar_type(), "rms_norm", [&] {
    norm_any<scalar_t>(
        x.const_data_ptr<scalar_t>(),
        w.const_data_ptr<scalar_t>(),
        eps,
        y.mutable_data_ptr<scalar_t>(),
        x.size(0),
        x.size(1));
  });
}

void rms_norm_adjoint(
    const at::Tensor& x,
    const at::Tensor& w,
    double eps,
    const at::Tensor& grad_y,
    const at::Tensor& grad_x,
    bool accumulate,
    const at::Tensor& grad_w) {
  AT_DISPATCH_FLOATING_TYPES_AND(at::kBFloat16, x.scalar_type(), "rms_norm_adjoint", [&] {
    norm_adjoint_any<scalar_t>(
        x.const_data_ptr<scalar_t>(),
        w.const_data_ptr<scalar_t>(),
        eps,
        grad_y.const_data_ptr<scalar_t>(),
        grad_x.mutable_data_ptr<scalar_t>(),
        accumulate,
        grad_w.mutable_data_ptr<Sum<scalar_t>>(),
        x.size(0),
        x.size(1));
  });
}

void rotate(
    const at::Tensor& x,
    std::int64_t heads,
    std::int64_t head_dim,
    const at::Tensor& cosines,
    const at::Tensor& sines,
    std::span<const std::int64_t> positions,
    bool inverse) {
  if (static_cast<std::int64_t>(positions.size()) != x.size(0)) {
    throw std::logic_error(
        "rotate: " + std::to_string(positions.size()) + " positions for " +
        std::to_string(x.size(0)) + " tokens");
  }
  AT_DISPATCH_FLOATING_TYPES_AND(at::kBFloat16, x.scalar_type(), "rotate", [&] {
    rotate_any<scalar_t>(
        x.mutable_data_ptr<scalar_t>(),
        x.stride(0),
        heads,
        head_dim / 2,
        cosines.const_data_ptr<Sum<scalar_t>>(),
        sines.const_data_ptr<Sum<scalar_t>>(),
        positions.data(),
        x.size(0),
        Sum<scalar_t>(inverse ? -1 : 1));
  });
}

}  // namespace paradyse::kernels
