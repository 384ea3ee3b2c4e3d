// What ops that a condition scales hold while they run.
#pragma once

#include "paradyse/plan/detail/op_traits.h"

namespace paradyse {

// So many columns of one row of the condition with the part's vector; going back their gradient,
// too.
inline std::int64_t condition_bytes(const OpView& view, std::int64_t columns) {
  const Precision precision = view.precision;
  return columns * (precision.activation + (view.forward() ? 0 : precision.statistic));
}

}  // namespace paradyse
