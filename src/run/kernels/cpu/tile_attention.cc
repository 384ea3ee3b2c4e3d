#include "src/run/kernels/cpu/tile_attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <span>

#include "src/run/kernels/cpu/kernels.h"
#include "src/run/kernels/cpu/lane_attention.h"
#include "src/run/kernels/cpu/products.h"

// Scores are kept in base 2 (times log2(e), folded into their product), so that exponentials are
// powers of two.
namespace paradyse::ops {
namespace {

template <typename T>
constexpr at::ScalarType kType = c10::CppTypeToScalarType<T>::value;

template <typename S>
constexpr S kNothing = -std::numeric_limits<S>::infinity();  // log of a sum over no keys

template <typename T>
at::Tensor scratch(std::int64_t elements) {
  return at::empty({elements}, at::TensorOptions().dtype(kType<T>));
}

// Rows [tokens.begin, ...) of a head's columns.
template <typename T>
Rows<T> rows(const Columns& columns, Interval tokens, std::int64_t column = 0) {
  const at::Tensor& matrix = columns.matrix;
  const std::int64_t stride = matrix.size(0) == 1 ? matrix.size(1) : matrix.stride(0);
  T* data = nullptr;
  if constexpr (std::is_const_v<T>) {
    data = matrix.const_data_ptr<std::remove_const_t<T>>();
  } else {
    data = matrix.mutable_data_ptr<T>();
  }
  return {data + tokens.begin * stride + columns.first + column, stride};
}

// A result in the type of sums: in place, or in scratch beside a narrow one.
template <typename T>
class SumRows {
 public:
  SumRows(const Columns& columns, Interval tokens, std::int64_t column, std::int64_t D, bool load)
      : tokens_(tokens.size()), D_(D), wide_(columns.matrix.scalar_type() == kType<Sum<T>>) {
    if (wide_) {
      rows_ = rows<Sum<T>>(columns, tokens, column);
      return;
    }
    narrow_ = rows<T>(columns, tokens, column);
    memory_ = scratch<Sum<T>>(tokens_ * D);
    rows_ = {memory_.template mutable_data_ptr<Sum<T>>(), D};
    if (load) {
      kernels::rows_to_numbers(kType<T>, {narrow_.data, narrow_.stride}, tokens_, D_, rows_.data);
    }
  }

  [[nodiscard]] Rows<Sum<T>> sums() const { return rows_; }

  void store() {
    if (!wide_) {
      kernels::numbers_to_rows(kType<T>, rows_.data, tokens_, D_, narrow_.data, narrow_.stride);
    }
  }

 private:
  std::int64_t tokens_;
  std::int64_t D_;
  bool wide_;
  Rows<T> narrow_;
  Rows<Sum<T>> rows_;
  at::Tensor memory_;
};

// A tile of scores, of its gradient, and of each rounded for the next product.
template <typename T>
struct Tile {
  explicit Tile(std::int64_t elements) : sums(scratch<Sum<T>>(elements)) {
    if (kNarrow<T>) {
      narrow = scratch<T>(elements);
    }
  }
  [[nodiscard]] Sum<T>* data() const { return sums.template mutable_data_ptr<Sum<T>>(); }
  // For a product: where the kernels have left it in the type of its other factor.
  [[nodiscard]] Rows<const T> factor(std::int64_t cols) const {
    return {(kNarrow<T> ? narrow : sums).template const_data_ptr<T>(), cols};
  }
  // What a product takes of it, or its numbers as they are.
  void drop(
      const kernels::AttentionDropout& dropout, std::int64_t height, std::int64_t cols) const {
    if (dropout.drops()) {
      kernels::drop_tile(dropout, scores(height, cols));
    }
  }
  void drop_sums(
      const kernels::AttentionDropout& dropout, std::int64_t height, std::int64_t cols) const {
    if (dropout.drops()) {
      kernels::Scores wide = scores(height, cols);
      wide.narrow = nullptr;
      kernels::drop_tile(dropout, wide);
    }
  }
  [[nodiscard]] kernels::Scores scores(std::int64_t height, std::int64_t cols) const {
    return {
        .type = kType<T>,
        .sums = sums.mutable_data_ptr(),
        .narrow = kNarrow<T> ? narrow.mutable_data_ptr() : nullptr,
        .rows = height,
        .cols = cols};
  }

  at::Tensor sums;
  at::Tensor narrow;
};

// The bias of a head: an element for each query and key of the block.
template <typename T>
class Pairs {
 public:
  Pairs(const Columns& columns, std::int64_t keys, std::int64_t head) : keys_(keys) {
    if (columns.matrix.defined()) {
      rows_ = rows<T>(columns, {0, 0}, head);
    }
  }

