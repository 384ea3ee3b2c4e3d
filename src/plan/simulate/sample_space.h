// Groups of samples of a multi-axis model on a described cluster: as cluster_space.h, of which the
// options are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "src/plan/simulate/cluster_space.h"

namespace paradyse {

struct SampleSpaces {
  // To choose from: of each size one sample at once, two, four, ... as far as there is room.
  std::vector<GroupSpace> spaces = {};
  // None: why, of this sample, and what a device needs for it, the reserve among it; 0: no memory
  // would do.
  std::string why_not = {};
  std::size_t sample = 0;
  std::int64_t needed_bytes = 0;
};

// A group runs samples of one size, by the layout that sends least and with as little recomputation
// as its memory asks for; its seconds are the additive ones of just this.  `flexsp`: groups of 1,
// 2, 4, ... ranks of a node or nodes, and of all; else any size up to a node, and whole nodes.
// Devices that are unlike all count as the slowest, with the least memory.  Throws
// std::invalid_argument for a domain that does not divide the ranks, and for sizes of groups that
// the space does not have.
SampleSpaces sample_spaces(
    const Model& model,
    const Cluster& cluster,
    const ClusterSpaceOptions& options,
    const BatchSizes& samples);

// Whether a sample of such dims finds room in the largest groups.  Throws like sample_spaces().
bool has_room(
    const Model& model,
    const Cluster& cluster,
    const ClusterSpaceOptions& options,
    const DimSizes& dims);

}  // namespace paradyse
