#include "src/run/kernels/cpu/kernels.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>

#include <ATen/Dispatch.h>

#include "src/run/kernels/cpu/products.h"
#include "src/run/kernels/cpu/vectors.h"

namespace paradyse::kernels {
namespace {

using ops::Sum;

template <typename T>
inline __attribute__((always_inline)) void norm_rows(
    const T* x, const T* w, Sum<T> eps, Sum<T> offset, T* y, std::int64_t rows, std::int64_t H) {
  for (std::int64_t r = 0; r < rows; ++r) {
    const T* in = x + r * H;
    T* out = y + r * H;
    Sum<T> squares = 0;
    for (std::int64_t i = 0; i < H; ++i) {
      const auto v = wide(in[i]);
      squares += v * v;
    }
    const Sum<T> inverse = 1 / std::sqrt(squares / static_cast<Sum<T>>(H) + eps);
    for (std::int64_t i = 0; i < H; ++i) {
      put(out[i], wide(in[i]) * inverse * (wide(w[i]) + offset));
    }
  }
}

// With s = 1/rms, g = grad_y and v = w + offset: grad_x = s (v g - x s^2 mean(v g x)), grad_w += g
// x s.
template <typename T>
inline __attribute__((always_inline)) void norm_adjoint_rows(
    const T* x,
    const T* w,
    Sum<T> eps,
    Sum<T> offset,
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
      const auto v = wide(in[i]);
      squares += v * v;
      dot += v * (wide(w[i]) + offset) * wide(g[i]);
    }
    const Sum<T> s = 1 / std::sqrt(squares / static_cast<Sum<T>>(H) + eps);
    const Sum<T> c = s * s * dot / static_cast<Sum<T>>(H);
    if (accumulate) {
      for (std::int64_t i = 0; i < H; ++i) {
        const auto v = wide(in[i]);
        const auto gi = wide(g[i]);
        put(out[i], wide(out[i]) + s * ((wide(w[i]) + offset) * gi - v * c));
        grad_w[i] += gi * v * s;
      }
    } else {
      for (std::int64_t i = 0; i < H; ++i) {
        const auto v = wide(in[i]);
        const auto gi = wide(g[i]);
        put(out[i], s * ((wide(w[i]) + offset) * gi - v * c));
        grad_w[i] += gi * v * s;
      }
    }
  }
}

template <typename T>
inline __attribute__((always_inline)) void layer_norm_row(
    const T* in, const T* w, const T* b, Sum<T> eps, T* out, std::int64_t H) {
  Sum<T> total = 0;
  for (std::int64_t i = 0; i < H; ++i) {
    total += wide(in[i]);
  }
  const Sum<T> mean = total / static_cast<Sum<T>>(H);
  Sum<T> squares = 0;
  for (std::int64_t i = 0; i < H; ++i) {
    const Sum<T> v = wide(in[i]) - mean;
    squares += v * v;
  }
  const Sum<T> inverse = 1 / std::sqrt(squares / static_cast<Sum<T>>(H) + eps);
  for (std::int64_t i = 0; i < H; ++i) {
    put(out[i],
        (wide(in[i]) - mean) * inverse * wide(w[i]) + (b == nullptr ? Sum<T>{0} : wide(b[i])));
  }
}

// With s = 1/deviation, n = (x - mean) s and g = w grad_y: grad_x = s (g - mean(g) - n mean(g n)),
// grad_w += grad_y n, grad_b += grad_y where it is there.
template <typename T>
inline __attribute__((always_inline)) void layer_norm_adjoint_row(
    const T* in,
    const T* w,
    Sum<T> eps,
    const T* grad_y,
    T* out,
    bool accumulate,
    Sum<T>* grad_w,
    Sum<T>* grad_b,
    std::int64_t H) {
  const auto count = static_cast<Sum<T>>(H);
  Sum<T> total = 0;
  Sum<T> sum_g = 0;
  for (std::int64_t i = 0; i < H; ++i) {
    total += wide(in[i]);
    sum_g += wide(w[i]) * wide(grad_y[i]);
  }
  const Sum<T> mean = total / count;
  Sum<T> squares = 0;
  Sum<T> dot = 0;
  for (std::int64_t i = 0; i < H; ++i) {
    const Sum<T> v = wide(in[i]) - mean;
    squares += v * v;
    dot += v * wide(w[i]) * wide(grad_y[i]);
  }
  const Sum<T> s = 1 / std::sqrt(squares / count + eps);
  const Sum<T> mean_g = sum_g / count;
  const Sum<T> mean_gn = s * dot / count;
  for (std::int64_t i = 0; grad_b != nullptr && i < H; ++i) {
    grad_b[i] += wide(grad_y[i]);
  }
  for (std::int64_t i = 0; i < H; ++i) {
    const Sum<T> n = (wide(in[i]) - mean) * s;
    const auto g = wide(grad_y[i]);
    const Sum<T> own = s * (wide(w[i]) * g - mean_g - n * mean_gn);
    put(out[i], accumulate ? wide(out[i]) + own : own);
    grad_w[i] += g * n;
  }
}

template <typename Y, typename B>
inline __attribute__((always_inline)) void add_row_to_rows(
    Y* y, std::int64_t stride, const B* b, Sum<B> scale, std::int64_t rows, std::int64_t cols) {
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t i = 0; i < cols; ++i) {
      put(y[r * stride + i], wide(y[r * stride + i]) + scale * wide(b[i]));
    }
  }
}

