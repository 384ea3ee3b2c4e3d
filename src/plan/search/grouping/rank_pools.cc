#include "src/plan/search/grouping/rank_pools.h"

#include <algorithm>
#include <numeric>

#include "paradyse/plan/detail/index.h"

namespace paradyse {

double mean_speed(const std::vector<double>& speeds) {
  return speeds.empty() ? 1
                        : std::accumulate(speeds.begin(), speeds.end(), 0.0) /
                              static_cast<double>(speeds.size());
}

double least_speed(const std::vector<double>& speeds) {
  return speeds.empty() ? 1 : std::ranges::min(speeds);
}

void add_types(
    const std::vector<GroupsOfAKind>& kinds,
    const std::vector<double>& speeds,
    double whole,
    GroupingTask& task) {
  const auto add = [&](const GroupsOfAKind& kind, int pool, double speed, double price) {
    GroupType type = kind.type;
    type.pool = pool;
    type.price = price;
    task.types.push_back(std::move(type));
    for (const double seconds : kind.seconds) {
      task.seconds.push_back(seconds / speed);
    }
  };
  for (const GroupsOfAKind& kind : kinds) {
    add(kind, -1, kind.type.ranks == task.ranks ? whole : least_speed(speeds), 1);
  }
  const double mean = mean_speed(speeds);
  for (std::size_t r = 0; r < speeds.size();) {
    const std::size_t begin = r;
    while (r < speeds.size() && speeds[r] == speeds[begin]) {
      ++r;
    }
    const auto pool = static_cast<int>(task.pools.size());
    task.pools.push_back(static_cast<int>(r - begin));
    for (const GroupsOfAKind& kind : kinds) {
      if (kind.type.ranks <= task.pools.back()) {
        add(kind, pool, speeds[begin], speeds[begin] / mean);
      }
    }
  }
}

}  // namespace paradyse
