// What ops that a condition scales hold while they run.
#pragma once

#include "paradyse/plan/op_traits.h"

namespace paradyse {

// The columns of one row of the condition with the part's vector; going back their gradient, too.
inline std::int64_t condition_bytes(const OpView& view) {
  const Precision precision = view.precision;
  return view.op.condition.size() *
         (precision.activation + (view.forward() ? 0 : precision.statistic));
}

}  // namespace paradyse
