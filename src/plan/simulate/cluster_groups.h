// What spaces of groups on a described cluster share, of documents (cluster_space.h) and of samples
// (sample_space.h).
#pragma once

#include <cstdint>
#include <vector>

#include "paradyse/plan/detail/planning_task.h"
#include "paradyse/plan/simulate.h"
#include "src/plan/search/grouping/space.h"

namespace paradyse {

// The same ranks, each with such a device.
Cluster all_of(Cluster cluster, DeviceClass device);
// All devices as the slowest is in everything, with the least memory.
Cluster alike(Cluster cluster);

// Sizes of groups that lie inside a node of so many ranks or have whole nodes, up to `most`: any up
// to a node, of more nodes few.
std::vector<int> sizes_in_nodes(int most, int node);
// Throws std::invalid_argument for one that is not among the known.
void expect_group_sizes(const std::vector<int>& wanted, const std::vector<int>& known);
// Those of the known that are wanted; none wanted: all.
std::vector<int> wanted_of(std::vector<int> known, const std::vector<int>& wanted);

// Throws std::invalid_argument for a sharding group of so many ranks that does not divide them.
void expect_weight_domain(const Cluster& cluster, int weight_domain);

// What planners of groups are asked on a cluster whose devices are all alike, of each of which the
// share `reserve` stays free.
PlanningTask planning_task(
    const Model& model,
    const Cluster& cluster,
    int weight_domain,
    const SimulationOptions& options,
    double reserve);

// Gradients that sharding groups share, and the update, of plans of a space; with one document of
// so many tokens, or a sample of such dims, that the idle program runs.
double end_of_step(
    const GroupSpace& space,
    const Model& model,
    const Cluster& cluster,
    const SimulationOptions& options,
    std::int64_t tokens,
    const DimSizes& dims = {});

}  // namespace paradyse
