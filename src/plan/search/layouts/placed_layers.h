// The ways to run a layer whose strategies and placements are given: what each part saves, and the
// tiles in which it is run.
#pragma once

#include <vector>

#include "src/plan/search/layers/partial_layers.h"

namespace paradyse {

struct PlacedLayer {
  const PlanningTask& task;
  Documents documents;  // of a group; as large ones lie beside it
  int domain = 1;       // ranks that weights are gathered from
  LayerChoice choice;
  SavingChoices savings;
  bool tiles = true;  // parts may run in them
};

// Those that no other beats, for plan_layers(): seconds of all ranks together.
LayerWays ways_of(const PlacedLayer& layer);
// All parts alike: one number of tiles, one level, alone or in a layer recomputed as a whole, what
// is saved here or on the host.
std::vector<LayerChoice> ways_alike(const PlacedLayer& layer);

}  // namespace paradyse
