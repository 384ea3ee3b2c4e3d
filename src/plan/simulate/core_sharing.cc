#include "src/plan/simulate/core_sharing.h"

#include <algorithm>
#include <limits>
#include <map>

#include "paradyse/plan/detail/index.h"

namespace paradyse {

std::vector<double> speeds_beside_others(
    const Cluster& cluster, std::span<const GroupLoad> groups) {
  std::vector<double> speeds(groups.size(), 1);
  if (!cluster.shares_cores()) {
    return speeds;
  }
  struct OnNode {
    std::size_t group = 0;
    int ranks = 0;
  };
  std::map<int, std::vector<OnNode>> nodes;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    for (const int rank : groups[g].ranks) {
      std::vector<OnNode>& here = nodes[cluster.node(rank)];
      if (here.empty() || here.back().group != g) {
        here.push_back({.group = g});
      }
      ++here.back().ranks;
    }
  }
  std::ranges::fill(speeds, std::numeric_limits<double>::infinity());
  const auto cores = static_cast<double>(cluster.cores_per_node);
  for (auto& [node, here] : nodes) {
    // All are as fast as one another at any time: what has least to do is done first.
    std::ranges::stable_sort(
        here, {}, [&](const OnNode& one) { return groups[one.group].seconds; });
    int working = cluster.ranks_on_node();
    double before = 0;
    double clock = 0;
    for (const OnNode& one : here) {
      const double seconds = groups[one.group].seconds;
      const double speed =
          std::min(1.0, cores / working) * static_cast<double>(cluster.ranks_on_node()) / cores;
      clock += (seconds - before) / speed;
      before = seconds;
      working -= one.ranks;
      speeds[one.group] = std::min(speeds[one.group], clock > 0 ? seconds / clock : 1);
    }
  }
  return speeds;
}

}  // namespace paradyse