template <typename T>
inline __attribute__((always_inline)) void sum_rows(
    const T* y,
    std::int64_t stride,
    Sum<T>* sums,
    Sum<T> scale,
    std::int64_t rows,
    std::int64_t cols) {
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t i = 0; i < cols; ++i) {
      sums[i] += scale * wide(y[r * stride + i]);
    }
  }
}

// So many draws at once fill the widest vectors.
constexpr int kDraws = 16;

// Words of draws `first` to `first + kDraws - 1` of a token: [word][draw].
inline __attribute__((always_inline)) void philox(
    std::uint64_t seed,
    std::uint32_t site,
    std::uint64_t token,
    std::uint32_t first,
    std::uint32_t (&c)[4][kDraws]) {
  for (int l = 0; l < kDraws; ++l) {
    c[0][l] = first + static_cast<std::uint32_t>(l);
    c[1][l] = site;
    c[2][l] = static_cast<std::uint32_t>(token);
    c[3][l] = static_cast<std::uint32_t>(token >> 32);
  }
  auto key0 = static_cast<std::uint32_t>(seed);
  auto key1 = static_cast<std::uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    for (int l = 0; l < kDraws; ++l) {
      const std::uint64_t a = std::uint64_t{0xD2511F53} * c[0][l];
      const std::uint64_t b = std::uint64_t{0xCD9E8D57} * c[2][l];
      c[0][l] = static_cast<std::uint32_t>(b >> 32) ^ c[1][l] ^ key0;
      c[1][l] = static_cast<std::uint32_t>(b);
      c[2][l] = static_cast<std::uint32_t>(a >> 32) ^ c[3][l] ^ key1;
      c[3][l] = static_cast<std::uint32_t>(a);
    }
    key0 += 0x9E3779B9U;
    key1 += 0xBB67AE85U;
  }
}

template <typename T>
inline __attribute__((always_inline)) void dropout_rows(
    const Dropout& dropout,
    std::span<const std::int64_t> tokens,
    const T* from,
    T* to,
    std::int64_t H) {
  const auto scale = static_cast<Sum<T>>(1 / (1 - dropout.probability));
  const auto threshold = static_cast<std::uint64_t>(dropout.probability * 4294967296.0);
  std::uint32_t c[4][kDraws];
  for (std::size_t r = 0; r < tokens.size(); ++r) {
    const std::int64_t row = static_cast<std::int64_t>(r) * H;
    for (std::int64_t i = 0; i < H; i += std::int64_t{4} * kDraws) {
      philox(
          dropout.seed,
          dropout.site,
          static_cast<std::uint64_t>(tokens[r]),
          static_cast<std::uint32_t>(i / 4),
          c);
      const std::int64_t count = std::min<std::int64_t>(H - i, std::int64_t{4} * kDraws);
      for (std::int64_t k = 0; k < count; ++k) {
        const auto v = wide(from[row + i + k]);
        put(to[row + i + k], c[k & 3][k >> 2] < threshold ? Sum<T>{0} : v * scale);
      }
    }
  }
}

// A tile of probabilities; drawn from the key on that begins a draw.
template <typename From, typename To>
inline __attribute__((always_inline)) void drop_rows(
    const AttentionDropout& dropout,
    const From* from,
    std::int64_t from_stride,
    To* to,
    std::int64_t to_stride,
    std::int64_t rows,
    std::int64_t cols) {
  using S = Sum<To>;
  const auto scale = static_cast<S>(1 / (1 - dropout.drawn.probability));
  const auto threshold = static_cast<std::uint32_t>(dropout.drawn.probability * 4294967296.0);
  const std::int64_t ahead = dropout.key % 4;  // keys of the first draw that are not the tile's
  std::uint32_t c[4][kDraws];
  std::uint32_t words[4 * kDraws];
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t i = -ahead; i < cols; i += std::int64_t{4} * kDraws) {
      philox(
          dropout.drawn.seed,
          dropout.drawn.site,
          dropout.counted(r),
          static_cast<std::uint32_t>((dropout.key + i) / 4),
          c);
      for (int l = 0; l < kDraws; ++l) {
        for (int word = 0; word < 4; ++word) {
          words[4 * l + word] = c[word][l];
        }
      }
      const std::int64_t first = std::max<std::int64_t>(i, 0);
      const std::int64_t end = std::min<std::int64_t>(i + std::int64_t{4} * kDraws, cols);
      const From* const p = from + r * from_stride;
      To* const q = to + r * to_stride;
      for (std::int64_t k = first; k < end; ++k) {
        const S kept = static_cast<S>(wide(p[k])) * scale;
        put(q[k], words[k - i] < threshold ? S{0} : kept);
      }
    }
  }
}

// So many narrow elements at once are made numbers, and the results rounded: of loops that do one
// of these at a time a compiler makes vectors.
constexpr std::int64_t kStretch = 128;

