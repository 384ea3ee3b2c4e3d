#include "src/plan/search/layers/layer_costs.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>
#include <optional>
#include <stdexcept>

#include "paradyse/plan/index.h"
#include "src/plan/search/layers/partial_layers.h"

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

// The strategies that a group of `ranks` may choose from: on one rank all compute alike, so whole
// documents need no second name.
bool suits(const Strategy& s, const PlanningTask& task, int ranks) {
  if (!task.attention.empty() && s.name != task.attention) {
    return false;
  }
  if (std::find(task.without.begin(), task.without.end(), s.name) != task.without.end()) {
    return false;
  }
  const bool named = !task.attention.empty();
  return ranks > 1 ? !s.one_rank : s.one_rank || (ranks == task.ranks && named);
}

// What is asked for of a strategy's options.
std::map<std::string, std::int64_t> options_of(const Strategy& s, const PlanningTask& task) {
  std::map<std::string, std::int64_t> asked;
  for (const Option& option : s.options) {
    if (const auto found = task.options.find(option.name); found != task.options.end()) {
      asked.insert(*found);
    }
  }
  return asked;
}

// Everything that its options may be: what is asked for, else the default, or, where `tried`, what
// the strategy says is worth a try.
std::vector<std::map<std::string, std::int64_t>> option_sets(
    const Strategy& s, const PlanningTask& task, const Task& group, bool tried) {
  std::vector<std::map<std::string, std::int64_t>> sets = {options_of(s, task)};
  for (const Option& option : s.options) {
    if (!tried || option.candidates == nullptr || task.options.contains(option.name)) {
      continue;
    }
    for (std::size_t i = 0, known = sets.size(); i < known; ++i) {
      for (const std::int64_t value : option.candidates(group)) {
        sets.push_back(sets[i]);
        sets.back()[option.name] = value;
      }
    }
  }
  return sets;
}

Verb verb(const PartChoice& choice) { return strategy(choice.part, choice.strategy).verb; }

// Seconds alone: bytes are counted.
PartCost operator*(PartCost cost, double factor) {
  cost.wall *= factor;
  cost.busy *= factor;
  cost.forward *= factor;
  return cost;
}

}  // namespace

PartCost operator+(const PartCost& attention, const PartCost& mlp) {
  return {
      .wall = attention.wall + mlp.wall,
      .busy = attention.busy + mlp.busy,
      .forward = attention.forward + mlp.forward,
      .saved_bytes = attention.saved_bytes + mlp.saved_bytes,
      .transient_bytes = std::max(attention.transient_bytes - mlp.saved_bytes, mlp.transient_bytes),
      .input_bytes = attention.input_bytes};
}

PartCost whole_layer_cost(PartCost layer) {
  const double more = layer.wall > 0 ? layer.forward / layer.wall : 0;
  layer.busy *= 1 + more;
  layer.wall += layer.forward;
  layer.transient_bytes += layer.saved_bytes - layer.input_bytes;
  layer.saved_bytes = layer.input_bytes;
  return layer;
}

std::shared_ptr<const TimeModel> seconds_of(const PlanningTask& task, int domain) {
  const bool whole = domain < task.domain();
  const auto& wanted = whole && task.by_work ? task.by_work : task.seconds;
  return wanted && (!whole || wanted->by_work()) ? wanted : closed_form(task.machine);
}

