#include "src/plan/search/layers/partial_layers.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

#include "paradyse/plan/index.h"

namespace paradyse {
namespace {

// What is kept of the layers that are half put together: looking at all takes the square of it.
constexpr std::size_t kMostKept = 300;

Verb verb_of(const Partial& one) {
  const PartChoice& first = one.parts.front();
  return strategy(kind_of(first.part), first.strategy).verb;
}

// a is nowhere worse.
bool beats(const PartCost& a, const PartCost& b) {
  return a.wall <= b.wall && a.saved_bytes <= b.saved_bytes &&
         a.transient_bytes <= b.transient_bytes;
}

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

// Of layers that are corrected alike: always the fastest, and those that save least, alone and with
// what a layer needs for a while.
std::vector<Partial> thinned_alike(std::vector<Partial> all) {
  if (all.size() <= kMostKept) {
    return all;
  }
  std::ranges::stable_sort(all, {}, [](const Partial& one) { return one.cost.wall; });
  const auto of_one = [](const Partial& one) {
    return std::pair(one.cost.saved_bytes + one.cost.transient_bytes, one.cost.wall);
  };
  const auto of_many = [](const Partial& one) {
    return std::pair(one.cost.saved_bytes, one.cost.transient_bytes);
  };
  std::vector<Partial> kept = {
      *std::ranges::min_element(all, {}, of_one), *std::ranges::min_element(all, {}, of_many)};
  for (std::size_t i = 0; i + 2 < kMostKept; ++i) {
    kept.push_back(all[i * all.size() / (kMostKept - 2)]);
  }
  return kept;
}

std::vector<Partial> thinned(std::vector<Partial> all, const LayerRules& rules) {
  if (all.size() <= kMostKept) {
    return all;
  }
  std::map<std::pair<double, Verb>, std::vector<Partial>> comparable;
  for (Partial& one : all) {
    const Verb verb = rules.mix_verbs ? Verb{} : verb_of(one);
    comparable[{one.factor, verb}].push_back(std::move(one));
  }
  all.clear();
  for (auto& [of, alike] : comparable) {
    std::ranges::move(thinned_alike(std::move(alike)), std::back_inserter(all));
  }
  return all;
}

// Beside each layer, or in its stead, the same recomputed as a whole.
void add_whole(std::vector<Partial>& layers, const LayerRules& rules) {
  std::vector<Partial> whole;
  whole.reserve(layers.size());
  for (const Partial& one : layers) {
    Partial& again = whole.emplace_back(one);
    if (rules.entering) {
      again.cost.input_bytes = rules.entering(one.parts);
    }
    again.cost = whole_layer_cost(again.cost);
    for (PartChoice& part : again.parts) {
      part.with_layer = true;
    }
  }
  if (!rules.part_by_part) {
    layers.clear();
  }
  layers.insert(layers.end(), whole.begin(), whole.end());
}

}  // namespace

LayerWays layer_ways(std::vector<std::vector<Partial>> choices, const LayerRules& rules) {
  // What another beats is in no layer that counts.  The correction scales a whole layer, so beside
  // the same rest a choice beats only those that are corrected like it, and that may stand where it
  // stands; layers that are corrected otherwise meet when all are corrected.
  const auto alike = [&](const Partial& a, const Partial& b) {
    return a.factor == b.factor && (rules.mix_verbs || verb_of(a) == verb_of(b));
  };
  std::vector<Partial> layers;
  for (std::vector<Partial>& part : choices) {
    part = unbeaten(std::move(part), alike);
    if (&part == &choices.front()) {
      layers = std::move(part);
      continue;
    }
    std::vector<Partial> longer;
    for (const Partial& before : layers) {
      for (const Partial& next : part) {
        if (rules.mix_verbs || verb_of(before) == verb_of(next)) {
          Partial& one = longer.emplace_back(before);
          one.parts.push_back(next.parts.front());
          one.cost = before.cost + next.cost;
          one.factor = before.factor * next.factor;
        }
      }
    }
    layers = thinned(unbeaten(std::move(longer), alike), rules);
  }
  if (rules.whole) {
    add_whole(layers, rules);
    layers = thinned(unbeaten(std::move(layers), alike), rules);
  }
  for (Partial& one : layers) {
    one.cost = one.cost * one.factor;
  }
  const auto otherwise = [](const Partial& a, const Partial& b) { return a.factor != b.factor; };
  LayerWays ways;
  for (Partial& one : unbeaten(std::move(layers), otherwise)) {
    ways.costs.push_back(
        {.name = name(one.parts),
         .seconds = one.cost.wall,
         .saved_bytes = one.cost.saved_bytes,
         .transient_bytes = std::max<std::int64_t>(0, one.cost.transient_bytes)});
    ways.layers.push_back(std::move(one.parts));
    ways.busy.push_back(one.cost.busy);
  }
  return ways;
}

}  // namespace paradyse
