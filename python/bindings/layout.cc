#include <algorithm>
#include <map>
#include <stdexcept>

#include <fmt/format.h>

#include "paradyse/plan/cluster.h"
#include "paradyse/plan/layout_planner.h"
#include "paradyse/plan/model_folder.h"
#include "python/bindings/bindings.h"
#include "src/plan/base/rank_limits.h"
#include "src/plan/plan/size_limits.h"
#include "src/plan/search/layouts/samples.h"
#include "src/plan/simulate/additive.h"

namespace paradyse::python {
namespace {

// What ranks send and take, of all layers.
struct LayoutCost {
  double elements_forward = 0;
  double elements_backward = 0;
  double seconds = 0;
};

// A plan, its costs, and those of other systems' layouts.
struct SampleLayout : Plan {
  LayoutCost cost = {};
  std::map<std::string, LayoutCost> rivals = {};
};

// Of a layer, or a mean over those of a period.
LayoutCost cost_of_layer(const LayoutPlan& plan) {
  return {plan.elements_forward, plan.elements_backward, plan.seconds};
}

SampleLayout plan_layout(
    const ModelFolder& folder,
    int ranks,
    const DimSizes& dims,
    std::int64_t batch,
    const std::vector<int>& mesh,
    const std::string& recompute,
    std::int64_t tiles,
    const Cluster* cluster,
    const std::string& dtype) {
  if (ranks < 1 || ranks > kMostLayoutRanks || batch < 1 || batch > kMostSamples || tiles < 1 ||
      tiles > kMostTiles) {
    throw std::invalid_argument(fmt::format(
        "ranks={}, batch={}, tiles={}: accepted are 1 to {} ranks, 1 to {} samples, and 1 to {} "
        "tiles",
        ranks,
        batch,
        tiles,
        kMostLayoutRanks,
        kMostSamples,
        kMostTiles));
  }
  if (std::ranges::any_of(mesh, [](int axis) { return axis < 1; })) {
    throw std::invalid_argument("mesh: each axis has at least 1 rank");
  }
  if (cluster != nullptr && ranks > cluster->ranks()) {
    throw std::invalid_argument(fmt::format(
        "ranks={}: the cluster {} has {}; give one of as many (Cluster.from_file(..., ranks={}))",
        ranks,
        cluster->name,
        cluster->ranks(),
        ranks));
  }
  const SimulationOptions how{.precision = precision_of(half_or_single(dtype))};
  Model model = without_dropout(folder.model);
  const DimSizes sizes = with_pairs(model, dims);
  if (const std::string why = more_than_counted(model, sizes, batch); !why.empty()) {
    throw std::invalid_argument(
        fmt::format("batch={}, dims: too large: {}; give smaller sizes", batch, why));
  }
  if (cluster != nullptr) {
    model = with_tiles(model, tiles_of(*cluster, model, how.precision.activation));
  }
  LayoutTask task{
      .model = &model,
      .documents = samples_of(model, sizes, batch, ranks, mesh),
      .recompute = layer_recompute(recompute),
      .tiles = tiles};
  if (cluster != nullptr) {
    task.objective = LayoutTask::Objective::seconds;
    task.seconds = part_seconds(*cluster, ranks, how);
  }
  SampleLayout layout{
      checked_plan(task, plan_layouts(task, model.layers), 0), cost_of_layer(plan_layouts(task))};
  layout.planner_seconds.reset();  // a clock says them
  LayoutTask of_rivals = task;     // they know one axis
  of_rivals.documents.mesh.clear();
  for (const LayoutRival& rival : layout_rivals(model)) {
    layout.rivals.emplace(rival.name, cost_of_layer(cost_of(of_rivals, rival)));
  }
  return layout;
}

}  // namespace

void bind_layout(nb::module_& module) {
  nb::class_<LayoutCost>(module, "LayoutCost", "Of a layer: what a rank sends, the mean.")
      .def_ro("elements_forward", &LayoutCost::elements_forward)
      .def_ro("elements_backward", &LayoutCost::elements_backward)
      .def_prop_ro(
          "seconds",
          [](const LayoutCost& self) {
            return self.seconds > 0 ? std::optional(self.seconds) : std::nullopt;
          },
          "None: no cluster was given.");

  nb::class_<SampleLayout, Plan>(
      module, "LayoutPlan", "A plan that says how each part's streams are sharded.")
      .def_ro("cost", &SampleLayout::cost)
      .def_ro("rivals", &SampleLayout::rivals, "The costs of other systems' layouts, by name.");

  module.def(
      "plan_layout",
      plan_layout,
      "model"_a,
      "ranks"_a,
      "dims"_a,
      nb::kw_only(),
      "batch"_a = 1,
      "mesh"_a = std::vector<int>{},
      "recompute"_a = "none",
      "tiles"_a = 1,
      "cluster"_a = nb::none(),
      "dtype"_a = "bfloat16",
      WithoutGil(),
      "How the tensors of a video or protein model are sharded, part by part, so that least is "
      "sent; with a cluster so that the layer takes least seconds.  dims: sizes of a sample by "
      "name, as in {'frames': 16, 'patches': 256}.  As `paradyse plan layout`.");
}

}  // namespace paradyse::python
