// Layers put together part by part, without what another choice of the same parts beats.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "src/plan/search/layers/layer_costs.h"

namespace paradyse {

// a is nowhere worse.
inline bool beats(const PartCost& a, const PartCost& b) {
  return a.wall <= b.wall && a.saved_bytes <= b.saved_bytes &&
         a.transient_bytes <= b.transient_bytes;
}

// Some parts of a layer, what they cost as predicted, and the factor by which measurements correct
// the layer.
struct Partial {
  LayerChoice parts = {};
  PartCost cost = {};
  double factor = 1;
};

// Leaves out what another beats, in the order of the rest.  `comparable`: of which two it counts.
template <typename Comparable>
std::vector<Partial> unbeaten(std::vector<Partial> all, Comparable comparable) {
  const auto loses = [&](const Partial& a, const Partial& b) {
    return comparable(a, b) && beats(b.cost, a.cost);
  };
  std::vector<Partial> kept;
  for (Partial& one : all) {
    if (std::ranges::none_of(kept, [&](const Partial& k) { return loses(one, k); })) {
      std::erase_if(kept, [&](const Partial& k) { return loses(k, one); });
      kept.push_back(std::move(one));
    }
  }
  return kept;
}

// Beside each layer, or in its stead, the same made again as a whole.
inline void add_whole(std::vector<Partial>& layers, bool beside) {
  std::vector<Partial> whole;
  for (const Partial& one : layers) {
    Partial& again = whole.emplace_back(one);
    again.cost = whole_layer_cost(one.cost);
    for (PartChoice& part : again.parts) {
      part.with_layer = true;
    }
  }
  if (!beside) {
    layers.clear();
  }
  layers.insert(layers.end(), whole.begin(), whole.end());
}

}  // namespace paradyse
