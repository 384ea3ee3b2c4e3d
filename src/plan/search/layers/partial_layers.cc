#include "src/plan/search/layers/partial_layers.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

#include "paradyse/plan/detail/index.h"

namespace paradyse {
namespace {

// What is kept of the layers that are half put together: looking at all takes the square of it.
constexpr std::size_t kMostKept = 300;

// Some parts of a layer: no list of choices, since planners of a run put many together in each
// step.
struct Partial {
  PartCost cost = {};
  Verb verb = {};          // of its first part, where verbs are not mixed
  bool whole = false;      // recomputed as a whole
  std::int32_t last = -1;  // of Chains
};

// The choices of every Partial, of which each goes on from another.
class Chains {
 public:
  std::int32_t longer(std::int32_t before, const PartChoice& last) {
    links_.push_back({.choice = &last, .before = before});
    return static_cast<std::int32_t>(links_.size()) - 1;
  }
  [[nodiscard]] const PartChoice& last_of(const Partial& one) const {
    return *links_[idx(one.last)].choice;
  }
  [[nodiscard]] LayerChoice layer(const Partial& one) const {
    LayerChoice parts;
    for (std::int32_t at = one.last; at >= 0; at = links_[idx(at)].before) {
      parts.push_back(*links_[idx(at)].choice);
      parts.back().with_layer = one.whole;
    }
    std::ranges::reverse(parts);
    return parts;
  }

 private:
  struct Link {
    const PartChoice* choice;
    std::int32_t before;
  };
  std::vector<Link> links_;
};

Partial alone(const PricedChoice& one, const LayerRules& rules, Chains& chains) {
  const PartChoice& choice = *one.choice;
  return {
      .cost = one.cost,
      .verb = rules.mix_verbs ? Verb{} : strategy(kind_of(choice.part), choice.strategy).verb,
      .last = chains.longer(-1, choice)};
}

// a is nowhere worse.
bool beats(const PartCost& a, const PartCost& b) {
  return a.wall <= b.wall && a.saved_bytes <= b.saved_bytes &&
         a.transient_bytes <= b.transient_bytes;
}

// Leaves out what another beats that may stand where it stands, in the order of the rest.
std::vector<Partial> unbeaten(const std::vector<Partial>& all) {
  const auto loses = [](const Partial& a, const Partial& b) {
    return a.verb == b.verb && beats(b.cost, a.cost);
  };
  std::vector<Partial> kept;
  for (const Partial& one : all) {
    if (std::ranges::none_of(kept, [&](const Partial& k) { return loses(one, k); })) {
      std::erase_if(kept, [&](const Partial& k) { return loses(k, one); });
      kept.push_back(one);
    }
  }
  return kept;
}

// Always the fastest, and those that save least, alone and with what a layer needs for a while.
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

std::vector<Partial> thinned(std::vector<Partial> all) {
  if (all.size() <= kMostKept) {
    return all;
  }
  std::map<Verb, std::vector<Partial>> comparable;
  for (const Partial& one : all) {
    comparable[one.verb].push_back(one);
  }
  all.clear();
  for (auto& [of, alike] : comparable) {
    std::ranges::copy(thinned_alike(std::move(alike)), std::back_inserter(all));
  }
  return all;
}

// Beside each layer, or in its stead, the same recomputed as a whole.
void add_whole(std::vector<Partial>& layers, const LayerRules& rules, const Chains& chains) {
  std::vector<Partial> whole = layers;
  for (Partial& again : whole) {
    if (rules.entering) {
      again.cost.input_bytes = rules.entering(chains.layer(again));
    }
    again.cost = whole_layer_cost(again.cost);
    again.whole = true;
  }
  if (!rules.part_by_part) {
    layers.clear();
  }
  layers.insert(layers.end(), whole.begin(), whole.end());
}

}  // namespace

LayerWays named(LayerWays ways) {
  for (std::size_t i = 0; i < ways.layers.size(); ++i) {
    ways.costs[i].name = name(ways.layers[i]);
  }
  return ways;
}

LayerWays layer_ways(
    const std::vector<std::vector<PricedChoice>>& choices, const LayerRules& rules) {
  Chains chains;
  std::vector<Partial> layers;
  for (const std::vector<PricedChoice>& its : choices) {
    std::vector<Partial> part;
    part.reserve(its.size());
    for (const PricedChoice& one : its) {
      part.push_back(alone(one, rules, chains));
    }
    part = unbeaten(part);  // what another beats is in no layer that counts
    if (&its == &choices.front()) {
      layers = std::move(part);
      continue;
    }
    std::vector<Partial> longer;
    longer.reserve(layers.size() * part.size());
    for (const Partial& before : layers) {
      for (const Partial& next : part) {
        if (before.verb == next.verb) {
          longer.push_back(
              {.cost = before.cost + next.cost,
               .verb = before.verb,
               .last = chains.longer(before.last, chains.last_of(next))});
        }
      }
    }
    layers = thinned(unbeaten(longer));
  }
  if (rules.whole) {
    add_whole(layers, rules, chains);
    layers = thinned(unbeaten(layers));
  }
  for (Partial& one : layers) {
    one.verb = {};  // whole layers stand for one another
  }
  LayerWays ways;
  for (const Partial& one : unbeaten(layers)) {
    LayerChoice layer = chains.layer(one);
    ways.costs.push_back(
        {.name = {},
         .seconds = one.cost.wall,
         .saved_bytes = one.cost.saved_bytes,
         .transient_bytes = std::max<std::int64_t>(0, one.cost.transient_bytes)});
    ways.layers.push_back(std::move(layer));
    ways.busy.push_back(one.cost.busy);
  }
  return ways;
}

}  // namespace paradyse
