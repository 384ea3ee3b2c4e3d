#include "src/plan/search/layers/layer_costs.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <map>
#include <optional>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

#include "paradyse/plan/detail/index.h"

namespace paradyse {
namespace {

// Rungs of the ladder: a quarter of a doubling apart.
constexpr double kRungsPerDoubling = 4;
constexpr int kRungs = 240;  // 2^60 tokens

std::int64_t rung(std::size_t i) {
  static const std::vector<std::int64_t> all = [] {
    std::vector<std::int64_t> rungs;
    rungs.reserve(kRungs);
    for (int r = 0; r < kRungs; ++r) {
      rungs.push_back(static_cast<std::int64_t>(std::llround(std::exp2(r / kRungsPerDoubling))));
    }
    return rungs;
  }();
  return all.at(i);
}

// Whether a group of `ranks` may run a strategy of a kind: on one rank all compute alike, so whole
// documents need no second name.
bool suits(const Strategy& s, const std::string& named, const PlanningTask& task, int ranks) {
  if (!named.empty() && &strategy(s.kind, named) != &s) {
    return false;
  }
  if (std::ranges::find(task.without, s.name) != task.without.end()) {
    return false;
  }
  // a group that is not the whole weight domain gathers
  if (ranks != task.ranks && s.verb != Verb::gather) {
    return false;
  }
  if (std::ranges::none_of(strategies(s.kind), &Strategy::one_rank)) {
    return true;
  }
  return ranks > 1 ? !s.one_rank : s.one_rank || (ranks == task.ranks && !named.empty());
}

const std::string& named_of(const Part& part, const PlanningTask& task) {
  static const std::string any;
  return attends(part.kind) ? task.attention : part.kind == "mlp" ? task.mlp : any;
}

}  // namespace

LayerCosts::LayerCosts(
    const PlanningTask& task, int ranks, int domain, const Correction& correction)
    : task_(task),
      correction_(correction),
      ranks_(ranks),
      domain_(domain),
      model_(task.model),
      ends_(with_layers(task.model, 0)),
      seconds_(seconds_of(task, domain)),
      savings_(saving_choices(task)) {
  // The published planner has no layers that are recomputed as a whole; it may be told to have no
  // others.
  savings_.whole &= !savings_.part_by_part || !layer_planner(task.planner).splits_all;
  const std::vector<Stack> stacks = model_.stacks();
  if (stacks.empty()) {
    return;
  }
  for (const Stack& stack : stacks) {
    for (const std::shared_ptr<const Part>& part : stack.parts) {
      std::vector<PartKind>& kinds = kinds_[part->name];
      const auto known = std::ranges::find(kinds, part, &PartKind::part);
      PartKind& kind = known == kinds.end() ? kinds.emplace_back(PartKind{part, 0}) : *known;
      kind.share += static_cast<double>(stack.layers) / static_cast<double>(model_.layers);
    }
  }
  std::vector<std::vector<Candidate>> all;
  for (const std::shared_ptr<const Part>& part : stacks.front().parts) {
    all.push_back(candidates(part));
    if (all.back().empty()) {
      return;
    }
    parts_.push_back(part->name);
  }
  for (const std::vector<Candidate>& part : all) {
    for (const Candidate& one : part) {
      for (PartChoice& way : with_savings(one.choice, savings_)) {
        costed_.push_back(costed_part(way));
        ways_.push_back(std::move(way));
        tried_.push_back(one.tried);
      }
    }
  }
  add_uniform(all);
}

std::vector<LayerCosts::Candidate> LayerCosts::candidates(
    const std::shared_ptr<const Part>& part) const {
  // Seconds that do not go by the work are the same whatever the options; the published planner has
  // none.
  const bool tries =
      task_.try_options && seconds_->by_work() && !layer_planner(task_.planner).splits_all;
  const Task group{
      .part = part, .documents = {.lengths = {}, .cuts = Cuts(idx(ranks_))}, .domain = domain_};
  std::vector<Candidate> found;
  for (const Strategy& s : strategies(part->kind)) {
    const OptionValues asked = options_of(s, task_.options);
    PartChoice choice{.part = part->name, .strategy = s.name, .options = asked};
    if (!suits(s, named_of(*part, task_), task_, ranks_) || !misfits(group, choice).empty()) {
      continue;
    }
    for (OptionValues& options :
         option_sets(s, asked, group, [&](const Option&) { return tries; })) {
      const bool tried = options != asked;
      choice.options = std::move(options);
      found.push_back({.choice = choice, .tried = tried});
    }
  }
  return found;
}

// The first part by what is asked for alone, beside the others by all that is worth a try.
void LayerCosts::add_uniform(const std::vector<std::vector<Candidate>>& parts) {
  struct Uniform {
    LayerChoice layer;
    bool tried = false;
  };
  for (const Candidate& first : parts.front()) {
    for (const Recompute level : first.tried ? std::vector<Recompute>() : savings_.levels) {
      std::vector<Uniform> layers = {{.layer = {first.choice}}};
      for (std::size_t p = 1; p < parts.size(); ++p) {
        std::vector<Uniform> longer;
        for (const Uniform& before : layers) {
          for (const Candidate& next : parts[p]) {
            longer.push_back({.layer = before.layer, .tried = before.tried || next.tried});
            longer.back().layer.push_back(next.choice);
          }
        }
        layers = std::move(longer);
      }
      for (Uniform& one : layers) {
        set_recompute(one.layer, {.parts = level, .layer = !savings_.part_by_part});
        std::ranges::transform(one.layer, one.layer.begin(), canonical);
        (one.tried ? tried_uniform_ : uniform_).push_back(std::move(one.layer));
      }
    }
  }
}

PartCost LayerCosts::fold(std::size_t way, const std::vector<std::int64_t>& lengths) const {
  const Documents documents = packed(lengths, ranks_, model_.causal);
  if (way == ways_.size()) {
    return rest_cost(task_, *seconds_, timeline(ends_, documents, domain_, {}, task_.training));
  }
  // Seconds are the mean of the layers', bytes of the fullest.
  const PartChoice& choice = ways_[way];
  std::optional<PartCost> mean;
  for (const auto& [kind, share] : kinds_.at(choice.part)) {
    const ScheduledPart part =
        scheduled_part(task_of(model_, kind, documents, domain_), choice, task_.training);
    const PartCost cost = part_cost(task_, *seconds_, part, choice) * share;
    if (!mean) {
      mean = cost;
      continue;
    }
    mean->wall += cost.wall;
    mean->busy += cost.busy;
    mean->forward += cost.forward;
    mean->saved_bytes = std::max(mean->saved_bytes, cost.saved_bytes);
    mean->transient_bytes = std::max(mean->transient_bytes, cost.transient_bytes);
    mean->input_bytes = std::max(mean->input_bytes, cost.input_bytes);
  }
  return mean.value_or(PartCost{});
}

const PartCost& LayerCosts::at(std::size_t way, std::size_t i) {
  folded_.resize(std::max(folded_.size(), way + 1));
  std::vector<std::optional<PartCost>>& rungs = folded_[way];
  rungs.resize(std::max(rungs.size(), i + 1));
  std::optional<PartCost>& known = rungs[i];
  if (!known) {
    known = fold(way, {rung(i)});
  }
  return *known;
}

const PartCost& LayerCosts::once(std::size_t way) {
  once_.resize(std::max(once_.size(), way + 1));
  std::optional<PartCost>& known = once_[way];
  if (!known) {
    known = at(way, 0);
    if (seconds_->by_work()) {
      const PartCost two = fold(way, {1, 1});
      known->wall = std::max(0.0, 2 * known->wall - two.wall);
      known->busy = std::max(0.0, 2 * known->busy - two.busy);
      known->forward = std::max(0.0, 2 * known->forward - two.forward);
    }
  }
  return *known;
}

LayerCosts::Place LayerCosts::place_of(std::int64_t length) {
  auto i = static_cast<std::size_t>(std::floor(
      std::log2(static_cast<double>(std::max<std::int64_t>(length, 1))) * kRungsPerDoubling));
  while (rung(i) > length && i > 0) {
    --i;
  }
  while (i > 0 && rung(i - 1) == rung(i)) {  // short ones are rungs several times
    --i;
  }
  Place place{.length = length, .low = i, .high = i};
  const std::int64_t low = rung(i);
  if (low < length) {
    while (rung(place.high) <= low) {
      ++place.high;
    }
    const auto between = static_cast<double>(rung(place.high) - low);
    place.share = static_cast<double>(length - low) / between;
    // of a cost that grows as the square, the most that any does
    place.most_above = place.share * (1 - place.share) * std::pow(between / double(length), 2);
  }
  return place;
}

std::vector<LayerCosts::Place> LayerCosts::places(const std::vector<std::int64_t>& lengths) {
  std::vector<Place> places;
  places.reserve(lengths.size());
  std::ranges::transform(lengths, std::back_inserter(places), place_of);
  return places;
}

std::vector<double> LayerCosts::walls_of(
    std::size_t way, bool again, const std::vector<Place>& places) {
  const auto wall = [&](const PartCost& cost) { return cost.wall + (again ? cost.forward : 0); };
  std::map<int, double> factors;  // by log2_bucket(): what corrections tell apart
  std::vector<double> walls;
  walls.reserve(places.size());
  for (const Place& place : places) {
    const auto [known, fresh] = factors.try_emplace(log2_bucket(place.length));
    if (fresh) {
      known->second = factor(way, place.length);
    }
    const double a = wall(at(way, place.low));
    walls.push_back(known->second * (a + place.share * (wall(at(way, place.high)) - a)));
  }
  return walls;
}

// Layers share ways: those of each are read off once.
std::vector<std::vector<double>> LayerCosts::walls(
    std::span<const LayerChoice* const> layers, const std::vector<Place>& places) {
  std::map<std::pair<std::size_t, bool>, std::vector<double>> known;
  std::vector<std::vector<double>> all;
  all.reserve(layers.size());
  for (const LayerChoice* layer : layers) {
    std::vector<double>& walls = all.emplace_back(places.size());
    const bool again = made_again_whole(*layer);
    for (const std::size_t way : ways_of(*layer)) {
      const auto [its, fresh] = known.try_emplace({way, again});
      if (fresh) {
        its->second = walls_of(way, again, places);
      }
      std::ranges::transform(walls, its->second, walls.begin(), std::plus<>());
    }
  }
  return all;
}

std::vector<double> LayerCosts::rest_walls(const std::vector<Place>& places) {
  return walls_of(ways_.size(), /*again=*/false, places);
}

PartCost LayerCosts::read_off(std::size_t way, std::int64_t length) {
  const Place at_length = place_of(length);
  if (at_length.low == at_length.high) {
    return at(way, at_length.low);
  }
  const PartCost a = at(way, at_length.low);
  const PartCost& b = at(way, at_length.high);
  const double share = at_length.share;
  const auto between = [&](auto x, auto y) {
    return static_cast<decltype(x)>(
        static_cast<double>(x) + share * (static_cast<double>(y) - static_cast<double>(x)));
  };
  return {
      .wall = between(a.wall, b.wall),
      .busy = between(a.busy, b.busy),
      .forward = between(a.forward, b.forward),
      .saved_bytes = between(a.saved_bytes, b.saved_bytes),
      .transient_bytes = between(a.transient_bytes, b.transient_bytes),
      .input_bytes = between(a.input_bytes, b.input_bytes)};
}

bool LayerCosts::tries(PartChoice part) const {
  part.with_layer = false;
  const auto way = std::ranges::find(ways_, canonical(part));
  return way != ways_.end() && tried_[idx(way - ways_.begin())];
}

LayerWays LayerCosts::ways(std::int64_t length, AmongWays among, std::int64_t longest) {
  std::vector<std::vector<PricedChoice>> choices(parts_.size());
  for (std::size_t w = 0; w < ways_.size(); ++w) {
    if (among.tried || !tried_[w]) {
      const auto part = std::ranges::find(parts_, ways_[w].part);
      choices[idx(part - parts_.begin())].push_back(
          {.choice = &ways_[w],
           .cost = read_off(w, length) * factor(w, longest > 0 ? longest : length)});
    }
  }
  return layer_ways(
      choices,
      {.part_by_part = savings_.part_by_part,
       .whole = savings_.whole && (among.whole || !savings_.part_by_part),
       .mix_verbs = task_.mix_parts});
}

const std::vector<std::size_t>& LayerCosts::ways_of(const LayerChoice& choice) {
  if (!last_ || last_->layer != choice) {
    last_ = {.layer = choice, .ways = {}};
    for (PartChoice part : choice) {
      part.with_layer = false;
      const auto way = std::find(ways_.begin(), ways_.end(), canonical(part));
      if (way == ways_.end()) {
        last_.reset();
        throw std::invalid_argument(
            "layer costs: '" + name(choice) + "' is not among the candidates");
      }
      last_->ways.push_back(idx(way - ways_.begin()));
    }
  }
  return last_->ways;
}

double LayerCosts::factor(std::size_t way, std::int64_t longest) const {
  return way == ways_.size() ? rest_factor(longest)
                             : correction_.factor(costed_[way], ranks_, longest);
}

double LayerCosts::rest_factor(std::int64_t longest) const {
  return correction_.factor({.part = kRest, .strategy = {}}, ranks_, longest);
}

std::vector<double> LayerCosts::factors(const LayerChoice& choice, std::int64_t longest) {
  std::vector<double> all;
  for (const std::size_t way : ways_of(choice)) {
    all.push_back(factor(way, longest));
  }
  return all;
}

template <typename CostOf>
std::vector<PartCost> LayerCosts::parts_by(const LayerChoice& choice, CostOf cost_of) {
  std::vector<PartCost> parts;
  PartCost sum;
  for (const std::size_t way : ways_of(choice)) {
    parts.push_back(cost_of(way));
    sum.wall += parts.back().wall;
    sum.forward += parts.back().forward;
  }
  if (made_again_whole(choice) && sum.wall > 0) {
    for (PartCost& part : parts) {
      part.wall += part.forward;
      part.busy *= 1 + sum.forward / sum.wall;
    }
  }
  return parts;
}

std::vector<PartCost> LayerCosts::predicted_parts(const LayerChoice& choice, std::int64_t length) {
  return parts_by(choice, [&](std::size_t way) { return read_off(way, length); });
}

std::vector<PartCost> LayerCosts::predicted_parts_once(const LayerChoice& choice) {
  return parts_by(choice, [&](std::size_t way) { return once(way); });
}

PartCost LayerCosts::layer(const LayerChoice& choice, std::int64_t length, std::int64_t longest) {
  std::optional<PartCost> sum;
  for (const std::size_t way : ways_of(choice)) {
    const PartCost cost = read_off(way, length) * factor(way, longest > 0 ? longest : length);
    sum = sum ? *sum + cost : cost;
  }
  const PartCost layer = sum.value_or(PartCost{});
  return made_again_whole(choice) ? whole_layer_cost(layer) : layer;
}

PartCost LayerCosts::rest(std::int64_t length, std::int64_t longest) {
  return predicted_rest(length) * rest_factor(longest > 0 ? longest : length);
}

}  // namespace paradyse
