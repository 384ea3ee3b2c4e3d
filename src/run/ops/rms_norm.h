// The numbers of a part's RMSNorms, as kernels take them.
#pragma once

#include "paradyse/plan/model.h"
#include "src/run/kernels/kernels.h"

namespace paradyse::ops {

inline kernels::RmsNorm rms_norm_of(const PartShape& shape) {
  return {shape.norm_eps, shape.norm_offset};
}

}  // namespace paradyse::ops
