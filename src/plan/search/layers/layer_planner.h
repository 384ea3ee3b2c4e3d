// Which of several ways each of a model's alike layers runs: the fastest choice that fits.
//
// Layers are alike, so a plan is a count for each way: minimise sum c_i t_i with sum c_i = L and
// sum c_i m_i + max over the ways in use of x_i <= capacity, where m is what a layer keeps and x
// what it needs for a while.  Numbers in, numbers out: no model, no ranks.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace paradyse {

// One way to run a layer.
struct LayerCost {
  std::string name;
  double seconds = 0;                // forward and backward
  std::int64_t saved_bytes = 0;      // kept from forward to backward
  std::int64_t transient_bytes = 0;  // on top, while the layer runs
};

struct LayerPlan {
  bool feasible = false;
  std::vector<std::int64_t> counts =
      {};  // layers of each way; infeasible: of the plan that needs least
  double seconds = 0;
  std::int64_t peak_bytes = 0;  // sum of saved bytes, and the largest transient in use
};

// The plan with the least seconds, within a part in 10^9; deterministic.  Branch and bound from the
// linear relaxation, for every bound on the transient.
// Throws std::invalid_argument for no ways, layers < 1, or a cost that is negative or no number.
LayerPlan plan_layers(
    std::span<const LayerCost> ways, std::int64_t layers, std::int64_t capacity_bytes);

// The heuristic of ParaDySe (arXiv 2511.13198): the ways that no other beats in both time and
// memory; each as far as it fits, the rest of the layers with one that needs less; the fastest of
// these.  Corrected: where no plan fits it says so instead of taking the one with least memory.
LayerPlan plan_layers_as_published(
    std::span<const LayerCost> ways, std::int64_t layers, std::int64_t capacity_bytes);

// All layers alike: the fastest way that fits.
LayerPlan plan_alike(
    std::span<const LayerCost> ways, std::int64_t layers, std::int64_t capacity_bytes);

// A planner of layers by name.
struct LayerPlannerRow {
  const char* name = "";
  const char* old_name = "";  // that is accepted, too
  const char* summary = "";   // one line for people
  std::function<LayerPlan(
      std::span<const LayerCost> ways, std::int64_t layers, std::int64_t capacity)>
      plan = {};
  // As its publication has it, batches are planned so that every document is split over all ranks,
  // and the program of before stays while it is nearly as fast.
  bool splits_all = false;
};
// "exact", "paradyse-heuristic".
std::span<const LayerPlannerRow> layer_planners();
// Throws std::invalid_argument, with the names there are, for another.
const LayerPlannerRow& layer_planner(const std::string& name);

// A rival of a plan and why it lost, for people.
struct RejectedWay {
  std::size_t way = 0;
  // Of all layers run so.
  double uniform_seconds = 0;
  std::int64_t uniform_peak_bytes = 0;
  // Of the best plan that runs at least one layer so; infinite where none fits.
  double with_one_seconds = 0;
  double more_seconds = 0;         // that one layer costs; below 0: a heuristic did not find it
  std::int64_t missing_bytes = 0;  // to run all layers so; below 0: left over
};
std::vector<RejectedWay> rejected_ways(
    std::span<const LayerCost> ways,
    std::int64_t layers,
    std::int64_t capacity_bytes,
    const LayerPlan& plan);

// The ways in the order of the layers: what needs most for a while comes first, when least is
// kept.  Then the peak of running them in turn is the lowest of all orders.
std::vector<std::size_t> layer_order(std::span<const LayerCost> ways, const LayerPlan& plan);

// The same order, layers in a row of one way together.
struct WayRun {
  std::size_t way = 0;
  std::int64_t layers = 0;
};
std::vector<WayRun> way_runs(std::span<const LayerCost> ways, const LayerPlan& plan);

}  // namespace paradyse