LayerCosts::LayerCosts(
    const PlanningTask& task, int ranks, int domain, const Correction& correction)
    : task_(task),
      correction_(correction),
      ranks_(ranks),
      domain_(domain),
      model_(task.model),
      ends_(with_layers(task.model, 0)),
      seconds_(seconds_of(task, domain)) {
  std::vector<Recompute> levels(std::begin(kRecomputeLevels), std::end(kRecomputeLevels));
  if (!task.training) {
    levels = {Recompute::none};  // nothing is saved, so nothing is made again
  } else if (!task.recompute.empty()) {
    const LayerRecompute asked = layer_recompute(task.recompute);
    levels = {asked.parts};
    part_by_part_ = !asked.layer;
    whole_ = asked.layer;
  }
  const auto group = [&](const std::string& part) {
    return Task{
        .part = model_.part(part),
        .documents = {.lengths = {}, .cuts = Cuts(idx(ranks))},
        .domain = domain};
  };
  const auto of_part = [&](const std::string& part) {
    std::vector<const Strategy*> found;
    const std::string& named = part == "mlp" ? task.mlp : task.attention;
    for (const Strategy& s : strategies(part)) {
      // a group that is not the whole weight domain gathers
      const bool fits = ranks == task.ranks || s.verb == Verb::gather;
      const bool wanted = part == "attention" ? suits(s, task, ranks)
                                              : named.empty() || &strategy(part, named) == &s;
      const PartChoice choice{.part = part, .strategy = s.name, .options = options_of(s, task)};
      if (fits && wanted && misfits(group(part), choice).empty()) {
        found.push_back(&s);
      }
    }
    return found;
  };
  const std::vector<const Strategy*> mlps = of_part("mlp");
  if (mlps.empty()) {
    return;
  }
  // The published planner has no such layers; it may be told to have no others.
  whole_ &= task.training && (!part_by_part_ || !layer_planner(task.planner).splits_all);
  const int places = task.offload && task.training ? 2 : 1;
  // Seconds that do not go by the work are the same whatever the options; the published planner has
  // none.
  const bool tried =
      task.try_options && seconds_->by_work() && !layer_planner(task.planner).splits_all;
  for (const std::string& part : layer_parts()) {
    for (const Strategy* s : of_part(part)) {
      for (const auto& options : option_sets(*s, task, group(part), tried)) {
        for (const Recompute level : levels) {
          PartChoice choice{
              .part = part, .strategy = s->name, .recompute = level, .options = options};
          if (levels.size() > 1 && canonical(choice).recompute != level) {
            continue;  // the same as another level
          }
          choice = canonical(choice);
          for (int host = 0; host < places; ++host) {
            choice.offload = host == 1;
            ways_.push_back(choice);
            tried_.push_back(options != options_of(*s, task));
          }
        }
      }
    }
  }
  for (const Strategy* attention : of_part("attention")) {
    for (const Recompute level : levels) {
      for (const Strategy* mlp : mlps) {
        LayerChoice layer = text_layer(attention->name, mlp->name);
        set_recompute(layer, {.parts = level, .layer = !part_by_part_});
        part_of(layer, "mlp") = canonical(part_of(layer, "mlp"));
        part_of(layer, "attention").options = options_of(*attention, task);
        for (const auto& options : option_sets(*mlp, task, group("mlp"), tried)) {
          part_of(layer, "mlp").options = options;
          (options == options_of(*mlp, task) ? uniform_ : tried_uniform_).push_back(layer);
        }
      }
    }
  }
}

PartCost LayerCosts::fold(std::size_t way, const std::vector<std::int64_t>& lengths) const {
  const bool whole = way == ways_.size();
  const Documents documents = packed(lengths, ranks_, model_.causal);
  Timeline parts;
  PartQuestion question{
      .ranks = ranks_, .length = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0})};
  if (whole) {
    parts = timeline(ends_, documents, domain_, {}, task_.training);
    question.part = "rest";
  } else {
    const PartChoice& choice = ways_[way];
    parts = {
        scheduled_part(task_of(model_, choice.part, documents, domain_), choice, task_.training)};
    question.part = choice.part;
    question.strategy = choice.strategy;
    question.recompute = choice.recompute;
  }

  PartCost cost;
  std::vector<PartWork> of_ranks;
  std::vector<Seat> seats;
  for (int r = 0; r < task_.ranks; ++r) {  // groups of the size, side by side
    const Seat& seat = seats.emplace_back(Seat{
        .group_rank = r % ranks_,
        .domain_rank = r % task_.domain(),
        .across_nodes = ranks_ > task_.on_a_node()});  // smaller ones lie inside
    PartWork& mine = of_ranks.emplace_back();
    for (const ScheduledPart& part : parts) {
      mine += part_work(part, seat, task_.precision);
    }
    if (whole) {
      const Footprint held = footprint(parts, seat, task_.precision, 0);
      cost.saved_bytes = std::max(cost.saved_bytes, held.saved_bytes);
      cost.transient_bytes = std::max(cost.transient_bytes, held.peak_bytes - held.saved_bytes);
    } else {
      const Program& program = parts.front().program();
      for (const Port& port : program.reads) {
        const std::int64_t read = bytes(program, port.value, seat, task_.precision);
        cost.input_bytes = std::max(cost.input_bytes, ways_[way].offload ? 0 : read);
      }
      const PartFootprint held = part_footprint(parts.front(), seat, task_.precision);
      cost.saved_bytes = std::max(cost.saved_bytes, held.saved_bytes);
      cost.transient_bytes = std::max(cost.transient_bytes, held.transient_bytes);
    }
  }
  question.work = together(of_ranks, task_.machine.cores);
  const PartSeconds seconds = seconds_->seconds(question);
  cost.wall = seconds.total() +
              copying_seconds(whole ? parts : linked(parts), seats, task_.precision, task_.machine);
  cost.forward = seconds.phases[idx(PartPhase::forward)];
  const double sharing =
      std::max(1.0, static_cast<double>(task_.ranks) / static_cast<double>(task_.machine.cores));
  cost.busy = cost.wall / sharing;
  return cost;
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
  Place place{.low = i, .high = i};
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