// `count` elements as numbers: where they are, or in `room`.
template <typename T>
inline __attribute__((always_inline)) const Sum<T>* numbers(
    const T* from, Sum<T>* room, std::int64_t count) {
  if constexpr (std::is_same_v<T, Sum<T>>) {
    return from;
  } else {
    for (std::int64_t i = 0; i < count; ++i) {
      room[i] = wide(from[i]);
    }
    return room;
  }
}
// Where numbers go that are to become the elements `to`: there, or first to `room`.
template <typename T>
inline __attribute__((always_inline)) Sum<T>* place(T* to, Sum<T>* room) {
  if constexpr (std::is_same_v<T, Sum<T>>) {
    return to;
  } else {
    return room;
  }
}
template <typename T>
inline __attribute__((always_inline)) void put_all(
    T* to, const Sum<T>* placed, std::int64_t count) {
  if constexpr (!std::is_same_v<T, Sum<T>>) {
    for (std::int64_t i = 0; i < count; ++i) {
      put(to[i], placed[i]);
    }
  }
}

// Pairs of columns i and half + i of heads that lie one after the other.
template <typename T>
inline __attribute__((always_inline)) void rotate_heads(
    T* x,
    std::int64_t heads,
    std::int64_t half,
    const Sum<T>* cosines,
    const Sum<T>* sines,
    Sum<T> sign) {
  for (std::int64_t h = 0; h < heads; ++h) {
    T* const low = x + 2 * half * h;
    T* const high = low + half;
#pragma omp simd
    for (std::int64_t i = 0; i < half; ++i) {
      const Sum<T> first = wide(low[i]);
      const Sum<T> second = wide(high[i]);
      put(low[i], first * cosines[i] - sign * second * sines[i]);
      put(high[i], second * cosines[i] + sign * first * sines[i]);
    }
  }
}

