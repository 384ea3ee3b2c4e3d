// Attention of one head of 16, 32, 64 or 128, a query in each lane of a vector: scores never leave
// registers and first-level cache (FlashAttention-2, Dao 2023, transposed).
//
// A tile of queries is stored column by column, so scores of a key, their maximum, sum and mask are
// vectors over queries.  Products are blocks of registers, since a BLAS is slow at sums of 16 or 32
// terms.  Keys and values are copied side by side first, as many as find room: rows of a head lie a
// token's whole width apart, and so push one another out of a few places of the first-level cache.
// bfloat16 and float16 become float32 on that way, and nothing is rounded before the results are.
#pragma once

#include <cstdint>
#include <span>

// Vectors of the compiler's own, for x86-64.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define PARADYSE_HAS_LANES 1
#else
#define PARADYSE_HAS_LANES 0
#endif

namespace paradyse::kernels {

// Rows `stride` elements apart.
template <typename T>
struct HeadRows {
  T* data = nullptr;
  std::int64_t stride = 0;

  [[nodiscard]] HeadRows from(std::int64_t row) const { return {data + row * stride, stride}; }
};

// Query i sees keys [0, i + diagonal], of those there are.  T: float, at::BFloat16 or at::Half.
template <typename T>
struct LaneAttention {
  std::int64_t queries = 0;
  std::int64_t keys = 0;
  std::int64_t diagonal = 0;  // keys: all see all
  std::int64_t width = 0;     // of the head
  float scale = 1;            // of q k
  HeadRows<const T> q = {};
  HeadRows<const T> k = {};
  HeadRows<const T> v = {};
  HeadRows<float> o = {};  // of attend_in_lanes() alone
  HeadRows<float> l = {};  // log-sum-exp, one column

  // Of keys that come part by part: whether some came before these, and how many are still to come.
  // Meanwhile o is not yet divided by its sum, which is in `sums`, and l is the maximum in base 2.
  bool goes_on = false;
  std::int64_t to_come = 0;
  float* sums = nullptr;  // [queries]
};

template <typename T>
struct LaneGradients {
  HeadRows<const T> result = {};  // o
  HeadRows<const T> o = {};
  HeadRows<float> q = {};
  HeadRows<float> k = {};
  HeadRows<float> v = {};
};

// The most lanes, 16 or 8, that this machine has for a head so wide; 0: it has no such vectors
// (AVX-512, AVX2), or the head another width.
int lanes_for(std::int64_t width);

// Whether narrow types find room for copies in so many floats; float32 needs none.
enum class LanePass { forward, backward };
template <typename T>
bool has_lane_room(
    LanePass pass,
    std::int64_t queries,
    std::int64_t keys,
    std::int64_t width,
    std::int64_t floats);

// As ops::attend() and ops::attend_adjoint() of one head, to whose gradients is added; in as many
// lanes as lanes_for() says, or fewer.  `room`: for copies; of narrow types has_lane_room() of it.
template <typename T>
void attend_in_lanes(
    int lanes, const LaneAttention<T>& attention, bool merge, std::span<float> room);
template <typename T>
void attend_adjoint_in_lanes(
    int lanes,
    const LaneAttention<T>& attention,
    const LaneGradients<T>& gradients,
    std::span<float> room);

#if PARADYSE_HAS_LANES
// The same in 8 lanes (lane_attention_v3.cc) and in 16 (lane_attention_v4.cc), rows as they lie.
void attend_v3(const LaneAttention<float>& attention, bool merge);
void attend_v4(const LaneAttention<float>& attention, bool merge);
void attend_adjoint_v3(
    const LaneAttention<float>& attention, const LaneGradients<float>& gradients);
void attend_adjoint_v4(
    const LaneAttention<float>& attention, const LaneGradients<float>& gradients);
#endif

}  // namespace paradyse::kernels
