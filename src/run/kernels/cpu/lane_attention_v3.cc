// AVX2: 16 registers of 8 lanes.
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
#pragma GCC target("arch=x86-64-v3")
#include "src/run/kernels/cpu/lane_attention_body.h"

namespace paradyse::kernels {

void attend_v3(const LaneAttention<float>& attention, bool merge) {
  attend_any<Lanes<8, 3, 4>>(attention, merge);
}

void attend_adjoint_v3(
    const LaneAttention<float>& attention, const LaneGradients<float>& gradients) {
  attend_adjoint_any<Lanes<8, 3, 4>>(attention, gradients);
}

}  // namespace paradyse::kernels
#endif
