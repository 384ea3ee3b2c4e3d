// What a cluster makes of a batch: every uniform plan simulated, and the best mix of layers.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "paradyse/plan/simulate.h"

namespace paradyse {

// The same documents for each weight domain of a cluster; domains are runs of `domain` ranks.
struct Workload {
  std::vector<std::int64_t> lengths;
  int domain = 1;
};

// The most ranks, up to 64, that divide the cluster's.
int largest_domain(const Cluster& cluster);

// What the plan of one weight domain says, of every one of the cluster.  Throws
// std::invalid_argument where its ranks do not divide the cluster's.
Plan repeated(Plan plan, const Cluster& cluster);
// Every weight domain runs the documents by these layers, as uniform_plan() does on one.
// Throws std::invalid_argument where `domain` does not divide the cluster's ranks.
Plan repeated_plan(
    const Model& model,
    const Cluster& cluster,
    const Workload& workload,
    const std::vector<LayerChoice>& layers);

// The same samples of a multi-axis model for each weight domain, which has the ranks of `samples`,
// by a layout of layout_ways() (layout_planner.h), or "planned-by-seconds": the one whose parts
// take the fewest seconds one after the other.  Throws std::invalid_argument for another name, with
// those that there are, and like repeated().
Plan layout_plan(
    const Model& model,
    const Cluster& cluster,
    const Documents& samples,
    const std::string& layout,
    LayerRecompute recompute,
    const SimulationOptions& options = {});

struct SimulatedChoice {
  std::string name;  // "UlyssesZ+gather, recompute full"; "mix: 60 x ..., 36 x ..."
  Plan plan;         // with the shares by which it was played
  Simulation simulation;
};

// All layers alike: every strategy with an MLP of its verb at every recompute level.
std::vector<SimulatedChoice> simulate_uniform(
    const Model& model,
    const Cluster& cluster,
    const Workload& workload,
    const SimulationOptions& options = {});

// The plan that the exact layer planner (layer_planner.h) finds among all attention strategies, MLP
// verbs and recompute levels.  What one more layer of a way costs is simulated; the plan is
// simulated whole, and planned again with less room while it does not fit.  None: no mix fits.
std::optional<SimulatedChoice> simulate_mix(
    const Model& model,
    const Cluster& cluster,
    const Workload& workload,
    const SimulationOptions& options = {});

// All of simulate_uniform and, where a mix fits, simulate_mix.
std::vector<SimulatedChoice> simulate_all(
    const Model& model,
    const Cluster& cluster,
    const Workload& workload,
    const SimulationOptions& options = {});

// Of samples: every layout at every recompute level, and the planned one with as little recomputed
// and in as few tiles as memory asks for, where that is something else and fits.
std::vector<SimulatedChoice> simulate_layouts(
    const Model& model,
    const Cluster& cluster,
    const Documents& samples,
    const SimulationOptions& options = {});

// The fastest that fits; none of them: nothing.
const SimulatedChoice* best(const std::vector<SimulatedChoice>& choices);

}  // namespace paradyse
