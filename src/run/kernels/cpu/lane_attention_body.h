// The loops of lane_attention.h for vectors of any width.  Included by a file a kind of machine,
// after
// `#pragma GCC target`: all that is below is compiled for it.  Nothing but what is there already
// may be included here, or a standard function would be compiled so for everybody.
#pragma once

#include "src/run/kernels/cpu/lane_attention.h"

#define PARADYSE_INLINE inline __attribute__((always_inline))

namespace paradyse::kernels {
namespace {

constexpr float kNothing = -std::numeric_limits<float>::infinity();  // log of a sum over no keys
constexpr float kLog2e = std::numbers::log2e_v<float>;
constexpr float kLn2 = std::numbers::ln2_v<float>;

// Vectors of L lanes; products keep Keys x Vectors, or as many, of them in registers.
template <int L, int Vectors, int Keys>
struct Lanes {
  using Floats __attribute__((vector_size(4 * L))) = float;
  using Ints __attribute__((vector_size(4 * L))) = std::int32_t;
  static constexpr int kLanes = L;
  static constexpr int kVectors = Vectors;           // of a tile of queries
  static constexpr int kQueries = Vectors * L;       // of it
  static constexpr int kBlock = Keys;                // keys, or columns of a head, at a time
  static constexpr int kOuter = Keys * Vectors / 2;  // keys at a time where lanes are columns
};

template <typename V>
PARADYSE_INLINE typename V::Floats load(const float* from) {
  typename V::Floats vector;
  std::memcpy(&vector, from, sizeof(vector));
  return vector;
}

template <typename V>
PARADYSE_INLINE void store(float* to, const typename V::Floats& vector) {
  std::memcpy(to, &vector, sizeof(vector));
}

// Of a whole tile of queries.
template <typename V>
PARADYSE_INLINE void load_all(const float* from, typename V::Floats (&vectors)[V::kVectors]) {
#pragma GCC unroll 4
  for (int v = 0; v < V::kVectors; ++v) {
    vectors[v] = load<V>(from + v * V::kLanes);
  }
}

template <typename V>
PARADYSE_INLINE void store_all(const typename V::Floats (&vectors)[V::kVectors], float* to) {
#pragma GCC unroll 4
  for (int v = 0; v < V::kVectors; ++v) {
    store<V>(to + v * V::kLanes, vectors[v]);
  }
}

template <typename V>
PARADYSE_INLINE typename V::Floats all(float number) {
  return number - typename V::Floats{};  // + would turn -0 into 0, and so be computed
}

template <typename V>
PARADYSE_INLINE void add_product(
    const typename V::Floats (&parts)[V::kVectors],
    float number,
    typename V::Floats (&sums)[V::kVectors]) {
  const typename V::Floats everywhere = all<V>(number);
#pragma GCC unroll 4
  for (int v = 0; v < V::kVectors; ++v) {
    sums[v] += parts[v] * everywhere;
  }
}

template <typename V>
PARADYSE_INLINE typename V::Floats larger(
    const typename V::Floats& a, const typename V::Floats& b) {
  return a > b ? a : b;
}

// 2^x for x <= 0 and a little above, as power_of_two() of kernels.cc.
template <typename V>
PARADYSE_INLINE typename V::Floats powers_of_two(const typename V::Floats& x) {
  using Floats = typename V::Floats;
  using Ints = typename V::Ints;
  const Floats least = all<V>(-127);
  const Floats y = x < least ? least : x;  // a NaN stays
  const Ints whole = __builtin_convertvector(y - 0.5F, Ints);
  const Floats z = y - __builtin_convertvector(whole, Floats);
  Floats sum = all<V>(1.5403530e-4F);
  sum = sum * z + 1.3333558e-3F;
  sum = sum * z + 9.6181291e-3F;
  sum = sum * z + 5.5504109e-2F;
  sum = sum * z + 2.4022651e-1F;
  sum = sum * z + 6.9314718e-1F;
  sum = sum * z + 1.0F;
  const Ints bits = (whole + 127) << 23;
  Floats power;
  std::memcpy(&power, &bits, sizeof(power));
  return sum * power;
}

// Keys of a step: what stands in the first-level cache.
template <typename V, int D>
constexpr int kStep = D > 64 ? 48 : 96;  // a multiple of kBlock and of kOuter

// Columns [D][queries] of up to kQueries rows, times `factor`; lanes without a row are 0.
template <typename V, int D>
PARADYSE_INLINE void to_lanes(
    HeadRows<const float> rows, std::int64_t first, int count, float factor, float* lanes) {
  if (count < V::kQueries) {
    std::memset(lanes, 0, sizeof(float) * D * V::kQueries);
  }
  for (int r = 0; r < count; ++r) {
    const float* row = rows.data + (first + r) * rows.stride;
    for (int d = 0; d < D; ++d) {
      lanes[d * V::kQueries + r] = row[d] * factor;
    }
  }
}

// scores[key][query] = the product of a lane's column and a key's row.
template <typename V, int D>
PARADYSE_INLINE void score(
    const float* lanes, HeadRows<const float> rows, std::int64_t first, int count, float* scores) {
  using Floats = typename V::Floats;
  for (int block = 0; block < count; block += V::kBlock) {
    const float* row[V::kBlock];
    Floats sums[V::kBlock][V::kVectors];
#pragma GCC unroll 16
    for (int k = 0; k < V::kBlock; ++k) {  // the last key again where there are no more
      row[k] = rows.data + (first + std::min(block + k, count - 1)) * rows.stride;
#pragma GCC unroll 4
      for (int v = 0; v < V::kVectors; ++v) {
        sums[k][v] = Floats{};
      }
    }
    for (int d = 0; d < D; ++d) {
      Floats parts[V::kVectors];
      load_all<V>(lanes + d * V::kQueries, parts);
#pragma GCC unroll 16
      for (int k = 0; k < V::kBlock; ++k) {
        add_product<V>(parts, row[k][d], sums[k]);
      }
    }
#pragma GCC unroll 16
    for (int k = 0; k < V::kBlock; ++k) {
      store_all<V>(sums[k], scores + (block + k) * V::kQueries);
    }
  }
}

// lanes[column][query] = factor lanes + the sum over keys of weights[key][query] rows[key][column].
// The sum is made first: one chain over all keys would lose what a BLAS does not.
template <typename V, int D>
PARADYSE_INLINE void add_rows(
    const float* weights,
    HeadRows<const float> rows,
    std::int64_t first,
    int count,
    const typename V::Floats (&factor)[V::kVectors],
    float* lanes) {
  using Floats = typename V::Floats;
  for (int column = 0; column < D; column += V::kBlock) {
    Floats sums[V::kBlock][V::kVectors];
#pragma GCC unroll 16
    for (int d = 0; d < V::kBlock; ++d) {
#pragma GCC unroll 4
      for (int v = 0; v < V::kVectors; ++v) {
        sums[d][v] = Floats{};
      }
    }
    const float* row = rows.data + first * rows.stride + column;
    for (int k = 0; k < count; ++k, row += rows.stride) {
      Floats parts[V::kVectors];
      load_all<V>(weights + k * V::kQueries, parts);
#pragma GCC unroll 16
      for (int d = 0; d < V::kBlock; ++d) {
        add_product<V>(parts, row[d], sums[d]);
      }
    }
#pragma GCC unroll 16
    for (int d = 0; d < V::kBlock; ++d) {
      float* const to = lanes + (column + d) * V::kQueries;
#pragma GCC unroll 4
      for (int v = 0; v < V::kVectors; ++v) {
        store<V>(to + v * V::kLanes, load<V>(to + v * V::kLanes) * factor[v] + sums[d][v]);
      }
    }
  }
}

// result[key][column] += factor times the sum over queries of weights[key][query]
// rows[query][column].
template <typename V, int D>
PARADYSE_INLINE void add_outer(
    const float* weights,
    HeadRows<const float> rows,
    std::int64_t first,
    int queries,
    float factor,
    HeadRows<float> result,
    std::int64_t first_key,
    int count) {
  using Floats = typename V::Floats;
  constexpr int kWide = std::min(D / V::kLanes, 2);  // vectors of columns at a time
  for (int column = 0; column < D; column += kWide * V::kLanes) {
    for (int block = 0; block < count; block += V::kOuter) {
      Floats sums[V::kOuter][kWide];
#pragma GCC unroll 16
      for (int k = 0; k < V::kOuter; ++k) {
#pragma GCC unroll 2
        for (int c = 0; c < kWide; ++c) {
          sums[k][c] = Floats{};
        }
      }
      const float* row = rows.data + first * rows.stride + column;
      const float* weight = weights + block * V::kQueries;
      for (int q = 0; q < queries; ++q, row += rows.stride, ++weight) {
        Floats parts[kWide];
#pragma GCC unroll 2
        for (int c = 0; c < kWide; ++c) {
          parts[c] = load<V>(row + c * V::kLanes);
        }
#pragma GCC unroll 16
        for (int k = 0; k < V::kOuter; ++k) {
          const Floats number = all<V>(weight[k * V::kQueries]);
#pragma GCC unroll 2
          for (int c = 0; c < kWide; ++c) {
            sums[k][c] += parts[c] * number;
          }
        }
      }
#pragma GCC unroll 16
      for (int k = 0; k < V::kOuter; ++k) {
        if (block + k < count) {
          float* to = result.data + (first_key + block + k) * result.stride + column;
#pragma GCC unroll 2
          for (int c = 0; c < kWide; ++c) {
            store<V>(to + c * V::kLanes, load<V>(to + c * V::kLanes) + sums[k][c] * factor);
          }
        }
      }
    }
  }
}

// Of a tile of queries: how many there are, the keys that some of them see and those that all do.
struct Seen {
  int queries = 0;
  std::int64_t some = 0;
  std::int64_t all = 0;
};

PARADYSE_INLINE Seen seen_by(const LaneAttention& a, std::int64_t first, int tile) {
  const auto queries = static_cast<int>(std::min<std::int64_t>(tile, a.queries - first));
  const std::int64_t some = std::clamp<std::int64_t>(first + queries + a.diagonal, 0, a.keys);
  return {queries, some, std::clamp<std::int64_t>(first + a.diagonal + 1, 0, some)};
}

// Lanes of vector v whose query sees the key.
template <typename V>
PARADYSE_INLINE typename V::Ints visible(int v, std::int64_t beyond) {
  typename V::Ints query;
  for (int i = 0; i < V::kLanes; ++i) {
    query[i] = v * V::kLanes + i;
  }
  return query >= static_cast<std::int32_t>(beyond);
}

template <typename V, int D>
PARADYSE_INLINE void attend_of(const LaneAttention& a, bool merge) {
  using Floats = typename V::Floats;
  constexpr int kQueries = V::kQueries;
  alignas(64) float q[D * kQueries];
  alignas(64) float o[D * kQueries];
  alignas(64) float scores[kStep<V, D> * kQueries];
  alignas(64) float before[kQueries];
  for (std::int64_t first = 0; first < a.queries; first += kQueries) {
    const Seen seen = seen_by(a, first, kQueries);
    if (seen.some == 0 && (merge || a.goes_on)) {
      continue;
    }
    const bool over = a.to_come == 0 || first + seen.queries + a.diagonal <= a.keys;
    to_lanes<V, D>(a.q, first, seen.queries, a.scale * kLog2e, q);
    Floats maximum[V::kVectors];
    Floats sum[V::kVectors];
    const bool loads = merge || a.goes_on;
    if (loads) {
      to_lanes<V, D>({a.o.data, a.o.stride}, first, seen.queries, 1, o);
      std::fill_n(before, kQueries, kNothing);
      for (int r = 0; r < seen.queries; ++r) {
        before[r] = a.l.data[(first + r) * a.l.stride] * (a.goes_on ? 1 : kLog2e);
      }
    } else {
      std::memset(o, 0, sizeof(o));
    }
#pragma GCC unroll 4
    for (int v = 0; v < V::kVectors; ++v) {
      maximum[v] = loads ? load<V>(before + v * V::kLanes) : all<V>(kNothing);
      sum[v] = maximum[v] > all<V>(kNothing) ? all<V>(1) : Floats{};
    }
    if (a.goes_on) {
      for (int r = 0; r < seen.queries; ++r) {
        sum[r / V::kLanes][r % V::kLanes] = a.sums[first + r];
      }
    }
    for (std::int64_t key = 0; key < seen.some; key += kStep<V, D>) {
      const auto count = static_cast<int>(std::min<std::int64_t>(kStep<V, D>, seen.some - key));
      const auto hidden = static_cast<int>(std::clamp<std::int64_t>(seen.all - key, 0, count));
      score<V, D>(q, a.k, key, count, scores);
      Floats factor[V::kVectors];
#pragma GCC unroll 4
      for (int v = 0; v < V::kVectors; ++v) {
        float* const mine = scores + v * V::kLanes;
        for (int k = hidden; k < count; ++k) {
          const typename V::Ints sees = visible<V>(v, key + k - first - a.diagonal);
          store<V>(mine + k * kQueries, sees ? load<V>(mine + k * kQueries) : all<V>(kNothing));
        }
        Floats highest = maximum[v];
        for (int k = 0; k < count; ++k) {
          highest = larger<V>(highest, load<V>(mine + k * kQueries));
        }
        // what has seen nothing yet stays at nothing: its differences are no numbers
        const Floats shift = highest > all<V>(kNothing) ? highest : Floats{};
        factor[v] = powers_of_two<V>(maximum[v] - shift);
        Floats added{};
        for (int k = 0; k < count; ++k) {
          const Floats power = powers_of_two<V>(load<V>(mine + k * kQueries) - shift);
          store<V>(mine + k * kQueries, power);
          added += power;
        }
        sum[v] = sum[v] * factor[v] + added;
        maximum[v] = highest;
      }
      add_rows<V, D>(scores, a.v, key, count, factor, o);
    }
    for (int r = 0; r < seen.queries; ++r) {
      const float total = sum[r / V::kLanes][r % V::kLanes];
      const float highest = maximum[r / V::kLanes][r % V::kLanes];
      const float factor = !over ? 1 : total == 0 ? 0 : 1 / total;
      float* const row = a.o.data + (first + r) * a.o.stride;
      for (int d = 0; d < D; ++d) {
        row[d] = o[d * kQueries + r] * factor;
      }
      float& l = a.l.data[(first + r) * a.l.stride];
      if (over) {
        l = total == 0 ? kNothing : (highest + std::log2(total)) * kLn2;
      } else {
        l = highest;
        a.sums[first + r] = total;
      }
    }
  }
}

template <typename V, int D>
PARADYSE_INLINE void attend_adjoint_of(const LaneAttention& a, const LaneGradients& g) {
  using Floats = typename V::Floats;
  constexpr int kQueries = V::kQueries;
  alignas(64) float q[D * kQueries];
  alignas(64) float grad_o[D * kQueries];
  alignas(64) float grad_q[D * kQueries];
  alignas(64) float q_rows[D * kQueries];
  alignas(64) float o_rows[D * kQueries];            // of the gradient
  alignas(64) float p[kStep<V, D> * kQueries] = {};  // rows beyond the keys are multiplied, too
  alignas(64) float d[kStep<V, D> * kQueries] = {};
  alignas(64) float log_sum[kQueries] = {};
  alignas(64) float dot[kQueries] = {};
  Floats once[V::kVectors];
  std::fill_n(once, V::kVectors, all<V>(1));
  for (std::int64_t first = 0; first < a.queries; first += kQueries) {
    const Seen seen = seen_by(a, first, kQueries);
    if (seen.some == 0) {
      continue;
    }
    to_lanes<V, D>(a.q, first, seen.queries, a.scale * kLog2e, q);
    to_lanes<V, D>(g.o, first, seen.queries, 1, grad_o);
    std::memset(grad_q, 0, sizeof(grad_q));
    for (int r = 0; r < seen.queries; ++r) {
      std::memcpy(q_rows + r * D, a.q.data + (first + r) * a.q.stride, sizeof(float) * D);
      std::memcpy(o_rows + r * D, g.o.data + (first + r) * g.o.stride, sizeof(float) * D);
    }
    for (int r = 0; r < seen.queries; ++r) {
      const float* const o_row = a.o.data + (first + r) * a.o.stride;
      const float* const g_row = g.o.data + (first + r) * g.o.stride;
      Floats sums{};
      for (int c = 0; c < D; c += V::kLanes) {
        sums += load<V>(o_row + c) * load<V>(g_row + c);
      }
      dot[r] = 0;
      for (int i = 0; i < V::kLanes; ++i) {
        dot[r] += sums[i];
      }
      log_sum[r] = a.l.data[(first + r) * a.l.stride] * kLog2e;
    }
    for (std::int64_t key = 0; key < seen.some; key += kStep<V, D>) {
      const auto count = static_cast<int>(std::min<std::int64_t>(kStep<V, D>, seen.some - key));
      const auto hidden = static_cast<int>(std::clamp<std::int64_t>(seen.all - key, 0, count));
      score<V, D>(q, a.k, key, count, p);
      score<V, D>(grad_o, a.v, key, count, d);
#pragma GCC unroll 4
      for (int v = 0; v < V::kVectors; ++v) {
        float* const p_lanes = p + v * V::kLanes;
        float* const d_lanes = d + v * V::kLanes;
        const Floats shift = load<V>(log_sum + v * V::kLanes);
        const Floats mean = load<V>(dot + v * V::kLanes);
        for (int k = 0; k < count; ++k) {
          Floats power = powers_of_two<V>(load<V>(p_lanes + k * kQueries) - shift);
          Floats slope = power * (load<V>(d_lanes + k * kQueries) - mean);
          if (k >= hidden) {
            const typename V::Ints sees = visible<V>(v, key + k - first - a.diagonal);
            power = sees ? power : Floats{};
            slope = sees ? slope : Floats{};
          }
          store<V>(p_lanes + k * kQueries, power);
          store<V>(d_lanes + k * kQueries, slope);
        }
      }
      add_rows<V, D>(d, a.k, key, count, once, grad_q);
      add_outer<V, D>(p, {o_rows, D}, 0, seen.queries, 1, g.v, key, count);
      add_outer<V, D>(d, {q_rows, D}, 0, seen.queries, a.scale, g.k, key, count);
    }
    for (int r = 0; r < seen.queries; ++r) {
      float* const row = g.q.data + (first + r) * g.q.stride;
      for (int c = 0; c < D; ++c) {
        row[c] += grad_q[c * kQueries + r] * a.scale;
      }
    }
  }
}

// The widths that lanes_for() names.
template <typename V>
PARADYSE_INLINE void attend_any(const LaneAttention& a, bool merge) {
  switch (a.width) {
    case 16:
      return attend_of<V, 16>(a, merge);
    case 32:
      return attend_of<V, 32>(a, merge);
    case 64:
      return attend_of<V, 64>(a, merge);
    default:
      return attend_of<V, 128>(a, merge);
  }
}

template <typename V>
PARADYSE_INLINE void attend_adjoint_any(const LaneAttention& a, const LaneGradients& g) {
  switch (a.width) {
    case 16:
      return attend_adjoint_of<V, 16>(a, g);
    case 32:
      return attend_adjoint_of<V, 32>(a, g);
    case 64:
      return attend_adjoint_of<V, 64>(a, g);
    default:
      return attend_adjoint_of<V, 128>(a, g);
  }
}

}  // namespace
}  // namespace paradyse::kernels
