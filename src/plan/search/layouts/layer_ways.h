// The ways to run a layer whose strategies and placements are given: what each part saves, and the
// tiles in which it is run.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "paradyse/plan/cost.h"
#include "paradyse/plan/op_traits.h"
#include "paradyse/plan/planning_task.h"
#include "paradyse/plan/strategy.h"
#include "src/plan/search/batch/plan_prediction.h"
#include "src/plan/search/layers/layer_planner.h"

namespace paradyse {

struct LayerWaysTask {
  const PlanningTask& task;
  const PlanPrediction& prediction;
  Documents documents;  // of a group; as large ones lie beside it
  int domain = 1;       // ranks that weights are gathered from
  LayerChoice layer;
  std::optional<LayerRecompute> recompute = {};  // none: any
  // Layers may be recomputed as a whole though it is not asked for: all groups that run beside this
  // one do so, or none is.
  bool whole = true;
  std::vector<std::int64_t> tiles = {1, 4, 16};  // that are looked at
};

// Costs for plan_layers(), seconds of all ranks together; and the layer of each.
struct LayerWays {
  std::vector<LayerCost> costs;
  std::vector<LayerChoice> layers;
};

// Those that no other beats in seconds, saved and transient bytes; where there are very many, some
// of them, from the fastest to the smallest.
LayerWays layer_ways(const LayerWaysTask& of);
// Seats of groups of so many ranks that fill the task's side by side.
std::vector<Seat> seats_side_by_side(int group, const PlanningTask& task);
// All parts alike: one number of tiles, one level, alone or in a layer made again as a whole, what
// is saved here or on the host.
std::vector<LayerChoice> ways_alike(const LayerWaysTask& of);

}  // namespace paradyse