  // Calls body(element, element of a tile [queries, keys] stored row by row).
  template <typename S, typename Body>
  void each(Interval queries, Interval keys, S* tile, Body body) const {
    if (rows_.data == nullptr) {
      return;
    }
    for (std::int64_t q = queries.begin; q < queries.end; ++q) {
      T* pair = rows_.data + (q * keys_ + keys.begin) * rows_.stride;
      for (std::int64_t k = 0; k < keys.size(); ++k, pair += rows_.stride) {
        body(*pair, *tile++);
      }
    }
  }

 private:
  std::int64_t keys_;
  Rows<T> rows_;
};

// What is added to scores of a block's keys.
template <typename S>
class KeyNumbers {
 public:
  KeyNumbers(const Columns& mask, Interval keys) {
    if (mask.matrix.defined()) {
      numbers_ = mask.matrix.const_data_ptr<S>() + keys.begin;
    }
  }

  // To a tile [queries, keys] of scores in base 2.
  void add_to(std::int64_t queries, Interval keys, S* tile) const {
    if (numbers_ == nullptr) {
      return;
    }
    for (std::int64_t q = 0; q < queries; ++q) {
      for (std::int64_t k = keys.begin; k < keys.end; ++k) {
        *tile++ += numbers_[k] * std::numbers::log2e_v<S>;
      }
    }
  }

