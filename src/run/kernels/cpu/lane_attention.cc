#include "src/run/kernels/cpu/lane_attention.h"

namespace paradyse::kernels {

#if PARADYSE_HAS_LANES
int lanes_for(std::int64_t width) {
  static const int lanes = __builtin_cpu_supports("x86-64-v4") != 0   ? 16
                           : __builtin_cpu_supports("x86-64-v3") != 0 ? 8
                                                                      : 0;
  return width == 16 || width == 32 || width == 64 || width == 128 ? lanes : 0;
}

void attend_in_lanes(int lanes, const LaneAttention& attention, bool merge) {
  return lanes == 16 ? attend_v4(attention, merge) : attend_v3(attention, merge);
}

void attend_adjoint_in_lanes(
    int lanes, const LaneAttention& attention, const LaneGradients& gradients) {
  return lanes == 16 ? attend_adjoint_v4(attention, gradients)
                     : attend_adjoint_v3(attention, gradients);
}
#else  // no head has lanes, so nobody calls these
int lanes_for(std::int64_t /*width*/) { return 0; }
void attend_in_lanes(int /*lanes*/, const LaneAttention& /*attention*/, bool /*merge*/) {}
void attend_adjoint_in_lanes(
    int /*lanes*/, const LaneAttention& /*attention*/, const LaneGradients& /*gradients*/) {}
#endif

}  // namespace paradyse::kernels
