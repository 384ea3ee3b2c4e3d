// What adjoints read, as most kinds put it.
#pragma once

#include <vector>

#include "paradyse/plan/detail/op_traits.h"

namespace paradyse {

inline std::vector<ValueId> needs_operands(const Op& op) { return op.in; }

inline std::vector<ValueId> needs_operands_and_results(const Op& op) {
  std::vector<ValueId> all = op.in;
  all.insert(all.end(), op.out.begin(), op.out.end());
  return all;
}

}  // namespace paradyse
