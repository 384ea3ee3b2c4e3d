// AVX-512: 32 registers of 16 lanes.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <numbers>
#include <type_traits>
#include <utility>

#include "src/run/kernels/cpu/lane_attention.h"

#if PARADYSE_HAS_LANES
#pragma GCC target("arch=x86-64-v4")
#include "src/run/kernels/cpu/lane_attention_body.h"

namespace paradyse::kernels {

void attend_v4(const LaneAttention<float>& attention, bool merge) {
  attend_any<Lanes<16, 3, 8>>(attention, merge);
}

void attend_adjoint_v4(
    const LaneAttention<float>& attention, const LaneGradients<float>& gradients) {
  attend_adjoint_any<Lanes<16, 3, 8>>(attention, gradients);
}

}  // namespace paradyse::kernels
#endif
