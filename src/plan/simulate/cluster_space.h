// Groups of a model on a described cluster, as planners of batches want them: seconds are additive
// ones (additive.h), room is what the folds count (cost.h).
#pragma once

#include <cstdint>
#include <vector>

#include "paradyse/plan/simulate.h"
#include "src/plan/search/grouping/space.h"

namespace paradyse {

struct ClusterSpaceOptions {
  // Groups of 1, 2, 4, ... ranks that run UlyssesZ and recompute nothing; else any size up to a
  // node and whole nodes, UlyssesZ, MegatronCZ or (beyond a node) USP, and every level of
  // recompute.
  bool flexsp = false;
  bool overlapped = false;            // weights are gathered behind the slowest group
  int weight_domain = 0;              // divides the cluster's ranks; 0: all of them
  double reserve = 0.05;              // of a device's memory, left free
  std::vector<int> group_sizes = {};  // of these those that groups may have; none: all
  SimulationOptions simulation = {};
};

// Seconds of a document are read off a ladder of lengths, between its rungs by a rate (seconds a
// token beside what every group takes) that is linear in the length, as attention's is; they are
// those in a group that is as full as the batch will make it.  Where devices are unlike
// the space `full` has pools of like ones, and types in each; a group that may lie anywhere takes
// what it takes on the slowest devices and has the room of the smallest.  Of ways to run on so many
// ranks those are left out than which another has the room and is as fast for every document.
// Throws std::invalid_argument for a domain that does not divide the ranks, for sizes of groups
// that the space does not have, for a model that leaves no memory, for documents longer than
// learned positions.
GroupSpace cluster_space(
    const Model& model,
    const Cluster& cluster,
    const ClusterSpaceOptions& options,
    std::vector<std::int64_t> lengths);

// Bytes of memory of each rank, the reserve among them, with which a document of so many tokens
// finds room in the largest groups; what devices have does not matter.  Throws
// std::invalid_argument for a domain that does not divide the ranks.
std::int64_t memory_for(
    const Model& model,
    const Cluster& cluster,
    const ClusterSpaceOptions& options,
    std::int64_t tokens);

}  // namespace paradyse
