// The program without HiGHS.
#include "lab/grouping/milp.h"

namespace paradyse {

bool has_milp_solver() { return false; }

std::optional<MilpAnswer> solve(
    const Milp&, const std::vector<double>&, double /*seconds*/, std::uint64_t) {
  return std::nullopt;
}

}  // namespace paradyse