void LayerCosts::add_walls(
    std::size_t way, bool again, const std::vector<Place>& places, std::vector<double>& walls) {
  const auto wall = [&](const PartCost& cost) { return cost.wall + (again ? cost.forward : 0); };
  for (std::size_t d = 0; d < places.size(); ++d) {
    const Place& place = places[d];
    const double a = wall(at(way, place.low));
    walls[d] += a + place.share * (wall(at(way, place.high)) - a);
  }
}

std::vector<double> LayerCosts::predicted_walls(
    const LayerChoice& choice, const std::vector<Place>& places) {
  std::vector<double> walls(places.size());
  for (const std::size_t way : ways_of(choice)) {
    add_walls(way, made_again_whole(choice), places, walls);
  }
  return walls;
}

std::vector<double> LayerCosts::predicted_rest_walls(const std::vector<Place>& places) {
  std::vector<double> walls(places.size());
  add_walls(ways_.size(), /*again=*/false, places, walls);
  return walls;
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

LayerCosts::Ways LayerCosts::ways(std::int64_t length, AmongWays among, std::int64_t longest) {
  // Part after part; what another beats is in no way that counts.  The correction scales a whole
  // layer, so beside the same rest a part beats only those that are corrected like it; layers that
  // are corrected otherwise meet when all are corrected.
  const auto alike = [](const Partial& a, const Partial& b) { return a.factor == b.factor; };
  const auto otherwise = [](const Partial& a, const Partial& b) { return a.factor != b.factor; };
  std::vector<Partial> layers;
  for (const std::string& part : layer_parts()) {
    std::vector<Partial> parts;
    for (std::size_t w = 0; w < ways_.size(); ++w) {
      if (ways_[w].part == part && (among.tried || !tried_[w])) {
        const bool measured = part == "attention";
        parts.push_back(
            {.parts = {ways_[w]},
             .cost = read_off(w, length),
             .factor = measured ? correction_.factor(
                                      ways_[w].strategy, ranks_, longest > 0 ? longest : length)
                                : 1});
      }
    }
    if (task_.mix_parts) {  // else what is beaten may belong to the fastest layer
      parts = unbeaten(std::move(parts), alike);
    }
    if (layers.empty()) {
      layers = std::move(parts);
      continue;
    }
    std::vector<Partial> longer;
    for (const Partial& before : layers) {
      for (const Partial& next : parts) {
        if (!task_.mix_parts && verb(before.parts.front()) != verb(next.parts.front())) {
          continue;
        }
        Partial& one = longer.emplace_back(before);
        one.parts.push_back(next.parts.front());
        one.cost = before.cost + next.cost;
        one.factor = before.factor * next.factor;
      }
    }
    layers = std::move(longer);
  }
  if (whole_ && (among.whole || !part_by_part_)) {
    add_whole(layers, part_by_part_);
    layers = unbeaten(std::move(layers), alike);
  }
  for (Partial& one : layers) {
    one.cost = one.cost * one.factor;
  }
  Ways result;
  for (Partial& one : unbeaten(std::move(layers), otherwise)) {
    result.costs.push_back(
        {.name = name(one.parts),
         .seconds = one.cost.wall,
         .saved_bytes = one.cost.saved_bytes,
         .transient_bytes = std::max<std::int64_t>(0, one.cost.transient_bytes)});
    result.layers.push_back(std::move(one.parts));
    result.busy.push_back(one.cost.busy);
  }
  return result;
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

PartCost LayerCosts::predicted_layer(const LayerChoice& choice, std::int64_t length) {
  std::optional<PartCost> sum;
  for (const std::size_t way : ways_of(choice)) {
    const PartCost cost = read_off(way, length);
    sum = sum ? *sum + cost : cost;
  }
  const PartCost layer = sum.value_or(PartCost{});
  return made_again_whole(choice) ? whole_layer_cost(layer) : layer;
}

PartCost LayerCosts::predicted_layer_once(const LayerChoice& choice) {
  std::optional<PartCost> sum;
  for (const std::size_t way : ways_of(choice)) {
    sum = sum ? *sum + once(way) : once(way);
  }
  const PartCost layer = sum.value_or(PartCost{});
  return made_again_whole(choice) ? whole_layer_cost(layer) : layer;
}

PartCost LayerCosts::layer(const LayerChoice& choice, std::int64_t length, std::int64_t longest) {
  return predicted_layer(choice, length) *
         correction_.factor(
             part_of(choice, "attention").strategy, ranks_, longest > 0 ? longest : length);
}

PartCost LayerCosts::rest(std::int64_t length) {
  return predicted_rest(length) * correction_.common_factor();
}

}  // namespace paradyse
