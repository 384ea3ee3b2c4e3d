#include "src/run/kernels/cpu/lane_attention.h"

#include <algorithm>
#include <stdexcept>
#include <type_traits>

#include <c10/core/ScalarType.h>

#include "src/run/kernels/cpu/kernels.h"
#include "src/run/kernels/cpu/products.h"

namespace paradyse::kernels {

#if PARADYSE_HAS_LANES
namespace {

using ops::kNarrow;

// Keys that are copied at a time are whole steps of the kernels (but for the last), narrow queries
// whole tiles.
constexpr std::int64_t kWhole = 96;
// Queries that have all their keys before the next ones have any, so that `sums` stay few.
constexpr std::int64_t kRun = 42 * kWhole;

// What is copied at a time: rows of q (backward: of o and its gradient, too), and of k and v
// (backward of float32, whose gradients lie as k and v do: room for them, too).
struct Copies {
  std::int64_t queries = 0;  // 0: read where they are
  std::int64_t keys = 0;     // 0: so are keys, or there is no room
};

template <typename T>
Copies copies_in(
    LanePass pass,
    std::int64_t queries,
    std::int64_t keys,
    std::int64_t width,
    std::int64_t floats) {
  constexpr std::int64_t kFewest = 128;  // fewer queries read float32 keys too seldom
  const bool forward = pass == LanePass::forward;
  const std::int64_t mine = kNarrow<T> ? std::min(kWhole, queries) : 0;
  const std::int64_t sums = forward ? std::min(kRun, queries) : 0;
  const std::int64_t left = floats - sums - (forward ? 1 : 3) * mine * width;
  const std::int64_t fit = left / ((kNarrow<T> || forward ? 2 : 4) * width);
  if (keys == 0 || (!kNarrow<T> && queries < kFewest) || fit < std::min(kWhole, keys)) {
    return {.queries = mine};
  }
  return {.queries = mine, .keys = fit < keys ? fit / kWhole * kWhole : keys};
}

template <typename T>
HeadRows<const float> copied(
    HeadRows<const T> rows, std::int64_t count, std::int64_t width, float* to) {
  rows_to_numbers(c10::CppTypeToScalarType<T>::value, {rows.data, rows.stride}, count, width, to);
  return {to, width};
}

// As float32: a copy, or, float32 already, where they are.
template <typename T>
HeadRows<const float> as_floats(
    HeadRows<const T> rows, std::int64_t count, std::int64_t width, float* to) {
  if constexpr (kNarrow<T>) {
    return copied(rows, count, width, to);
  } else {
    return rows;
  }
}

void add_rows(const float* rows, HeadRows<float> to, std::int64_t count, int width) {
  for (std::int64_t r = 0; r < count; ++r) {
    float* const row = to.data + r * to.stride;
    for (int c = 0; c < width; ++c) {
      row[c] += rows[r * width + c];
    }
  }
}

// body(attention of float32 rows, its first query, its first key) for each part of keys that find
// room for copies, and, of narrow types, each part of queries.
template <typename T, typename Body>
void for_parts(const LaneAttention<T>& all, Copies copies, float* q, float* k, const Body& body) {
  if (copies.keys == 0) {
    throw std::logic_error("attention in lanes: no room for copies (has_lane_room)");
  }
  const std::int64_t D = all.width;
  for (std::int64_t run = 0; run < all.queries; run += kRun) {
    const std::int64_t end = std::min(run + kRun, all.queries);
    const std::int64_t seen = std::clamp<std::int64_t>(end + all.diagonal, 0, all.keys);
    const std::int64_t step = copies.queries == 0 ? kRun : copies.queries;
    std::int64_t key = 0;
    do {  // once, too, where nothing is seen: that is a result
      const std::int64_t keys = std::min(copies.keys, seen - key);
      const auto k_rows = copied(all.k.from(key), keys, D, k);
      const auto v_rows = copied(all.v.from(key), keys, D, k + keys * D);
      for (std::int64_t query = run; query < end; query += step) {
        const std::int64_t queries = std::min(step, end - query);
        if (key > 0 && query + queries + all.diagonal <= key) {
          continue;  // see none of these
        }
        body(
            LaneAttention<float>{
                .queries = queries,
                .keys = keys,
                .diagonal = all.diagonal + query - key,
                .width = D,
                .scale = all.scale,
                .q = as_floats(all.q.from(query), queries, D, q),
                .k = k_rows,
                .v = v_rows,
                .l = all.l.from(query),
                .goes_on = key > 0,
                .to_come = seen - key - keys},
            query,
            key);
      }
      key += keys;
    } while (key < seen);
  }
}

void attend_as_it_lies(int lanes, const LaneAttention<float>& attention, bool merge) {
  return lanes == 16 ? attend_v4(attention, merge) : attend_v3(attention, merge);
}
void attend_adjoint_as_it_lies(
    int lanes, const LaneAttention<float>& attention, const LaneGradients<float>& gradients) {
  return lanes == 16 ? attend_adjoint_v4(attention, gradients)
                     : attend_adjoint_v3(attention, gradients);
}

}  // namespace

int lanes_for(std::int64_t width) {
  static const int lanes = __builtin_cpu_supports("x86-64-v4") != 0   ? 16
                           : __builtin_cpu_supports("x86-64-v3") != 0 ? 8
                                                                      : 0;
  return width == 16 || width == 32 || width == 64 || width == 128 ? lanes : 0;
}

template <typename T>
bool has_lane_room(
    LanePass pass,
    std::int64_t queries,
    std::int64_t keys,
    std::int64_t width,
    std::int64_t floats) {
  return !kNarrow<T> || copies_in<T>(pass, queries, keys, width, floats).keys > 0;
}

template <typename T>
void attend_in_lanes(
    int lanes, const LaneAttention<T>& attention, bool merge, std::span<float> room) {
  const Copies copies = copies_in<T>(
      LanePass::forward,
      attention.queries,
      attention.keys,
      attention.width,
      static_cast<std::int64_t>(room.size()));
  if constexpr (!kNarrow<T>) {
    if (copies.keys == 0) {
      return attend_as_it_lies(lanes, attention, merge);
    }
  }
  float* const sums = room.data();
  float* const q = sums + std::min(kRun, attention.queries);
  float* const k = q + copies.queries * attention.width;
  for_parts(
      attention, copies, q, k, [&](LaneAttention<float> part, std::int64_t query, std::int64_t) {
        part.o = attention.o.from(query);
        part.sums = sums + query % kRun;
        attend_as_it_lies(lanes, part, merge);
      });
}

template <typename T>
void attend_adjoint_in_lanes(
    int lanes,
    const LaneAttention<T>& attention,
    const LaneGradients<T>& gradients,
    std::span<float> room) {
  const std::int64_t D = attention.width;
  const Copies copies = copies_in<T>(
      LanePass::backward,
      attention.queries,
      attention.keys,
      D,
      static_cast<std::int64_t>(room.size()));
  if constexpr (!kNarrow<T>) {
    if (copies.keys == 0) {
      return attend_adjoint_as_it_lies(lanes, attention, gradients);
    }
  }
  float* const q = room.data();
  float* const result = q + copies.queries * D;
  float* const grad_o = result + copies.queries * D;
  float* const k = grad_o + copies.queries * D;
  for_parts(
      attention,
      copies,
      q,
      k,
      [&](const LaneAttention<float>& part, std::int64_t query, std::int64_t key) {
        LaneGradients<float> some = {
            .result = as_floats(gradients.result.from(query), part.queries, D, result),
            .o = as_floats(gradients.o.from(query), part.queries, D, grad_o),
            .q = gradients.q.from(query),
            .k = gradients.k.from(key),
            .v = gradients.v.from(key)};
        if constexpr (kNarrow<T>) {
          attend_adjoint_as_it_lies(lanes, part, some);
        } else {  // theirs lie as far apart as keys do
          float* const grad_k = k + 2 * part.keys * D;
          float* const grad_v = grad_k + part.keys * D;
          std::fill(grad_k, grad_v + part.keys * D, 0.0F);
          some.k = {grad_k, D};
          some.v = {grad_v, D};
          attend_adjoint_as_it_lies(lanes, part, some);
          add_rows(grad_k, gradients.k.from(key), part.keys, static_cast<int>(D));
          add_rows(grad_v, gradients.v.from(key), part.keys, static_cast<int>(D));
        }
      });
}
#else  // no head has lanes, so nobody calls the rest
int lanes_for(std::int64_t /*width*/) { return 0; }
template <typename T>
bool has_lane_room(
    LanePass /*pass*/,
    std::int64_t /*queries*/,
    std::int64_t /*keys*/,
    std::int64_t /*width*/,
    std::int64_t /*floats*/) {
  return false;
}
template <typename T>
void attend_in_lanes(
    int /*lanes*/,
    const LaneAttention<T>& /*attention*/,
    bool /*merge*/,
    std::span<float> /*room*/) {}
template <typename T>
void attend_adjoint_in_lanes(
    int /*lanes*/,
    const LaneAttention<T>& /*attention*/,
    const LaneGradients<T>& /*gradients*/,
    std::span<float> /*room*/) {}
#endif

#define PARADYSE_INSTANCE(T)                                                           \
  template bool has_lane_room<T>(                                                      \
      LanePass, std::int64_t, std::int64_t, std::int64_t, std::int64_t);               \
  template void attend_in_lanes(int, const LaneAttention<T>&, bool, std::span<float>); \
  template void attend_adjoint_in_lanes(                                               \
      int, const LaneAttention<T>&, const LaneGradients<T>&, std::span<float>);
PARADYSE_INSTANCE(float)
PARADYSE_INSTANCE(at::BFloat16)
PARADYSE_INSTANCE(at::Half)

}  // namespace paradyse::kernels