 private:
  const S* numbers_ = nullptr;
};

// For each run of queries: start(queries), body(queries, keys, what counts, whether they are the
// first) for the tiles of which it sees something, in order of keys, done(queries, whether it sees
// any).
template <typename Start, typename Body, typename Done>
void for_tiles(const Attention& attention, Start start, Body body, Done done) {
  const AttentionTile tile = attention_tile(attention.block);
  const std::int64_t queries = attention.block.queries.size();
  const std::int64_t keys = attention.block.keys.size();
  const std::int64_t diagonal = attention.masked ? attention.block.diagonal : keys;
  const std::int64_t window = attention.masked ? attention.block.window : 0;
  for (std::int64_t i = 0; i < queries; i += tile.queries) {
    const Interval mine{i, std::min(i + tile.queries, queries)};
    const std::int64_t seen = std::clamp<std::int64_t>(mine.end + diagonal, 0, keys);
    const std::int64_t first =
        window > 0 ? std::clamp<std::int64_t>(i + diagonal + 1 - window, 0, seen) : 0;
    start(mine);
    for (std::int64_t j = first; j < seen; j += tile.keys) {
      body(
          mine,
          Interval{j, std::min(j + tile.keys, seen)},
          kernels::Counted{
              .first_visible = i + diagonal - j,
              .window = window,
              .cap = attention.cap * std::numbers::log2e},
          j == first);
    }
    done(mine, first < seen);
  }
}

// What the tiles below would hold is held all the same, for copies: how much a step needs is
// planned without knowing the machine that it will run on.
template <typename T>
std::int64_t lane_bytes(const Attention& attention, kernels::LanePass pass) {
  const bool forward = pass == kernels::LanePass::forward;
  const AttentionTile size = attention_tile(attention.block);
  const std::int64_t tiles = (forward ? 1 : 2) * size.queries * size.keys;
  const std::int64_t rows = (forward ? 3 : 2) * size.queries;
  return (tiles + rows) * static_cast<std::int64_t>(sizeof(float)) +
         (kNarrow<T> ? tiles * static_cast<std::int64_t>(sizeof(T)) : 0);
}
constexpr std::int64_t floats_in(std::int64_t bytes) {
  return bytes / static_cast<std::int64_t>(sizeof(float));
}

// Heads of a width that lanes are for, without a bias, a mask, a window, a cap or dropout; where
// tiles have AMX, it is as fast as lanes from sums of 64 terms on (docs/results/performance.md).
template <typename T>
bool in_lanes(const Attention& attention, const AttentionTensors& tensors, kernels::LanePass pass) {
  const std::int64_t D = attention.head_dim;
  return !tensors.bias.matrix.defined() && !tensors.mask.matrix.defined() &&
         attention.block.window == 0 && attention.cap == 0 && !attention.dropout.drops() &&
         kernels::lanes_for(D) > 0 &&
         !(std::is_same_v<T, at::BFloat16> && D >= 64 && bfloat16_products_have_amx()) &&
         kernels::has_lane_room<T>(
             pass,
             attention.block.queries.size(),
             attention.block.keys.size(),
             D,
             floats_in(lane_bytes<T>(attention, pass)));
}

template <typename T>
kernels::HeadRows<T> lane_rows(Rows<T> found) {
  return {found.data, found.stride};
}
template <typename T>
kernels::HeadRows<T> lane_rows(const Columns& columns, Interval tokens, std::int64_t column = 0) {
  return lane_rows(rows<T>(columns, tokens, column));
}

template <typename T>
kernels::LaneAttention<T> lanes_of(
    const Attention& attention, const AttentionTensors& tensors, std::int64_t head) {
  const AttentionBlock& block = attention.block;
  return {
      .queries = block.queries.size(),
      .keys = block.keys.size(),
      .diagonal = attention.masked ? block.diagonal : block.keys.size(),
      .width = attention.head_dim,
      .scale = static_cast<float>(attention.scale),
      .q = lane_rows<const T>(tensors.q, block.queries, head * attention.head_dim),
      .k = lane_rows<const T>(tensors.k, block.keys),
      .v = lane_rows<const T>(tensors.v, block.keys),
      .l = lane_rows<float>(tensors.l, block.queries, head)};
}

std::span<float> room_in(const at::Tensor& bytes) {
  return {
      reinterpret_cast<float*>(bytes.mutable_data_ptr<std::uint8_t>()),
      static_cast<std::size_t>(floats_in(bytes.numel()))};
}

template <typename T>
void attend_lanes(const Attention& attention, const AttentionTensors& tensors, bool merge) {
  const std::int64_t D = attention.head_dim;
  const at::Tensor held =
      scratch<std::uint8_t>(lane_bytes<T>(attention, kernels::LanePass::forward));
  const int lanes = kernels::lanes_for(D);
  for (std::int64_t head = 0; head < attention.heads; ++head) {
    SumRows<T> o_sums(tensors.o, attention.block.queries, head * D, D, merge);
    kernels::LaneAttention<T> one = lanes_of<T>(attention, tensors, head);
    one.o = lane_rows(o_sums.sums());
    kernels::attend_in_lanes(lanes, one, merge, room_in(held));
    o_sums.store();
  }
}

template <typename T>
void attend_adjoint_lanes(
    const Attention& attention,
    const AttentionTensors& tensors,
    const AttentionGradients& gradients) {
  const std::int64_t D = attention.head_dim;
  const Interval queries = attention.block.queries;
  const Interval keys = attention.block.keys;
  const at::Tensor held =
      scratch<std::uint8_t>(lane_bytes<T>(attention, kernels::LanePass::backward));
  const int lanes = kernels::lanes_for(D);
  SumRows<T> grad_k_sums(gradients.k, keys, 0, D, true);
  SumRows<T> grad_v_sums(gradients.v, keys, 0, D, true);
  for (std::int64_t head = 0; head < attention.heads; ++head) {
    SumRows<T> grad_q_sums(gradients.q, queries, head * D, D, true);
    kernels::attend_adjoint_in_lanes(
        lanes,
        lanes_of<T>(attention, tensors, head),
        kernels::LaneGradients<T>{
            .result = lane_rows<const T>(tensors.o, queries, head * D),
            .o = lane_rows<const T>(gradients.o, queries, head * D),
            .q = lane_rows(grad_q_sums.sums()),
            .k = lane_rows(grad_k_sums.sums()),
            .v = lane_rows(grad_v_sums.sums())},
        room_in(held));
    grad_q_sums.store();
  }
  grad_k_sums.store();
  grad_v_sums.store();
}

template <typename T>
void attend_of(const Attention& attention, const AttentionTensors& tensors, bool merge) {
  const auto& [q, k, v, o, l, bias, mask] = tensors;
  using S = Sum<T>;
  constexpr S kLog2e = std::numbers::log2e_v<S>;
  constexpr S kLn2 = std::numbers::ln2_v<S>;
  const std::int64_t D = attention.head_dim;
  const AttentionTile size = attention_tile(attention.block);
  const Tile<T> tile(size.queries * size.keys);
  const at::Tensor statistics = scratch<S>(3 * size.queries);
  S* const maximum = statistics.mutable_data_ptr<S>();
  S* const sum = maximum + size.queries;
  S* const factor = sum + size.queries;
  const Rows<const T> k_rows = rows<const T>(k, attention.block.keys);
  const Rows<const T> v_rows = rows<const T>(v, attention.block.keys);
  const KeyNumbers<S> of_keys(mask, attention.block.keys);
  for (std::int64_t head = 0; head < attention.heads; ++head) {
    const Rows<const T> q_rows = rows<const T>(q, attention.block.queries, head * D);
    const Rows<S> l_rows = rows<S>(l, attention.block.queries, head);
    const Pairs<const T> bias_pairs(bias, attention.block.keys.size(), head);
    SumRows<T> o_sums(o, attention.block.queries, head * D, D, merge);
    for_tiles(
        attention,
        [&](Interval queries) {
          for (std::int64_t r = 0; r < queries.size(); ++r) {
            const S before = merge ? l_rows.data[(queries.begin + r) * l_rows.stride] : kNothing<S>;
            maximum[r] = before * kLog2e;
            sum[r] = before == kNothing<S> ? 0 : 1;
          }
        },
        [&](Interval queries, Interval keys, const kernels::Counted& counted, bool first_keys) {
          const std::int64_t n = queries.size();
          const std::int64_t m = keys.size();
          const Rows<S> o_tile = o_sums.sums().from(queries.begin);
          gemm<T>(
              n,
              m,
              D,
              attention.scale * kLog2e,
              q_rows.from(queries.begin),
              k_rows.from(keys.begin).t(),
              0,
              {tile.data(), m});
          bias_pairs.each(queries, keys, tile.data(), [](const T& pair, S& score) {
            score += static_cast<S>(pair) * std::numbers::log2e_v<S>;
          });
          of_keys.add_to(n, keys, tile.data());
          kernels::softmax_tile(tile.scores(n, m), counted, maximum, sum, factor);
          tile.drop(attention.dropout.from(queries.begin, head, keys.begin), n, m);
          const bool first = first_keys && !merge;
          if (!first) {
            kernels::scale_rows(kType<S>, o_tile.data, o_tile.stride, n, D, factor);
          }
          gemm<T>(n, D, m, 1, tile.factor(m), v_rows.from(keys.begin), first ? 0 : 1, o_tile);
        },
        [&](Interval queries, bool sees) {
          if (!sees && merge) {
            return;
          }
          const Rows<S> o_tile = o_sums.sums().from(queries.begin);
          for (std::int64_t r = 0; r < queries.size(); ++r) {
            l_rows.data[(queries.begin + r) * l_rows.stride] =
                sum[r] == 0 ? kNothing<S> : (maximum[r] + std::log2(sum[r])) * kLn2;
            factor[r] = sum[r] == 0 ? 0 : 1 / sum[r];
            if (!sees) {
              std::fill_n(o_tile.data + r * o_tile.stride, D, S{0});
            }
          }
          kernels::scale_rows(kType<S>, o_tile.data, o_tile.stride, queries.size(), D, factor);
        });
    o_sums.store();
  }
}

template <typename T>
void attend_adjoint_of(
    const Attention& attention,
    const AttentionTensors& tensors,
    const AttentionGradients& gradients) {
  const auto& [q, k, v, o, l, bias, mask] = tensors;
  const auto& [grad_o, grad_q, grad_k, grad_v, grad_bias] = gradients;
  using S = Sum<T>;
  constexpr S kLog2e = std::numbers::log2e_v<S>;
  const std::int64_t D = attention.head_dim;
  const Interval queries_all = attention.block.queries;
  const Interval keys_all = attention.block.keys;
  const AttentionTile size = attention_tile(attention.block);
  const Tile<T> p(size.queries * size.keys);
  const Tile<T> d(size.queries * size.keys);
  const at::Tensor statistics = scratch<S>(2 * size.queries);
  S* const log_sum = statistics.mutable_data_ptr<S>();
  S* const dot = log_sum + size.queries;
  const Rows<const T> k_rows = rows<const T>(k, keys_all);
  const Rows<const T> v_rows = rows<const T>(v, keys_all);
  const KeyNumbers<S> of_keys(mask, keys_all);
  SumRows<T> grad_k_sums(grad_k, keys_all, 0, D, true);
  SumRows<T> grad_v_sums(grad_v, keys_all, 0, D, true);
  for (std::int64_t head = 0; head < attention.heads; ++head) {
    const Rows<const T> q_rows = rows<const T>(q, queries_all, head * D);
    const Rows<const T> o_rows = rows<const T>(o, queries_all, head * D);
    const Rows<const T> grad_o_rows = rows<const T>(grad_o, queries_all, head * D);
    const Rows<const S> l_rows = rows<const S>(l, queries_all, head);
    SumRows<T> grad_q_sums(grad_q, queries_all, head * D, D, true);
    const Pairs<const T> bias_pairs(bias, keys_all.size(), head);
    const Pairs<S> grad_bias_pairs(grad_bias, keys_all.size(), head);
    for_tiles(
        attention,
        [&](Interval queries) {
          for (std::int64_t r = 0; r < queries.size(); ++r) {
            log_sum[r] = l_rows.data[(queries.begin + r) * l_rows.stride] * kLog2e;
          }
          const auto from = [&](const Rows<const T>& all) {
            return kernels::StridedRows{all.from(queries.begin).data, all.stride};
          };
          kernels::dot_rows(kType<T>, from(o_rows), from(grad_o_rows), queries.size(), D, dot);
        },
        [&](Interval queries, Interval keys, const kernels::Counted& counted, bool) {
          const std::int64_t n = queries.size();
          const std::int64_t m = keys.size();
          const Rows<const T> q_tile = q_rows.from(queries.begin);
          const Rows<const T> g_tile = grad_o_rows.from(queries.begin);
          const Rows<const T> k_tile = k_rows.from(keys.begin);
          const Rows<const T> v_tile = v_rows.from(keys.begin);
          gemm<T>(n, m, D, attention.scale * kLog2e, q_tile, k_tile.t(), 0, {p.data(), m});
          bias_pairs.each(queries, keys, p.data(), [](const T& pair, S& score) {
            score += static_cast<S>(pair) * std::numbers::log2e_v<S>;
          });
          of_keys.add_to(n, keys, p.data());
          gemm<T>(n, m, D, 1, g_tile, v_tile.t(), 0, {d.data(), m});
          const kernels::AttentionDropout dropout =
              attention.dropout.from(queries.begin, head, keys.begin);
          d.drop_sums(dropout, n, m);
          kernels::softmax_tile_adjoint(p.scores(n, m), d.scores(n, m), counted, log_sum, dot);
          p.drop(dropout, n, m);
          grad_bias_pairs.each(
              queries, keys, d.data(), [](S& pair, const S& score) { pair += score; });
          gemm<T>(m, D, n, 1, p.factor(m).t(), g_tile, 1, grad_v_sums.sums().from(keys.begin));
          gemm<T>(
              n,
              D,
              m,
              attention.scale,
              d.factor(m),
              k_tile,
              1,
              grad_q_sums.sums().from(queries.begin));
          gemm<T>(
              m,
              D,
              n,
              attention.scale,
              d.factor(m).t(),
              q_tile,
              1,
              grad_k_sums.sums().from(keys.begin));
        },
        [](Interval, bool) {});
    grad_q_sums.store();
  }
  grad_k_sums.store();
  grad_v_sums.store();
}

}  // namespace

void attend(const Attention& attention, const AttentionTensors& tensors, bool merge) {
  AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kBFloat16, at::kHalf, tensors.q.matrix.scalar_type(), "attend", [&] {
        if constexpr (!std::is_same_v<scalar_t, double>) {
          if (in_lanes<scalar_t>(attention, tensors, kernels::LanePass::forward)) {
            return attend_lanes<scalar_t>(attention, tensors, merge);
          }
        }
        attend_of<scalar_t>(attention, tensors, merge);
      });
}

