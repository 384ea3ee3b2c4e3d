#include "src/run/kernels/cpu/lane_attention.h"

#include <algorithm>
#include <cstring>

namespace paradyse::kernels {

#if PARADYSE_HAS_LANES
namespace {

void attend_as_it_lies(int lanes, const LaneAttention& attention, bool merge) {
  return lanes == 16 ? attend_v4(attention, merge) : attend_v3(attention, merge);
}
void attend_adjoint_as_it_lies(
    int lanes, const LaneAttention& attention, const LaneGradients& gradients) {
  return lanes == 16 ? attend_adjoint_v4(attention, gradients)
                     : attend_adjoint_v3(attention, gradients);
}

// Keys of a part of which `copies` rows each are to find room; 0: it does not pay.
std::int64_t keys_at_once(const LaneAttention& a, std::int64_t floats, std::int64_t copies) {
  constexpr std::int64_t kStep = 96;      // a part is whole steps of the kernels
  constexpr std::int64_t kQueries = 128;  // fewer read keys too seldom
  const std::int64_t keys = floats / (copies * a.width);
  return a.keys == 0 || a.queries < kQueries || keys < std::min(kStep, a.keys)
             ? 0
             : std::max(keys / kStep * kStep, std::min(keys, a.keys));
}

HeadRows<const float> copied(
    HeadRows<const float> rows,
    std::int64_t first,
    std::int64_t count,
    std::int64_t width,
    float* to) {
  for (std::int64_t r = 0; r < count; ++r) {
    std::memcpy(
        to + r * width,
        rows.data + (first + r) * rows.stride,
        static_cast<std::size_t>(width) * sizeof(float));
  }
  return {to, width};
}

void add_rows(
    const float* from, HeadRows<float> to, std::int64_t first, std::int64_t count, int width) {
  for (std::int64_t r = 0; r < count; ++r) {
    float* const row = to.data + (first + r) * to.stride;
    for (int c = 0; c < width; ++c) {
      row[c] += from[r * width + c];
    }
  }
}

// The part of keys [first, first + count) copied to `room`.
LaneAttention part(const LaneAttention& all, std::int64_t first, std::int64_t count, float* room) {
  LaneAttention some = all;
  some.keys = count;
  some.diagonal = all.diagonal - first;
  some.k = copied(all.k, first, count, all.width, room);
  some.v = copied(all.v, first, count, all.width, room + count * all.width);
  some.goes_on = first > 0;
  some.to_come = all.keys - first - count;
  return some;
}

}  // namespace

int lanes_for(std::int64_t width) {
  static const int lanes = __builtin_cpu_supports("x86-64-v4") != 0   ? 16
                           : __builtin_cpu_supports("x86-64-v3") != 0 ? 8
                                                                      : 0;
  return width == 16 || width == 32 || width == 64 || width == 128 ? lanes : 0;
}

void attend_in_lanes(int lanes, const LaneAttention& attention, bool merge, std::span<float> room) {
  const std::int64_t left = static_cast<std::int64_t>(room.size()) - attention.queries;
  const std::int64_t at_once = keys_at_once(attention, left, 2);
  if (at_once == 0) {
    return attend_as_it_lies(lanes, attention, merge);
  }
  for (std::int64_t first = 0; first < attention.keys; first += at_once) {
    LaneAttention some = part(
        attention,
        first,
        std::min(at_once, attention.keys - first),
        room.data() + attention.queries);
    some.sums = room.data();
    attend_as_it_lies(lanes, some, merge);
  }
}

void attend_adjoint_in_lanes(
    int lanes,
    const LaneAttention& attention,
    const LaneGradients& gradients,
    std::span<float> room) {
  const std::int64_t at_once = keys_at_once(attention, static_cast<std::int64_t>(room.size()), 4);
  if (at_once == 0) {
    return attend_adjoint_as_it_lies(lanes, attention, gradients);
  }
  const auto width = static_cast<int>(attention.width);
  for (std::int64_t first = 0; first < attention.keys; first += at_once) {
    const std::int64_t count = std::min(at_once, attention.keys - first);
    float* const k = room.data() + 2 * count * width;
    float* const v = k + count * width;
    std::fill(k, v + count * width, 0.0F);
    LaneGradients some = gradients;
    some.k = {k, width};
    some.v = {v, width};
    attend_adjoint_as_it_lies(lanes, part(attention, first, count, room.data()), some);
    add_rows(k, gradients.k, first, count, width);
    add_rows(v, gradients.v, first, count, width);
  }
}
#else  // no head has lanes, so nobody calls these
int lanes_for(std::int64_t /*width*/) { return 0; }
void attend_in_lanes(
    int /*lanes*/, const LaneAttention& /*attention*/, bool /*merge*/, std::span<float> /*room*/) {}
void attend_adjoint_in_lanes(
    int /*lanes*/,
    const LaneAttention& /*attention*/,
    const LaneGradients& /*gradients*/,
    std::span<float> /*room*/) {}
#endif

}  // namespace paradyse::kernels
