#include "python/bindings/bindings.h"
#include "src/plan/search/layers/layer_planner.h"
#include "src/plan/simulate/batch_question.h"

namespace paradyse::python {
namespace {

struct LayerMix {
  std::vector<std::pair<std::string, std::int64_t>> order;
  double seconds = 0;
  std::int64_t peak_bytes = 0;
};

LayerMix plan_layers_of(
    const std::vector<LayerCost>& candidates,
    std::int64_t layers,
    const Memory& capacity,
    const std::string& planner) {
  const std::int64_t bytes = bytes_of(capacity);
  const LayerPlan plan = layer_planner(planner).plan(candidates, layers, bytes);
  if (!plan.feasible) {
    throw NoPlan(
        "no plan fits: the one that needs the least memory needs " +
        std::to_string(plan.peak_bytes) + " bytes, " + std::to_string(plan.peak_bytes - bytes) +
        " more than " + std::to_string(bytes));
  }
  LayerMix mix{.order = {}, .seconds = plan.seconds, .peak_bytes = plan.peak_bytes};
  for (const WayRun& run : way_runs(candidates, plan)) {
    mix.order.emplace_back(candidates[run.way].name, run.layers);
  }
  return mix;
}

}  // namespace

void bind_layers(nb::module_& module) {
  nb::class_<LayerCost>(module, "LayerCost", "What one layer takes under one candidate.")
      .def(
          "__init__",
          [](LayerCost* self,
             std::string name,
             double seconds,
             std::int64_t saved_bytes,
             std::int64_t transient_bytes) {
            new (self) LayerCost{
                .name = std::move(name),
                .seconds = seconds,
                .saved_bytes = saved_bytes,
                .transient_bytes = transient_bytes};
          },
          "name"_a,
          "seconds"_a,
          "saved_bytes"_a,
          "transient_bytes"_a = 0)
      .def_ro("name", &LayerCost::name)
      .def_ro("seconds", &LayerCost::seconds, "Forward and backward.")
      .def_ro("saved_bytes", &LayerCost::saved_bytes, "Kept from forward to backward.")
      .def_ro("transient_bytes", &LayerCost::transient_bytes, "On top, while the layer runs.");

  nb::class_<LayerMix>(module, "LayerMix", "Which candidate each of a model's equal layers runs.")
      .def_ro("order", &LayerMix::order, "(candidate, layers in a row), from the first layer on.")
      .def_ro("seconds", &LayerMix::seconds)
      .def_ro("peak_bytes", &LayerMix::peak_bytes);

  module.def(
      "plan_layers",
      plan_layers_of,
      "candidates"_a,
      "layers"_a,
      "capacity"_a,
      nb::kw_only(),
      "planner"_a = "exact",
      WithoutGil(),
      "The fastest mix of candidates for this many layers whose memory is at most capacity (bytes, "
      "or as in '80GiB').  As `paradyse plan layers --costs`; raises NoPlan where none fits.");
}

}  // namespace paradyse::python