void attend_adjoint(
    const Attention& attention,
    const AttentionTensors& tensors,
    const AttentionGradients& gradients) {
  AT_DISPATCH_FLOATING_TYPES_AND2(
      at::kBFloat16, at::kHalf, tensors.q.matrix.scalar_type(), "attend_adjoint", [&] {
        if constexpr (!std::is_same_v<scalar_t, double>) {
          if (in_lanes<scalar_t>(attention, tensors, kernels::LanePass::backward)) {
            return attend_adjoint_lanes<scalar_t>(attention, tensors, gradients);
          }
        }
        attend_adjoint_of<scalar_t>(attention, tensors, gradients);
      });
}

void attend_blocks(const BlockAttention& attention, const AttentionMatrices& in, bool merge) {
  std::int64_t begun = 0;  // queries before this one have seen keys
  for (const AttentionBlock& block : attention.blocks) {
    const bool onto = merge || block.queries.begin < begun;
    for (const HeadRun& run : attention.runs) {
      attend(attention.of(block, run), tensors_of(attention, run, in), onto);
    }
    begun = block.queries.end;
  }
}

void attend_blocks_adjoint(
    const BlockAttention& attention,
    const AttentionMatrices& in,
    const AttentionMatrices& gradients,
    bool fresh) {
  if (fresh) {
    at::Tensor(gradients.q).zero_();
    if (!gradients.kv.is_same(gradients.q)) {
      at::Tensor(gradients.kv).zero_();
    }
  }
  for (const AttentionBlock& block : attention.blocks) {
    for (const HeadRun& run : attention.runs) {
      attend_adjoint(
          attention.of(block, run),
          tensors_of(attention, run, in),
          gradients_of(attention, run, gradients));
    }
  }
}

}  // namespace paradyse::ops