// Pairs of neighbours, 2i and 2i + 1.
template <typename T>
inline __attribute__((always_inline)) void rotate_neighbours(
    T* x,
    std::int64_t heads,
    std::int64_t half,
    const Sum<T>* cosines,
    const Sum<T>* sines,
    Sum<T> sign) {
  for (std::int64_t h = 0; h < heads; ++h) {
    T* const head = x + 2 * half * h;
    for (std::int64_t i = 0; i < half; ++i) {
      const Sum<T> first = wide(head[2 * i]);
      const Sum<T> second = wide(head[2 * i + 1]);
      put(head[2 * i], first * cosines[i] - sign * second * sines[i]);
      put(head[2 * i + 1], second * cosines[i] + sign * first * sines[i]);
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
    Sum<T> sign,
    bool interleaved) {
  constexpr std::int64_t kRoom = 1024;  // as many heads as find room are made numbers at once
  const std::int64_t at_once = half == 0 ? 0 : kRoom / (2 * half);
  for (std::int64_t r = 0; r < rows; ++r) {
    T* const row = x + r * stride;
    const Sum<T>* const c = cosines + positions[r] * half;
    const Sum<T>* const s = sines + positions[r] * half;
    if (interleaved) {
      rotate_neighbours(row, heads, half, c, s, sign);
      continue;
    }
    if (std::is_same_v<T, Sum<T>> || at_once == 0) {
      rotate_heads(row, heads, half, c, s, sign);
      continue;
    }
    Sum<T> room[kRoom];
    for (std::int64_t h = 0; h < heads; h += at_once) {
      const std::int64_t some = std::min(at_once, heads - h);
      T* const begin = row + 2 * half * h;
      numbers(begin, room, some * 2 * half);
      rotate_heads(room, some, half, c, s, sign);
      put_all(begin, room, some * 2 * half);
    }
  }
}

// 2^x for x <= 0 (and a little above): the nearest whole power and a polynomial, both of which the
// compiler makes vectors of.  Relative error below 2e-7.
inline __attribute__((always_inline)) float power_of_two(float x) {
  const float y = x < -127 ? -127 : x;           // a NaN stays
  const int whole = static_cast<int>(y - 0.5F);  // towards zero: the nearest, for y <= 0
  const float z = y - static_cast<float>(whole);
  float sum = 1.5403530e-4F;  // (ln 2)^k / k!, k = 6 to 0
  sum = sum * z + 1.3333558e-3F;
  sum = sum * z + 9.6181291e-3F;
  sum = sum * z + 5.5504109e-2F;
  sum = sum * z + 2.4022651e-1F;
  sum = sum * z + 6.9314718e-1F;
  sum = sum * z + 1.0F;
  return sum * std::bit_cast<float>((whole + 127) << 23);  // 0 for -127
}
inline __attribute__((always_inline)) double power_of_two(double x) { return std::exp2(x); }

// 1 / (1 + exp(-x)): of exp(-|x|), which never overflows.
template <typename S>
inline __attribute__((always_inline)) S sigmoid(S x) {
  constexpr auto kLog2e = static_cast<S>(1.4426950408889634);
  const S e = power_of_two((x < 0 ? x : -x) * kLog2e);
  return (x < 0 ? e : S{1}) / (1 + e);
}

template <typename T>
inline __attribute__((always_inline)) void swiglu_row(const T* h, T* a, std::int64_t F) {
  Sum<T> gate_room[kStretch];
  Sum<T> up_room[kStretch];
  for (std::int64_t begin = 0; begin < F; begin += kStretch) {
    const std::int64_t count = std::min(kStretch, F - begin);
    const Sum<T>* const gate = numbers(h + begin, gate_room, count);
    const Sum<T>* const up = numbers(h + F + begin, up_room, count);
    Sum<T>* const product = place(a + begin, up_room);
#pragma omp simd
    for (std::int64_t i = 0; i < count; ++i) {
      product[i] = gate[i] * sigmoid(gate[i]) * up[i];
    }
    put_all(a + begin, product, count);
  }
}

template <typename T>
inline __attribute__((always_inline)) void swiglu_adjoint_row(
    const T* h, const T* grad_a, T* grad_h, std::int64_t F) {
  Sum<T> gate_room[kStretch];
  Sum<T> up_room[kStretch];
  Sum<T> grad_room[kStretch];
  for (std::int64_t begin = 0; begin < F; begin += kStretch) {
    const std::int64_t count = std::min(kStretch, F - begin);
    const Sum<T>* const gate = numbers(h + begin, gate_room, count);
    const Sum<T>* const up = numbers(h + F + begin, up_room, count);
    const Sum<T>* const da = numbers(grad_a + begin, grad_room, count);
    Sum<T>* const grad_gate = place(grad_h + begin, up_room);
    Sum<T>* const grad_up = place(grad_h + F + begin, grad_room);
#pragma omp simd
    for (std::int64_t i = 0; i < count; ++i) {
      const Sum<T> g = gate[i];
      const Sum<T> d = da[i];
      const Sum<T> s = sigmoid(g);
      grad_gate[i] = d * up[i] * s * (1 + g * (1 - s));
      grad_up[i] = d * g * s;
    }
    put_all(grad_h + begin, grad_gate, count);
    put_all(grad_h + F + begin, grad_up, count);
  }
}

// tanh(x).  float: by a polynomial around 0, where the quotient would lose digits; relative error
// below 4e-7, and in a loop of vectors.
inline __attribute__((always_inline)) double hyperbolic_tangent(double x) { return std::tanh(x); }
inline __attribute__((always_inline)) float hyperbolic_tangent(float x) {
  constexpr float kTwoLog2e = 2.8853901F;
  const float size = x < 0 ? -x : x;
  const float power = power_of_two(-kTwoLog2e * size);
  const float quotient = (1 - power) / (1 + power);
  const float z = x * x;
  float sum = -8.8632355e-3F;
  sum = sum * z + 2.1869489e-2F;
  sum = sum * z - 5.3968254e-2F;
  sum = sum * z + 1.3333333e-1F;
  sum = sum * z - 3.3333333e-1F;
  sum = sum * z + 1;
  return z < 0.09F ? sum * x : x < 0 ? -quotient : quotient;
}

// The columns of a row that count.
struct CountedColumns {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};
inline CountedColumns columns_of(const Counted& counted, std::int64_t row, std::int64_t cols) {
  const std::int64_t last = counted.first_visible + row + 1;
  const std::int64_t end = std::clamp<std::int64_t>(last, 0, cols);
  return {counted.window > 0 ? std::clamp<std::int64_t>(last - counted.window, 0, end) : 0, end};
}

template <typename T>
inline __attribute__((always_inline)) void softmax_rows(
    const Scores& scores, const Counted& counted, void* maxima, void* sums, void* factors) {
  using S = Sum<T>;
  const std::int64_t cols = scores.cols;
  for (std::int64_t r = 0; r < scores.rows; ++r) {
    S* row = static_cast<S*>(scores.sums) + r * cols;
    S& maximum = static_cast<S*>(maxima)[r];
    const CountedColumns mine = columns_of(counted, r, cols);
    const std::int64_t first = mine.begin;
    const std::int64_t seen = mine.end;
    if (counted.cap > 0) {
      const auto cap = static_cast<S>(counted.cap);
#pragma omp simd
      for (std::int64_t c = first; c < seen; ++c) {
        row[c] = cap * hyperbolic_tangent(row[c] / cap);
      }
    }
    S highest = maximum;
#pragma omp simd reduction(max : highest)
    for (std::int64_t c = first; c < seen; ++c) {
      highest = highest > row[c] ? highest : row[c];
    }
    S sum = 0;
    std::fill(row, row + first, S{0});
#pragma omp simd reduction(+ : sum)
    for (std::int64_t c = first; c < seen; ++c) {
      row[c] = power_of_two(row[c] - highest);
      sum += row[c];
    }
    for (std::int64_t c = seen; c < cols; ++c) {
      row[c] = 0;
    }
    if constexpr (!std::is_same_v<T, S>) {
      T* narrow = static_cast<T*>(scores.narrow) + r * cols;
      for (std::int64_t c = 0; c < cols; ++c) {
        put(narrow[c], row[c]);
      }
    }
    const S factor = seen == first ? 1 : std::exp2(maximum - highest);
    static_cast<S*>(factors)[r] = factor;
    static_cast<S*>(sums)[r] = static_cast<S*>(sums)[r] * factor + sum;
    maximum = highest;
  }
}

template <typename T>
inline __attribute__((always_inline)) void softmax_adjoint_rows(
    const Scores& p_scores,
    const Scores& d_scores,
    const Counted& counted,
    const void* log_sums,
    const void* dots) {
  using S = Sum<T>;
  const std::int64_t cols = p_scores.cols;
  for (std::int64_t r = 0; r < p_scores.rows; ++r) {
    S* p = static_cast<S*>(p_scores.sums) + r * cols;
    S* d = static_cast<S*>(d_scores.sums) + r * cols;
    const S log_sum = static_cast<const S*>(log_sums)[r];
    const S dot = static_cast<const S*>(dots)[r];
    const CountedColumns mine = columns_of(counted, r, cols);
    const std::int64_t first = mine.begin;
    const std::int64_t seen = mine.end;
    std::fill(p, p + first, S{0});
    std::fill(d, d + first, S{0});
    if (counted.cap > 0) {
      const auto cap = static_cast<S>(counted.cap);
#pragma omp simd
      for (std::int64_t c = first; c < seen; ++c) {
        const S capped = hyperbolic_tangent(p[c] / cap);
        p[c] = power_of_two(cap * capped - log_sum);
        d[c] = p[c] * (d[c] - dot) * (1 - capped * capped);
      }
    } else {
#pragma omp simd
      for (std::int64_t c = first; c < seen; ++c) {
        p[c] = power_of_two(p[c] - log_sum);
        d[c] = p[c] * (d[c] - dot);
      }
    }
    for (std::int64_t c = seen; c < cols; ++c) {
      p[c] = 0;
      d[c] = 0;
    }
    if constexpr (!std::is_same_v<T, S>) {
      T* narrow_p = static_cast<T*>(p_scores.narrow) + r * cols;
      T* narrow_d = static_cast<T*>(d_scores.narrow) + r * cols;
      for (std::int64_t c = 0; c < cols; ++c) {
        put(narrow_p[c], p[c]);
        put(narrow_d[c], d[c]);
      }
    }
  }
}

template <typename S>
inline __attribute__((always_inline)) void scale(
    void* data, std::int64_t stride, std::int64_t rows, std::int64_t cols, const void* factors) {
  for (std::int64_t r = 0; r < rows; ++r) {
    const S factor = static_cast<const S*>(factors)[r];
    S* row = static_cast<S*>(data) + r * stride;
    for (std::int64_t c = 0; c < cols; ++c) {
      row[c] *= factor;
    }
  }
}

// Function versions cannot be templates, so each kernel has one function that picks the type.
template <typename T>
struct Type {
  using type = T;
};
template <typename Body>
inline __attribute__((always_inline)) void with_type(at::ScalarType type, Body body) {
  switch (type) {
    case at::kFloat:
      return body(Type<float>());
    case at::kDouble:
      return body(Type<double>());
    case at::kBFloat16:
      return body(Type<at::BFloat16>());
    case at::kHalf:
      return body(Type<at::Half>());
    default:
      throw std::logic_error(std::string("no kernel for ") + at::toString(type));
  }
}
#define PARADYSE_TYPED [&](auto tag) __attribute__((always_inline))

struct NormCall {
  at::ScalarType type;
  const void* x;
  const void* w;
  double eps;
  std::int64_t rows;
  std::int64_t stride;  // of x
  std::int64_t runs;    // of a row, each as wide as w
  std::int64_t cols;
  double offset = 0;  // of an RMSNorm
};

PARADYSE_CLONES void norm_call(const NormCall& call, void* y, std::int64_t y_stride) {
  with_type(
      call.type, PARADYSE_TYPED {
        using T = typename decltype(tag)::type;
        for (std::int64_t r = 0; r < call.rows; ++r) {
          norm_rows<T>(
              static_cast<const T*>(call.x) + r * call.stride,
              static_cast<const T*>(call.w),
              static_cast<Sum<T>>(call.eps),
              static_cast<Sum<T>>(call.offset),
              static_cast<T*>(y) + r * y_stride,
              call.runs,
              call.cols);
        }
      });
}

struct NormGradientData {
  const void* y;
  std::int64_t y_stride;
  void* x;
  std::int64_t x_stride;
  bool accumulate;
  void* w;
  void* b;
};

PARADYSE_CLONES void norm_adjoint_call(const NormCall& call, const NormGradientData& grad) {
  with_type(
      call.type, PARADYSE_TYPED {
        using T = typename decltype(tag)::type;
        for (std::int64_t r = 0; r < call.rows; ++r) {
          norm_adjoint_rows<T>(
              static_cast<const T*>(call.x) + r * call.stride,
              static_cast<const T*>(call.w),
              static_cast<Sum<T>>(call.eps),
              static_cast<Sum<T>>(call.offset),
              static_cast<const T*>(grad.y) + r * grad.y_stride,
              static_cast<T*>(grad.x) + r * grad.x_stride,
              grad.accumulate,
              static_cast<Sum<T>*>(grad.w),
              call.runs,
              call.cols);
        }
      });
}

PARADYSE_CLONES void layer_norm_call(
    const NormCall& call, const void* b, void* y, std::int64_t y_stride) {
  with_type(
      call.type, PARADYSE_TYPED {
        using T = typename decltype(tag)::type;
        for (std::int64_t r = 0; r < call.rows; ++r) {
          layer_norm_row<T>(
              static_cast<const T*>(call.x) + r * call.stride,
              static_cast<const T*>(call.w),
              static_cast<const T*>(b),
              static_cast<Sum<T>>(call.eps),
              static_cast<T*>(y) + r * y_stride,
              call.cols);
        }
      });
}

PARADYSE_CLONES void layer_norm_adjoint_call(const NormCall& call, const NormGradientData& grad) {
  with_type(
      call.type, PARADYSE_TYPED {
        using T = typename decltype(tag)::type;
        for (std::int64_t r = 0; r < call.rows; ++r) {
          layer_norm_adjoint_row<T>(
              static_cast<const T*>(call.x) + r * call.stride,
              static_cast<const T*>(call.w),
              static_cast<Sum<T>>(call.eps),
              static_cast<const T*>(grad.y) + r * grad.y_stride,
              static_cast<T*>(grad.x) + r * grad.x_stride,
              grad.accumulate,
              static_cast<Sum<T>*>(grad.w),
              static_cast<Sum<T>*>(grad.b),
              call.cols);
        }
      });
}

NormCall norm_of(const at::Tensor& x, const at::Tensor& w, const RmsNorm& norm) {
  return {
      x.scalar_type(),
      x.const_data_ptr(),
      w.const_data_ptr(),
      norm.eps,
      x.size(0),
      x.stride(0),
      x.size(1) / w.size(0),
      w.size(0),
      norm.offset};
}

PARADYSE_CLONES void add_to_rows_call(
    at::ScalarType type,
    void* y,
    bool of_sums,
    std::int64_t stride,
    const void* b,
    double scale,
    std::int64_t rows,
    std::int64_t cols) {
  with_type(
      type, PARADYSE_TYPED {
        using T = typename decltype(tag)::type;
        const auto* const row = static_cast<const T*>(b);
        const auto times = static_cast<Sum<T>>(scale);
        if (of_sums) {
          add_row_to_rows<Sum<T>, T>(static_cast<Sum<T>*>(y), stride, row, times, rows, cols);
        } else {
          add_row_to_rows<T, T>(static_cast<T*>(y), stride, row, times, rows, cols);
        }
      });
}

PARADYSE_CLONES void sum_products_call(
    at::ScalarType type,
    StridedRows a,
    StridedRows b,
    void* sums,
    std::int64_t rows,
    std::int64_t cols) {
  with_type(
      type, PARADYSE_TYPED {
        using T = typename decltype(tag)::type;
        auto* const to = static_cast<Sum<T>*>(sums);
        for (std::int64_t r = 0; r < rows; ++r) {
          const T* const x = static_cast<const T*>(a.data) + r * a.stride;
          const T* const y = static_cast<const T*>(b.data) + r * b.stride;
          for (std::int64_t i = 0; i < cols; ++i) {
            to[i] += wide(x[i]) * wide(y[i]);
          }
        }
      });
}

PARADYSE_CLONES void sum_rows_call(
    at::ScalarType type,
    const void* y,
    std::int64_t stride,
    void* sums,
    double scale,
    std::int64_t rows,
    std::int64_t cols) {
  with_type(
      type, PARADYSE_TYPED {
        using T = typename decltype(tag)::type;
        sum_rows<T>(
            static_cast<const T*>(y),
            stride,
            static_cast<Sum<T>*>(sums),
            static_cast<Sum<T>>(scale),
            rows,
            cols);
      });
}

PARADYSE_CLONES void dropout_call(
    const Dropout& dropout,
    at::ScalarType type,
    std::span<const std::int64_t> tokens,
    const void* from,
    void* to,
    std::int64_t cols) {
  with_type(
      type, PARADYSE_TYPED {
        using T = typename decltype(tag)::type;
        dropout_rows<T>(dropout, tokens, static_cast<const T*>(from), static_cast<T*>(to), cols);
      });
}

PARADYSE_CLONES void drop_call(
    const AttentionDropout& dropout,
    at::ScalarType type,
    bool of_sums,
    StridedRows from,
    void* to,
    std::int64_t stride,
    std::int64_t rows,
    std::int64_t cols) {
  with_type(
      type, PARADYSE_TYPED {
        using T = typename decltype(tag)::type;
        auto* const left = static_cast<T*>(to);
        if (of_sums) {
          const auto* const p = static_cast<const Sum<T>*>(from.data);
          drop_rows<Sum<T>, T>(dropout, p, from.stride, left, stride, rows, cols);
        } else {
          const auto* const p = static_cast<const T*>(from.data);
          drop_rows<T, T>(dropout, p, from.stride, left, stride, rows, cols);
        }
      });
}

PARADYSE_CLONES void rotate_call(
    at::ScalarType type,
    void* x,
    std::int64_t stride,
    std::int64_t heads,
    std::int64_t half,
    const void* cosines,
    const void* sines,
    std::span<const std::int64_t> positions,
    bool inverse,
    bool interleaved) {
  with_type(
      type, PARADYSE_TYPED {
        using T = typename decltype(tag)::type;
        rotate_rows<T>(
            static_cast<T*>(x),
            stride,
            heads,
            half,
            static_cast<const Sum<T>*>(cosines),
            static_cast<const Sum<T>*>(sines),
            positions.data(),
            static_cast<std::int64_t>(positions.size()),
            inverse ? -1 : 1,
            interleaved);
      });
}

struct SwigluCall {
  at::ScalarType type;
  const void* h;
  std::int64_t h_stride;
  std::int64_t rows;
  std::int64_t F;
};

PARADYSE_CLONES void swiglu_call(const SwigluCall& call, void* a, std::int64_t a_stride) {
  with_type(
      call.type, PARADYSE_TYPED {
        using T = typename decltype(tag)::type;
        for (std::int64_t r = 0; r < call.rows; ++r) {
          swiglu_row<T>(
              static_cast<const T*>(call.h) + r * call.h_stride,
              static_cast<T*>(a) + r * a_stride,
              call.F);
        }
      });
}

PARADYSE_CLONES void swiglu_adjoint_call(
    const SwigluCall& call,
    const void* grad_a,
    std::int64_t grad_a_stride,
    void* grad_h,
    std::int64_t grad_h_stride) {
  with_type(
      call.type, PARADYSE_TYPED {
        using T = typename decltype(tag)::type;
        for (std::int64_t r = 0; r < call.rows; ++r) {
          swiglu_adjoint_row<T>(
              static_cast<const T*>(call.h) + r * call.h_stride,
              static_cast<const T*>(grad_a) + r * grad_a_stride,
              static_cast<T*>(grad_h) + r * grad_h_stride,
              call.F);
        }
      });
}

// One for each row.
std::span<const std::int64_t> numbers_of(
    const at::Tensor& numbers, std::int64_t rows, const char* what) {
  if (numbers.size(0) != rows) {
    throw std::logic_error(
        std::string(what) + ": " + std::to_string(numbers.size(0)) + " numbers for " +
        std::to_string(rows) + " tokens");
  }
  return {numbers.const_data_ptr<std::int64_t>(), static_cast<std::size_t>(rows)};
}

void rms_norm(const at::Tensor& x, const at::Tensor& w, const RmsNorm& norm, const at::Tensor& y) {
  norm_call(norm_of(x, w, norm), y.mutable_data_ptr(), y.stride(0));
}

void rms_norm_adjoint(
    const at::Tensor& x, const at::Tensor& w, const RmsNorm& norm, const NormGradients& gradients) {
  norm_adjoint_call(
      norm_of(x, w, norm),
      {gradients.y.const_data_ptr(),
       gradients.y.stride(0),
       gradients.x.mutable_data_ptr(),
       gradients.x.stride(0),
       gradients.accumulate,
       gradients.w.mutable_data_ptr(),
       nullptr});
}

void layer_norm(
    const at::Tensor& x,
    const at::Tensor& w,
    const at::Tensor& b,
    double eps,
    const at::Tensor& y) {
  layer_norm_call(
      norm_of(x, w, eps),
      b.defined() ? b.const_data_ptr() : nullptr,
      y.mutable_data_ptr(),
      y.stride(0));
}

void layer_norm_adjoint(
    const at::Tensor& x, const at::Tensor& w, double eps, const NormGradients& gradients) {
  layer_norm_adjoint_call(
      norm_of(x, w, eps),
      {gradients.y.const_data_ptr(),
       gradients.y.stride(0),
       gradients.x.mutable_data_ptr(),
       gradients.x.stride(0),
       gradients.accumulate,
       gradients.w.mutable_data_ptr(),
       gradients.b.defined() ? gradients.b.mutable_data_ptr() : nullptr});
}

void add_to_rows(const at::Tensor& y, const at::Tensor& b, double scale) {
  add_to_rows_call(
      b.scalar_type(),
      y.mutable_data_ptr(),
      y.scalar_type() != b.scalar_type(),
      y.stride(0),
      b.const_data_ptr(),
      scale,
      y.size(0),
      y.size(1));
}

void add_sum_of_rows(const at::Tensor& y, const at::Tensor& sums, double scale) {
  sum_rows_call(
      y.scalar_type(),
      y.const_data_ptr(),
      y.stride(0),
      sums.mutable_data_ptr(),
      scale,
      y.size(0),
      y.size(1));
}

void add_sum_of_products(const at::Tensor& a, const at::Tensor& b, const at::Tensor& sums) {
  sum_products_call(
      a.scalar_type(),
      {a.const_data_ptr(), a.stride(0)},
      {b.const_data_ptr(), b.stride(0)},
      sums.mutable_data_ptr(),
      a.size(0),
      a.size(1));
}

void add_numbers(const at::Tensor& to, const at::Tensor& numbers) {
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, to.scalar_type(), "add_numbers", [&] {
    auto* const sums = to.mutable_data_ptr<scalar_t>();
    const auto* const added = numbers.const_data_ptr<Sum<scalar_t>>();
    for (std::int64_t i = 0; i < numbers.size(0); ++i) {
      put(sums[i], wide(sums[i]) + added[i]);
    }
  });
}

void dropout(
    const Dropout& dropout,
    const at::Tensor& tokens,
    const at::Tensor& from,
    const at::Tensor& to) {
  dropout_call(
      dropout,
      from.scalar_type(),
      numbers_of(tokens, from.size(0), "dropout"),
      from.const_data_ptr(),
      to.mutable_data_ptr(),
      from.size(1));
}

void drop_probabilities(
    const AttentionDropout& dropout, const at::Tensor& from, const at::Tensor& to) {
  drop_call(
      dropout,
      to.scalar_type(),
      from.scalar_type() != to.scalar_type(),
      {from.const_data_ptr(), from.stride(0)},
      to.mutable_data_ptr(),
      to.stride(0),
      to.size(0),
      to.size(1));
}

void rotate(const at::Tensor& x, const Rotation& rotation) {
  rotate_call(
      x.scalar_type(),
      x.mutable_data_ptr(),
      x.stride(0),
      rotation.heads,
      rotation.head_dim / 2,
      rotation.cosines.const_data_ptr(),
      rotation.sines.const_data_ptr(),
      numbers_of(rotation.positions, x.size(0), "rotate"),
      rotation.inverse,
      rotation.interleaved);
}

void swiglu(const at::Tensor& h, const at::Tensor& a) {
  swiglu_call(
      {h.scalar_type(), h.const_data_ptr(), h.stride(0), h.size(0), a.size(1)},
      a.mutable_data_ptr(),
      a.stride(0));
}

void swiglu_adjoint(const at::Tensor& h, const at::Tensor& grad_a, const at::Tensor& grad_h) {
  swiglu_adjoint_call(
      {h.scalar_type(), h.const_data_ptr(), h.stride(0), h.size(0), grad_a.size(1)},
      grad_a.const_data_ptr(),
      grad_a.stride(0),
      grad_h.mutable_data_ptr(),
      grad_h.stride(0));
}

}  // namespace

