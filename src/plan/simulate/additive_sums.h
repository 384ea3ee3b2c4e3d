// The ranks of one weight domain on their way through micro-batches in which nothing overlaps: the
// twin of Timetable that adds up (additive.h).
#pragma once

#include <vector>

#include "src/plan/simulate/additive.h"
#include "src/plan/simulate/timetable.h"

namespace paradyse {

class AdditiveSums {
 public:
  AdditiveSums(
      const Cluster& cluster, const SimulationOptions& options, int domain_first, int domain);

  // Plays the groups side by side; then all ranks wait for the slowest.
  void run(const std::vector<GroupRun>& groups);

  // [domain rank]: times, traffic and operations so far.
  [[nodiscard]] const std::vector<SimulatedRank>& ranks() const { return ranks_; }

 private:
  void count(const GroupRun& group);

  const Cluster& cluster_;
  AdditiveCosts costs_;
  ExchangeCosts exchange_costs_;
  Precision precision_;
  bool training_;
  int domain_first_;
  std::vector<SimulatedRank> ranks_;
};

}  // namespace paradyse
