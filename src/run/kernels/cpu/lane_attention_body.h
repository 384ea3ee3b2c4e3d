// The loops of lane_attention.h for vectors of any width.  Included by a file a kind of machine,
// after
// `#pragma GCC target`: all that is below is compiled for it.  Nothing but what is there already
// may be included here, or a standard function would be compiled so for everybody.
#pragma once

#include "src/run/kernels/cpu/lane_attention.h"

#define PARADYSE_INLINED __attribute__((always_inline))
#define PARADYSE_INLINE inline PARADYSE_INLINED

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
  // For a tile of fewer queries.
  template <int Some>
  using Of =
      std::conditional_t<Some == Vectors, Lanes, Lanes<L, Some, Some == 1 ? 2 * Keys : Keys>>;
};

// `body` of `number`, one of [From, End), as a constant: what it is decides which registers are
// used.
template <int From, int End, typename Body>
PARADYSE_INLINE void with_constant(int number, const Body& body) {
  if constexpr (From + 1 < End) {
    if (number != From) {
      return with_constant<From + 1, End>(number, body);
    }
  }
  body(std::integral_constant<int, From>{});
}

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

// Of a tile of queries, the vectors from First on.
template <typename V, int First>
PARADYSE_INLINE void load_all(const float* from, typename V::Floats (&vectors)[V::kVectors]) {
#pragma GCC unroll 4
  for (int v = First; v < V::kVectors; ++v) {
    vectors[v] = load<V>(from + v * V::kLanes);
  }
}

template <typename V, int First>
PARADYSE_INLINE void store_all(const typename V::Floats (&vectors)[V::kVectors], float* to) {
#pragma GCC unroll 4
  for (int v = First; v < V::kVectors; ++v) {
    store<V>(to + v * V::kLanes, vectors[v]);
  }
}

template <typename V>
PARADYSE_INLINE typename V::Floats all(float number) {
  return number - typename V::Floats{};  // + would turn -0 into 0, and so be computed
}

