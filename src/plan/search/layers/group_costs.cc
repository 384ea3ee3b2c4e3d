#include "src/plan/search/layers/group_costs.h"

#include <stdexcept>
#include <string>

namespace paradyse {

LayerCosts& GroupCosts::of(int ranks, int domain) {
  if (ranks < 1 || ranks > task_.ranks) {
    throw std::invalid_argument(
        "group costs: a group of " + std::to_string(ranks) + " of " + std::to_string(task_.ranks) +
        " ranks");
  }
  return costs_.try_emplace({ranks, domain}, task_, ranks, domain, correction_).first->second;
}

}  // namespace paradyse
