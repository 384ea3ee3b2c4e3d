#include <algorithm>
#include <numeric>

#include "paradyse/plan/detail/index.h"
#include "paradyse/plan/plan.h"

namespace paradyse {

Plan uniform_plan(
    const Model& model,
    std::vector<std::int64_t> lengths,
    int ranks,
    const std::vector<LayerChoice>& layers) {
  Plan plan;
  plan.model_name = model.name;
  plan.model_sha256 = model.sha256;
  plan.layers = model.layers;
  plan.cluster_name = "local-" + std::to_string(ranks);
  plan.ranks = ranks;
  plan.weight_domain = ranks;
  plan.tiles = model.tiles();
  plan.lengths = std::move(lengths);
  plan.programs["all"] = runs_of(layers);
  plan.planner_name = "uniform";
  const bool one_rank = std::any_of(layers.begin(), layers.end(), [](const LayerChoice& layer) {
    return std::any_of(layer.begin(), layer.end(), [](const PartChoice& choice) {
      return strategy(kind_of(choice.part), choice.strategy).one_rank;
    });
  });
  PlanMicroBatch micro;
  std::vector<std::int64_t> order(plan.lengths.size());
  std::iota(order.begin(), order.end(), std::int64_t{0});
  if (!one_rank) {
    PlanGroup group{.ranks = {}, .documents = std::move(order), .program = "all", .predicted = {}};
    for (int r = 0; r < ranks; ++r) {
      group.ranks.push_back(r);
    }
    micro.groups.push_back(std::move(group));
  } else {
    for (int r = 0; r < ranks; ++r) {
      micro.groups.push_back({.ranks = {r}, .documents = {}, .program = "all", .predicted = {}});
    }
    const auto length = [&](std::int64_t d) { return plan.lengths[idx(d)]; };
    std::stable_sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
      return length(a) > length(b);
    });
    std::vector<std::int64_t> load(idx(ranks));
    for (const std::int64_t d : order) {
      const auto r = idx(std::min_element(load.begin(), load.end()) - load.begin());
      load[r] += length(d);
      micro.groups[r].documents.push_back(d);
    }
    for (PlanGroup& group : micro.groups) {
      std::sort(group.documents.begin(), group.documents.end());
    }
  }
  plan.micro_batches.push_back(std::move(micro));
  return plan;
}

}  // namespace paradyse