template <typename V, int First>
PARADYSE_INLINE void add_product(
    const typename V::Floats (&parts)[V::kVectors],
    float number,
    typename V::Floats (&sums)[V::kVectors]) {
  const typename V::Floats everywhere = all<V>(number);
#pragma GCC unroll 4
  for (int v = First; v < V::kVectors; ++v) {
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
template <int D>
constexpr int kStep = D > 64 ? 48 : 96;
// No block of keys goes beyond a step, none of columns beyond a head.
template <typename V, int D>
constexpr bool kBlocksFit =
    kStep<D> % V::kBlock == 0 && kStep<D> % V::kOuter == 0 && D % V::kBlock == 0;

// square[i][j] and square[j][i] change places, in ever larger blocks (Eklundh, 1972).
template <typename V, int Size, int... Lane>
PARADYSE_INLINE void transpose(
    typename V::Floats (&square)[V::kLanes], std::integer_sequence<int, Lane...> lanes) {
  if constexpr (Size < V::kLanes) {
#pragma GCC unroll 16
    for (int i = 0; i < V::kLanes; ++i) {
      if ((i & Size) == 0) {
        const typename V::Floats a = square[i];
        const typename V::Floats b = square[i + Size];
        square[i] =
            __builtin_shufflevector(a, b, ((Lane & Size) != 0 ? V::kLanes + Lane - Size : Lane)...);
        square[i + Size] =
            __builtin_shufflevector(a, b, ((Lane & Size) != 0 ? V::kLanes + Lane : Lane + Size)...);
      }
    }
    transpose<V, 2 * Size>(square, lanes);
  }
}

template <typename V>
PARADYSE_INLINE void transpose(typename V::Floats (&square)[V::kLanes]) {
  transpose<V, 1>(square, std::make_integer_sequence<int, V::kLanes>{});
}

// Columns [D][queries] of up to kQueries rows, times `factor`; lanes without a row are 0.
template <typename V, int D>
PARADYSE_INLINE void to_lanes(
    HeadRows<const float> rows, std::int64_t first, int count, float factor, float* lanes) {
  for (int r = 0; r < V::kQueries; r += V::kLanes) {
    for (int column = 0; column < D; column += V::kLanes) {
      typename V::Floats square[V::kLanes] = {};
#pragma GCC unroll 16
      for (int i = 0; i < V::kLanes; ++i) {
        if (r + i < count) {
          square[i] = load<V>(rows.data + (first + r + i) * rows.stride + column) * factor;
        }
      }
      transpose<V>(square);
#pragma GCC unroll 16
      for (int i = 0; i < V::kLanes; ++i) {
        store<V>(lanes + (column + i) * V::kQueries + r, square[i]);
      }
    }
  }
}

// Back to rows, times each query's factor; Adds: to what is there.
template <typename V, int D, bool Adds>
PARADYSE_INLINE void to_rows(
    const float* lanes,
    const typename V::Floats (&factor)[V::kVectors],
    HeadRows<float> rows,
    std::int64_t first,
    int count) {
  for (int v = 0; v < V::kVectors; ++v) {
    for (int column = 0; column < D; column += V::kLanes) {
      typename V::Floats square[V::kLanes];
#pragma GCC unroll 16
      for (int i = 0; i < V::kLanes; ++i) {
        square[i] = load<V>(lanes + (column + i) * V::kQueries + v * V::kLanes) * factor[v];
      }
      transpose<V>(square);
#pragma GCC unroll 16
      for (int i = 0; i < V::kLanes; ++i) {
        const int r = v * V::kLanes + i;
        if (r < count) {
          float* const to = rows.data + (first + r) * rows.stride + column;
          store<V>(to, Adds ? load<V>(to) + square[i] : square[i]);
        }
      }
    }
  }
}

// dots[query] = the product of its rows of a and b.
template <typename V, int D>
PARADYSE_INLINE void dot_rows(
    HeadRows<const float> a,
    HeadRows<const float> b,
    std::int64_t first,
    int count,
    typename V::Floats (&dots)[V::kVectors]) {
  for (int v = 0; v < V::kVectors; ++v) {
    typename V::Floats square[V::kLanes] = {};
#pragma GCC unroll 16
    for (int i = 0; i < V::kLanes; ++i) {
      const int r = v * V::kLanes + i;
      if (r < count) {
        for (int column = 0; column < D; column += V::kLanes) {
          square[i] += load<V>(a.data + (first + r) * a.stride + column) *
                       load<V>(b.data + (first + r) * b.stride + column);
        }
      }
    }
    transpose<V>(square);
    dots[v] = square[0];
#pragma GCC unroll 16
    for (int i = 1; i < V::kLanes; ++i) {
      dots[v] += square[i];
    }
  }
}

// Of keys [first, first + count): how many some lane of each vector sees, and how many all do.
// Beyond those that some lane sees, scores of a vector are not computed: memory of tiles holds
// anything there, and nobody reads it.
template <typename V>
struct SeenKeys {
  int count = 0;
  int some[V::kVectors];
  int all[V::kVectors];

  // The first vector of which some lane sees the key: later ones do, too.
  PARADYSE_INLINE int from(int key) const {
    int vector = 0;
    while (vector + 1 < V::kVectors && some[vector] <= key) {
      ++vector;
    }
    return vector;
  }
};

// scores[key][query] = the product of a lane's column and a key's row.
template <typename V, int D>
PARADYSE_INLINE void score(
    const float* lanes,
    HeadRows<const float> rows,
    std::int64_t first,
    const SeenKeys<V>& seen,
    float* scores) {
  using Floats = typename V::Floats;
  for (int block = 0; block < seen.count; block += V::kBlock) {
    const float* row[V::kBlock];
#pragma GCC unroll 16
    for (int k = 0; k < V::kBlock; ++k) {  // the last key again where there are no more
      row[k] = rows.data + (first + std::min(block + k, seen.count - 1)) * rows.stride;
    }
    with_constant<0, V::kVectors>(seen.from(block), [&](auto from) PARADYSE_INLINED {
      constexpr int kFrom = from();
      Floats sums[V::kBlock][V::kVectors];
#pragma GCC unroll 16
      for (int k = 0; k < V::kBlock; ++k) {
#pragma GCC unroll 4
        for (int v = kFrom; v < V::kVectors; ++v) {
          sums[k][v] = Floats{};
        }
      }
      for (int d = 0; d < D; ++d) {
        Floats parts[V::kVectors];
        load_all<V, kFrom>(lanes + d * V::kQueries, parts);
#pragma GCC unroll 16
        for (int k = 0; k < V::kBlock; ++k) {
          add_product<V, kFrom>(parts, row[k][d], sums[k]);
        }
      }
#pragma GCC unroll 16
      for (int k = 0; k < V::kBlock; ++k) {
        store_all<V, kFrom>(sums[k], scores + (block + k) * V::kQueries);
      }
    });
  }
}

// sums[d] += the products of keys' weights and their rows' column d: of keys from k on that the
// vectors from First on see, then of those that fewer see.
template <typename V, int First>
PARADYSE_INLINE void add_seen(
    const float* weights,
    const float* rows,
    std::int64_t stride,
    const SeenKeys<V>& seen,
    int k,
    typename V::Floats (&sums)[V::kBlock][V::kVectors]) {
  for (; k < seen.some[First]; ++k) {
    typename V::Floats parts[V::kVectors];
    load_all<V, First>(weights + k * V::kQueries, parts);
#pragma GCC unroll 16
    for (int d = 0; d < V::kBlock; ++d) {
      add_product<V, First>(parts, rows[k * stride + d], sums[d]);
    }
  }
  if constexpr (First + 1 < V::kVectors) {
    add_seen<V, First + 1>(weights, rows, stride, seen, k, sums);
  }
}

// lanes[column][query] = factor lanes + the sum over keys of weights[key][query] rows[key][column].
// The sum is made first: one chain over all keys would lose what a BLAS does not.
template <typename V, int D>
PARADYSE_INLINE void add_rows(
    const float* weights,
    HeadRows<const float> rows,
    std::int64_t first,
    const SeenKeys<V>& seen,
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
    add_seen<V, 0>(weights, rows.data + first * rows.stride + column, rows.stride, seen, 0, sums);
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
// rows[query][column].  Of a block of keys that a vector sees some of, all its weights are read.
template <typename V, int D>
PARADYSE_INLINE void add_outer(
    const float* weights,
    HeadRows<const float> rows,
    int queries,
    float factor,
    HeadRows<float> result,
    std::int64_t first_key,
    const SeenKeys<V>& seen) {
  using Floats = typename V::Floats;
  constexpr int kWide = std::min(D / V::kLanes, 2);  // vectors of columns at a time
  for (int column = 0; column < D; column += kWide * V::kLanes) {
    for (int block = 0; block < seen.count; block += V::kOuter) {
      Floats sums[V::kOuter][kWide];
#pragma GCC unroll 16
      for (int k = 0; k < V::kOuter; ++k) {
#pragma GCC unroll 2
        for (int c = 0; c < kWide; ++c) {
          sums[k][c] = Floats{};
        }
      }
      for (int q = seen.from(block) * V::kLanes; q < queries; ++q) {
        const float* const weight = weights + block * V::kQueries + q;
        Floats parts[kWide];
#pragma GCC unroll 2
        for (int c = 0; c < kWide; ++c) {
          parts[c] = load<V>(rows.data + q * rows.stride + column + c * V::kLanes);
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
        if (block + k < seen.count) {
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

// A tile of queries: how many there are, and the keys that some of them see.
struct Tile {
  std::int64_t first = 0;
  int queries = 0;
  std::int64_t keys = 0;
};

PARADYSE_INLINE Tile tile_at(const LaneAttention<float>& a, std::int64_t first, int most) {
  const auto queries = static_cast<int>(std::min<std::int64_t>(most, a.queries - first));
  return {first, queries, std::clamp<std::int64_t>(first + queries + a.diagonal, 0, a.keys)};
}

// Of the step of keys from `key` on.
template <typename V, int D>
PARADYSE_INLINE SeenKeys<V> seen_by(
    const LaneAttention<float>& a, const Tile& tile, std::int64_t key) {
  SeenKeys<V> seen;
  seen.count = static_cast<int>(std::min<std::int64_t>(kStep<D>, tile.keys - key));
  for (int v = 0; v < V::kVectors; ++v) {
    const std::int64_t lane = tile.first + v * V::kLanes + a.diagonal - key;
    const auto some = std::clamp<std::int64_t>(lane + V::kLanes, 0, seen.count);
    seen.some[v] = static_cast<int>(some);
    seen.all[v] = static_cast<int>(std::clamp<std::int64_t>(lane + 1, 0, some));
  }
  return seen;
}

// Lanes of vector v of which the query sees the key.
template <typename V>
PARADYSE_INLINE typename V::Ints visible(
    const LaneAttention<float>& a, const Tile& tile, int v, std::int64_t key) {
  typename V::Ints lane;
  for (int i = 0; i < V::kLanes; ++i) {
    lane[i] = i;
  }
  return lane >= static_cast<std::int32_t>(key - tile.first - v * V::kLanes - a.diagonal);
}

template <typename V, int D>
void attend_tile(const LaneAttention<float>& a, const Tile& tile, bool merge) {
  static_assert(kBlocksFit<V, D>);
  using Floats = typename V::Floats;
  constexpr int kQueries = V::kQueries;
  alignas(64) float q[D * kQueries];
  alignas(64) float o[D * kQueries];
  alignas(64) float scores[kStep<D> * kQueries];
  alignas(64) float before[kQueries];
  const auto [first, queries, keys] = tile;
  const bool over = a.to_come == 0 || first + queries + a.diagonal <= a.keys;
  to_lanes<V, D>(a.q, first, queries, a.scale * kLog2e, q);
  Floats maximum[V::kVectors];
  Floats sum[V::kVectors];
  const bool loads = merge || a.goes_on;
  if (loads) {
    to_lanes<V, D>({a.o.data, a.o.stride}, first, queries, 1, o);
    std::fill_n(before, kQueries, kNothing);
    for (int r = 0; r < queries; ++r) {
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
    for (int r = 0; r < queries; ++r) {
      sum[r / V::kLanes][r % V::kLanes] = a.sums[first + r];
    }
  }
  Floats factor[V::kVectors];
  for (std::int64_t key = 0; key < keys; key += kStep<D>) {
    const SeenKeys<V> seen = seen_by<V, D>(a, tile, key);
    score<V, D>(q, a.k, key, seen, scores);
#pragma GCC unroll 4
    for (int v = 0; v < V::kVectors; ++v) {
      float* const mine = scores + v * V::kLanes;
      for (int k = seen.all[v]; k < seen.some[v]; ++k) {
        const typename V::Ints sees = visible<V>(a, tile, v, key + k);
        store<V>(mine + k * kQueries, sees ? load<V>(mine + k * kQueries) : all<V>(kNothing));
      }
      Floats highest = maximum[v];
      for (int k = 0; k < seen.some[v]; ++k) {
        highest = larger<V>(highest, load<V>(mine + k * kQueries));
      }
      // what has seen nothing yet stays at nothing: its differences are no numbers
      const Floats shift = highest > all<V>(kNothing) ? highest : Floats{};
      factor[v] = powers_of_two<V>(maximum[v] - shift);
      Floats added{};
      for (int k = 0; k < seen.some[v]; ++k) {
        const Floats power = powers_of_two<V>(load<V>(mine + k * kQueries) - shift);
        store<V>(mine + k * kQueries, power);
        added += power;
      }
      sum[v] = sum[v] * factor[v] + added;
      maximum[v] = highest;
    }
    add_rows<V, D>(scores, a.v, key, seen, factor, o);
  }
  for (int v = 0; v < V::kVectors; ++v) {
    factor[v] = over ? (sum[v] == Floats{} ? Floats{} : 1 / sum[v]) : all<V>(1);
  }
  to_rows<V, D, false>(o, factor, a.o, first, queries);
  for (int r = 0; r < queries; ++r) {
    const float total = sum[r / V::kLanes][r % V::kLanes];
    const float highest = maximum[r / V::kLanes][r % V::kLanes];
    float& l = a.l.data[(first + r) * a.l.stride];
    if (over) {
      l = total == 0 ? kNothing : (highest + std::log2(total)) * kLn2;
    } else {
      l = highest;
      a.sums[first + r] = total;
    }
  }
}

template <typename V, int D>
void attend_adjoint_tile(
    const LaneAttention<float>& a, const LaneGradients<float>& g, const Tile& tile) {
  static_assert(kBlocksFit<V, D>);
  using Floats = typename V::Floats;
  constexpr int kQueries = V::kQueries;
  alignas(64) float q[D * kQueries];
  alignas(64) float grad_o[D * kQueries];
  alignas(64) float grad_q[D * kQueries];
  alignas(64) float q_rows[D * kQueries];
  alignas(64) float grad_o_rows[D * kQueries];
  alignas(64) float p[kStep<D> * kQueries];
  alignas(64) float d[kStep<D> * kQueries];
  alignas(64) float log_sum[kQueries] = {};
  const auto [first, queries, keys] = tile;
  to_lanes<V, D>(a.q, first, queries, a.scale * kLog2e, q);
  to_lanes<V, D>(g.o, first, queries, 1, grad_o);
  std::memset(grad_q, 0, sizeof(grad_q));
  for (int r = 0; r < queries; ++r) {
    std::memcpy(q_rows + r * D, a.q.data + (first + r) * a.q.stride, sizeof(float) * D);
    std::memcpy(grad_o_rows + r * D, g.o.data + (first + r) * g.o.stride, sizeof(float) * D);
    log_sum[r] = a.l.data[(first + r) * a.l.stride] * kLog2e;
  }
  Floats dots[V::kVectors];
  dot_rows<V, D>(g.result, g.o, first, queries, dots);
  Floats factor[V::kVectors];
  std::fill_n(factor, V::kVectors, all<V>(1));
  for (std::int64_t key = 0; key < keys; key += kStep<D>) {
    const SeenKeys<V> seen = seen_by<V, D>(a, tile, key);
    score<V, D>(q, a.k, key, seen, p);
    score<V, D>(grad_o, a.v, key, seen, d);
#pragma GCC unroll 4
    for (int v = 0; v < V::kVectors; ++v) {
      float* const p_lanes = p + v * V::kLanes;
      float* const d_lanes = d + v * V::kLanes;
      const Floats shift = load<V>(log_sum + v * V::kLanes);
      for (int k = 0; k < seen.some[v]; ++k) {
        Floats power = powers_of_two<V>(load<V>(p_lanes + k * kQueries) - shift);
        Floats slope = power * (load<V>(d_lanes + k * kQueries) - dots[v]);
        if (k >= seen.all[v]) {
          const typename V::Ints sees = visible<V>(a, tile, v, key + k);
          power = sees ? power : Floats{};
          slope = sees ? slope : Floats{};
        }
        store<V>(p_lanes + k * kQueries, power);
        store<V>(d_lanes + k * kQueries, slope);
      }
      // the rest of a block of which it sees some
      const int end = (seen.some[v] + V::kOuter - 1) / V::kOuter * V::kOuter;
      for (int k = seen.some[v]; k < end; ++k) {
        store<V>(p_lanes + k * kQueries, Floats{});
        store<V>(d_lanes + k * kQueries, Floats{});
      }
    }
    add_rows<V, D>(d, a.k, key, seen, factor, grad_q);
    add_outer<V, D>(p, {grad_o_rows, D}, queries, 1, g.v, key, seen);
    add_outer<V, D>(d, {q_rows, D}, queries, a.scale, g.k, key, seen);
  }
  std::fill_n(factor, V::kVectors, all<V>(a.scale));
  to_rows<V, D, true>(grad_q, factor, g.q, first, queries);
}

// `body` of each tile of queries and of the vectors that it fills.
template <typename V, typename Body>
PARADYSE_INLINE void each_tile(const LaneAttention<float>& a, const Body& body) {
  for (std::int64_t first = 0; first < a.queries; first += V::kQueries) {
    const Tile tile = tile_at(a, first, V::kQueries);
    with_constant<1, V::kVectors + 1>(
        (tile.queries + V::kLanes - 1) / V::kLanes,
        [&](auto vectors) PARADYSE_INLINED { body(tile, typename V::template Of<vectors()>{}); });
  }
}

template <typename V, int D>
PARADYSE_INLINE void attend_of(const LaneAttention<float>& a, bool merge) {
  each_tile<V>(a, [&](const Tile& tile, auto lanes) PARADYSE_INLINED {
    if (tile.keys > 0 || !(merge || a.goes_on)) {
      attend_tile<decltype(lanes), D>(a, tile, merge);
    }
  });
}

template <typename V, int D>
PARADYSE_INLINE void attend_adjoint_of(
    const LaneAttention<float>& a, const LaneGradients<float>& g) {
  each_tile<V>(a, [&](const Tile& tile, auto lanes) PARADYSE_INLINED {
    if (tile.keys > 0) {
      attend_adjoint_tile<decltype(lanes), D>(a, g, tile);
    }
  });
}

// The widths that lanes_for() names.
template <typename V>
PARADYSE_INLINE void attend_any(const LaneAttention<float>& a, bool merge) {
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
PARADYSE_INLINE void attend_adjoint_any(
    const LaneAttention<float>& a, const LaneGradients<float>& g) {
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
