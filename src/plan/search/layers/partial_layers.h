// Layers put together part by part, without what another choice of the same parts beats.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "src/plan/search/layers/layer_planner.h"
#include "src/plan/search/layers/part_choices.h"
#include "src/plan/search/layers/part_cost.h"

namespace paradyse {

// A choice of one part, and what it costs.
struct PricedChoice {
  const PartChoice* choice = nullptr;
  PartCost cost = {};
};

// Ways to run a layer, as plan_layers() takes them, and the layer that each stands for.
struct LayerWays {
  std::vector<LayerCost> costs;
  std::vector<LayerChoice> layers;
  std::vector<double> busy;  // PartCost::busy
};

struct LayerRules {
  bool part_by_part = true;  // as in SavingChoices
  bool whole = true;
  bool mix_verbs = true;  // else all parts of a layer hold weights in one way
  // Bytes that enter a layer and do not wait on the host; null: what its first part reads.
  std::function<std::int64_t(const LayerChoice& layer)> entering = {};
};

// With the names of their layers, which those of layer_ways() lack: planners ask for many in each
// step and read none.
LayerWays named(LayerWays ways);

// [part][choice] -> the layers that none beats in seconds, saved and transient bytes.
// Where there are very many on the way, some of them, from the fastest to the smallest.
LayerWays layer_ways(
    const std::vector<std::vector<PricedChoice>>& choices, const LayerRules& rules);

}  // namespace paradyse