void add_loops(Kernels& table) {
  table.rms_norm = rms_norm;
  table.rms_norm_adjoint = rms_norm_adjoint;
  table.layer_norm = layer_norm;
  table.layer_norm_adjoint = layer_norm_adjoint;
  table.add_to_rows = add_to_rows;
  table.add_sum_of_rows = add_sum_of_rows;
  table.add_sum_of_products = add_sum_of_products;
  table.add_numbers = add_numbers;
  table.dropout = dropout;
  table.rotate = rotate;
  table.swiglu = swiglu;
  table.swiglu_adjoint = swiglu_adjoint;
  table.drop_probabilities = drop_probabilities;
}

PARADYSE_CLONES void softmax_tile(
    const Scores& scores, const Counted& counted, void* maximum, void* sum, void* factor) {
  with_type(
      scores.type, PARADYSE_TYPED {
        softmax_rows<typename decltype(tag)::type>(scores, counted, maximum, sum, factor);
      });
}

PARADYSE_CLONES void softmax_tile_adjoint(
    const Scores& p,
    const Scores& d,
    const Counted& counted,
    const void* log_sum,
    const void* dot) {
  with_type(
      p.type, PARADYSE_TYPED {
        softmax_adjoint_rows<typename decltype(tag)::type>(p, d, counted, log_sum, dot);
      });
}

