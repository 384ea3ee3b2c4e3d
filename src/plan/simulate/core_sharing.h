// Ranks that share the cores of their node: those that others have left have more of them.
#pragma once

#include <span>
#include <vector>

#include "paradyse/plan/cluster.h"

namespace paradyse {

// What a group of a micro-batch is at.
struct GroupLoad {
  std::vector<int> ranks;
  double seconds = 0;  // while all ranks of its nodes are at work
};

// [group] How many times as fast its ranks compute, until they are done, as while all ranks of
// their nodes are at work.  Groups begin at once; ranks that no group has are at work all the time;
// a rank has one core at most.  The mean over a group's time, on the node where that is least.
std::vector<double> speeds_beside_others(const Cluster& cluster, std::span<const GroupLoad> groups);

}  // namespace paradyse
