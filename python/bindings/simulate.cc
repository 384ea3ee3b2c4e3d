#include "paradyse/plan/simulate.h"

#include <algorithm>

#include "paradyse/plan/detail/index.h"
#include "paradyse/plan/model_folder.h"
#include "python/bindings/bindings.h"

namespace paradyse::python {
namespace {

Simulation simulated(
    const Plan& plan,
    const ModelFolder& folder,
    const Cluster& cluster,
    const std::string& dtype,
    bool training,
    bool additive,
    bool even) {
  SimulationOptions how{
      .precision = precision_of(half_or_single(dtype)), .training = training, .additive = additive};
  Model model = without_dropout(folder.model);
  model = with_tiles(model, tiles_of(cluster, model, how.precision.activation));
  how.proportional_tokens = !even;
  return simulate(plan, model, cluster, how);
}

// A property: one number of each rank.
template <typename Number>
void of_ranks(
    nb::class_<Simulation>& type,
    const char* name,
    Number (*number)(const SimulatedRank& rank),
    const char* doc) {
  type.def_prop_ro(
      name,
      [number](const Simulation& self) {
        std::vector<Number> numbers(self.ranks.size());
        std::ranges::transform(self.ranks, numbers.begin(), number);
        return array_of(std::move(numbers));
      },
      kOwned,
      doc);
}

}  // namespace

void bind_simulate(nb::module_& module) {
  nb::class_<SimulatedMicroBatch>(module, "SimulatedMicroBatch")
      .def_ro("seconds", &SimulatedMicroBatch::seconds)
      .def_prop_ro(
          "group_seconds",
          [](const SimulatedMicroBatch& self) { return array_of(self.group_seconds); },
          kOwned,
          "Of each group of the plan, without what it waited for others.");

  nb::class_<Simulation> simulation(module, "Simulation", "Simulation of a plan on a cluster.");
  simulation.def_ro("seconds", &Simulation::seconds, "Of the iteration.")
      .def_ro("gradient_seconds", &Simulation::gradient_seconds, "Of gradients at its end.")
      .def_ro("optimizer_seconds", &Simulation::optimizer_seconds)
      .def_ro("tokens", &Simulation::tokens)
      .def_prop_ro("tokens_per_second", &Simulation::tokens_per_second)
      .def_prop_ro("model_utilisation", &Simulation::model_utilisation, "MFU.")
      .def_prop_ro("bytes_sent", &Simulation::bytes_sent, "By all ranks.")
      .def_prop_ro("fits", &Simulation::fits, "Every rank has room.")
      .def_ro("micro_batches", &Simulation::micro_batches);
  using Rank = SimulatedRank;
  of_ranks<double>(
      simulation,
      "compute_seconds",
      [](const Rank& rank) { return rank.compute_seconds; },
      "Of each rank.");
  of_ranks<double>(
      simulation,
      "exposed_seconds",
      [](const Rank& rank) { return rank.exposed_seconds; },
      "Of each rank: it waits for communication.");
  of_ranks<double>(
      simulation,
      "idle_seconds",
      [](const Rank& rank) { return rank.idle_seconds; },
      "Of each rank: it waits for other ranks.");
  of_ranks<std::int64_t>(
      simulation,
      "peak_bytes",
      [](const Rank& rank) { return rank.peak_bytes(); },
      "Of each rank.");
  of_ranks<std::int64_t>(
      simulation,
      "missing_bytes",
      [](const Rank& rank) { return rank.missing_bytes; },
      "Of each rank, to fit; 0: it fits.");

  module.def(
      "simulate",
      simulated,
      "plan"_a,
      "model"_a,
      "cluster"_a,
      nb::kw_only(),
      "dtype"_a = "bfloat16",
      "training"_a = true,
      "additive"_a = false,
      "even"_a = false,
      WithoutGil(),
      "Simulates a plan on a cluster, with waiting and overlap.  additive: nothing overlaps, as "
      "planners count.  As `paradyse simulate --plan`.");
}

}  // namespace paradyse::python
