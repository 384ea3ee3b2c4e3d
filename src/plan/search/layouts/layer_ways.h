// The ways to run a layer whose strategies and placements are given: what each part saves, and the
// tiles in which it is run.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "paradyse/plan/cost.h"
#include "paradyse/plan/layer_planner.h"
#include "paradyse/plan/model.h"
#include "paradyse/plan/op_traits.h"
#include "paradyse/plan/strategy.h"
#include "src/plan/search/layouts/wall_seconds.h"

namespace paradyse {

struct LayerWaysTask {
  const Model* model = nullptr;
  Documents documents;
  LayerChoice layer;
  SecondsTask seconds;
  Precision precision;
  bool training = true;
  bool offload = false;                          // what parts save may wait in host memory
  std::optional<LayerRecompute> recompute = {};  // none: any
  std::vector<std::int64_t> tiles = {1, 4, 16};  // that are looked at
};

// Costs for plan_layers(), seconds of all ranks together; and the layer of each.
struct LayerWays {
  std::vector<LayerCost> costs;
  std::vector<LayerChoice> layers;
};

// Those that no other beats in seconds, saved and transient bytes; where there are very many, some
// of them, from the fastest to the smallest.
LayerWays layer_ways(const LayerWaysTask& task);
// All parts alike: one number of tiles, one level, alone or in a layer made again as a whole, what
// is saved here or on the host.
std::vector<LayerChoice> ways_alike(const LayerWaysTask& task);

}  // namespace paradyse