PARADYSE_CLONES void rows_to_numbers(
    at::ScalarType type, StridedRows from, std::int64_t rows, std::int64_t cols, void* to) {
  with_type(
      type, PARADYSE_TYPED {
        using T = typename decltype(tag)::type;
        for (std::int64_t r = 0; r < rows; ++r) {
          const T* const row = static_cast<const T*>(from.data) + r * from.stride;
          Sum<T>* const wide_row = static_cast<Sum<T>*>(to) + r * cols;
          for (std::int64_t i = 0; i < cols; ++i) {
            wide_row[i] = wide(row[i]);
          }
        }
      });
}

PARADYSE_CLONES void numbers_to_rows(
    at::ScalarType type,
    const void* from,
    std::int64_t rows,
    std::int64_t cols,
    void* to,
    std::int64_t stride) {
  with_type(
      type, PARADYSE_TYPED {
        using T = typename decltype(tag)::type;
        for (std::int64_t r = 0; r < rows; ++r) {
          const Sum<T>* const wide_row = static_cast<const Sum<T>*>(from) + r * cols;
          T* const row = static_cast<T*>(to) + r * stride;
          for (std::int64_t i = 0; i < cols; ++i) {
            put(row[i], wide_row[i]);
          }
        }
      });
}

PARADYSE_CLONES void dot_rows(
    at::ScalarType type,
    StridedRows a,
    StridedRows b,
    std::int64_t rows,
    std::int64_t cols,
    void* dots) {
  with_type(
      type, PARADYSE_TYPED {
        using T = typename decltype(tag)::type;
        for (std::int64_t r = 0; r < rows; ++r) {
          const T* const x = static_cast<const T*>(a.data) + r * a.stride;
          const T* const y = static_cast<const T*>(b.data) + r * b.stride;
          Sum<T> sum = 0;
          for (std::int64_t i = 0; i < cols; ++i) {
            sum += wide(x[i]) * wide(y[i]);
          }
          static_cast<Sum<T>*>(dots)[r] = sum;
        }
      });
}

PARADYSE_CLONES void scale_rows(
    at::ScalarType type,
    void* data,
    std::int64_t stride,
    std::int64_t rows,
    std::int64_t cols,
    const void* factor) {
  if (type == at::kDouble) {
    scale<double>(data, stride, rows, cols, factor);
  } else {
    scale<float>(data, stride, rows, cols, factor);
  }
}

void drop_tile(const AttentionDropout& dropout, const Scores& tile) {
  const bool narrow = tile.narrow != nullptr;
  drop_call(
      dropout,
      narrow || tile.type == at::kDouble ? tile.type : at::kFloat,
      narrow,
      {tile.sums, tile.cols},
      narrow ? tile.narrow : tile.sums,
      tile.cols,
      tile.rows,
      tile.cols);
}

}  // namespace paradyse::kernels
