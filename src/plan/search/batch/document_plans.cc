#include "src/plan/search/batch/document_plans.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "paradyse/plan/detail/index.h"
#include "src/plan/base/bytes_text.h"
#include "src/plan/base/largest.h"
#include "src/plan/base/number_text.h"
#include "src/plan/search/batch/micro_batches.h"

namespace paradyse {
namespace {

constexpr std::int64_t kMostTokens = std::int64_t{1} << 26;  // whose squares are counted

// The layer planner adds up bytes part by part; the exact fold finds what parts share and overlap.
// So often it is asked again, with what the fold found left over or missing; at last for the plan
// that needs least.
constexpr int kAttempts = 8;

// With the layers in the order of the lowest peak.
LayerRuns in_order(const LayerWays& ways, const LayerPlan& plan) {
  std::vector<LayerChoice> layers;
  for (const std::size_t way : layer_order(ways.costs, plan)) {
    layers.push_back(ways.layers[way]);
  }
  return runs_of(layers);
}

PlanningTask checked(PlanningTask task) {
  if (!task.attention.empty()) {
    strategy("attention", task.attention);  // refuses unknown names
  }
  for (const std::string& name : task.without) {
    strategy("attention", name);
  }
  // What is asked for by name has to suit all ranks together, or one.
  const Model& model = task.model;
  for (const auto& [part, name] :
       {std::pair<std::string, std::string>{"attention", task.attention}, {"mlp", task.mlp}}) {
    if (name.empty()) {
      continue;
    }
    const Strategy& named = strategy(part, name);
    for (const Option& option : named.options) {
      const auto asked = task.options.find(option.name);
      if (asked == task.options.end()) {
        continue;
      }
      const Task all{
          .part = model.part(part),
          .documents = {.lengths = {}, .cuts = Cuts(idx(task.ranks))},
          .domain = task.ranks};
      const PartChoice choice{.part = part, .strategy = named.name, .options = {*asked}};
      if (const std::vector<Misfit> wrong = misfits(all, choice); !wrong.empty()) {
        throw std::invalid_argument(part + ": " + wrong.front().why);
      }
    }
  }
  return task;
}

}  // namespace

DocumentPlans::DocumentPlans(PlanningTask asked)
    : Planning(checked(std::move(asked))),
      layer_planner_(&paradyse::layer_planner(task().planner)) {
  const bool together = !costs().of(task().ranks).uniform().empty();
  if (!layer_planner_->splits_all || !together) {
    whole_ = costs().of(1).uniform();
  }
  if (layer_planner_->splits_all && task().gather_weights == "step") {
    throw std::invalid_argument(
        "planner: the layer planner '" + task().planner +
        "' gathers weights in each micro-batch, as published; with weights gathered once a step "
        "take the layer planner 'exact'");
  }
  if (!together && whole_.empty()) {
    throw std::invalid_argument(
        "planner: no strategy is left with attention '" + task().attention + "' and mlp '" +
        task().mlp + "' on " + std::to_string(task().ranks) +
        " ranks; tensor-parallel (hold) and streamed (pass) weights need all ranks together, and "
        "streamed ones are not gathered once a step (parallel.gather_weights)");
  }
}

DocumentPlans::Choices DocumentPlans::choices(
    std::int64_t length, int ranks, Caps caps, AmongWays among, std::int64_t longest) {
  LayerCosts& costs = this->costs().of(ranks);
  Choices found{
      .ways = costs.ways(length, among, longest),
      .static_bytes = static_bytes(),
      .rest = costs.rest(length)};
  for (LayerCost& way : found.ways.costs) {
    way.transient_bytes = std::max(way.transient_bytes, found.rest.transient_bytes);
  }
  found.capacity_bytes = budget(length, caps) - static_bytes() - found.rest.saved_bytes;
  return found;
}

LayerPlan DocumentPlans::layers_of(const LayerWays& ways, std::int64_t capacity) const {
  const auto plan = task().mix ? layer_planner_->plan : plan_alike;
  return plan(ways.costs, task().model.layers, capacity);
}

std::vector<RejectedWay> DocumentPlans::rejected(std::int64_t length, int ranks) {
  const Choices known = choices(length, ranks);
  // The plan that was found is not always the one that the sums give: it was counted exactly.
  LayerPlan used = layers_of(known.ways, known.capacity_bytes);
  if (const std::optional<DocumentPlan> found = best(length, ranks)) {
    std::ranges::fill(used.counts, 0);
    used.seconds = 0;
    for (const LayerRun& run : found->program) {
      const auto way = std::ranges::find(known.ways.layers, run.choice);
      if (way != known.ways.layers.end()) {
        used.counts[idx(way - known.ways.layers.begin())] += run.layers;
      }
      used.seconds +=
          static_cast<double>(run.layers) * costs().of(ranks).layer(run.choice, length).wall;
    }
  }
  std::vector<RejectedWay> ways =
      rejected_ways(named(known.ways).costs, task().model.layers, known.capacity_bytes, used);
  for (RejectedWay& way : ways) {
    way.uniform_seconds += known.rest.wall;
    way.uniform_peak_bytes += known.static_bytes + known.rest.saved_bytes;
    way.with_one_seconds += known.rest.wall;
  }
  return ways;
}

std::optional<DocumentPlans::Fitting> DocumentPlans::program_for(
    std::int64_t length,
    int ranks,
    const std::vector<std::vector<std::int64_t>>& groups,
    Caps caps,
    AmongWays among) {
  if (task().model.layers == 0) {
    Fitting nothing{.program = {}, .bytes = prediction().bytes_of({}, groups, ranks)};
    return fits(nothing.bytes.total(), length, caps) ? std::optional(nothing) : std::nullopt;
  }
  std::int64_t longest = 0;
  for (const std::vector<std::int64_t>& group : groups) {
    longest = std::max(longest, longest_of(group));
  }
  const auto fastest = [&](AmongWays ways) {
    return program_among(choices(length, ranks, caps, ways, longest), length, ranks, groups, caps);
  };
  std::optional<Fitting> best = fastest(among);
  // More ways are a finer search for what fits exactly, not always a better one.
  const auto tries = [&](const Fitting& fitting) {
    return std::ranges::any_of(fitting.program, [&](const LayerRun& run) {
      return std::ranges::any_of(
          run.choice, [&](const PartChoice& part) { return costs().of(ranks).tries(part); });
    });
  };
  if (among.tried && task().memory_per_rank > 0 && (!best || tries(*best))) {
    among.tried = false;
    std::optional<Fitting> plain = fastest(among);
    if (plain && (!best || plain->seconds <= best->seconds)) {
      best = std::move(plain);
    }
  }
  return best;
}

std::optional<DocumentPlans::Fitting> DocumentPlans::program_among(
    const Choices& known,
    std::int64_t length,
    int ranks,
    const std::vector<std::vector<std::int64_t>>& groups,
    Caps caps) {
  const LayerWays& ways = known.ways;
  if (ways.costs.empty()) {
    return std::nullopt;
  }
  std::optional<Fitting> best;
  std::int64_t capacity = known.capacity_bytes;
  std::int64_t step = 1;  // what overshoots again is held shorter each time
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    const bool last = attempt + 1 == kAttempts;
    const LayerPlan plan = layers_of(ways, last && !best ? 0 : capacity);
    if (best && (!plan.feasible || plan.seconds >= best->seconds)) {
      break;
    }
    Fitting fitting{.program = in_order(ways, plan), .bytes = {}, .seconds = plan.seconds};
    fitting.bytes = prediction().bytes_of(fitting.program, groups, ranks);
    const std::int64_t left = budget(length, caps) - fitting.bytes.total();
    if (left >= 0) {
      best = std::move(fitting);
    }
    if (!plan.feasible || left == 0 || task().memory_per_rank == 0) {
      break;  // that was the plan that needs least, or all there is to find
    }
    capacity += left > 0 ? left : step * left;
    step *= left > 0 ? 1 : 2;
  }
  return best;
}

std::optional<DocumentPlan> DocumentPlans::find(std::int64_t length, int ranks, Caps caps) {
  std::optional<Fitting> fitting = program_for(length, ranks, {{length}}, caps);
  if (!fitting) {
    return std::nullopt;
  }
  LayerCosts& costs = this->costs().of(ranks);
  const auto priced = [&](Fitting found) {
    DocumentPlan plan{
        .program = std::move(found.program),
        .seconds = costs.rest(length).wall,
        .bytes = found.bytes};
    for (const LayerRun& run : plan.program) {
      plan.seconds += static_cast<double>(run.layers) * costs.layer(run.choice, length).wall;
    }
    return plan;
  };
  DocumentPlan plan = priced(*std::move(fitting));
  if (layer_planner_->splits_all && task().smoothing && !last_.empty()) {
    DocumentPlan same =
        priced({.program = last_, .bytes = prediction().bytes_of(last_, {{length}}, ranks)});
    if (fits(same.bytes.total(), length, caps) && same.seconds <= 1.05 * plan.seconds) {
      plan = std::move(same);
    }
  }
  last_ = plan.program;
  return plan;
}

std::optional<DocumentPlan> DocumentPlans::best(std::int64_t length, int ranks, Caps caps) {
  forget_what_is_out_of_date();
  if (costs().of(ranks).uniform().empty()) {
    return std::nullopt;
  }
  const Key key{length, ranks, caps, weights_whole()};
  const auto found = plans_.find(key);
  return found != plans_.end() ? found->second
                               : plans_.emplace(key, find(length, ranks, caps)).first->second;
}

DocumentPlans::Estimate DocumentPlans::estimate(
    const LayerChoice& layer, std::int64_t length, int ranks, std::int64_t longest) {
  LayerCosts& costs = this->costs().of(ranks);
  const PartCost one = costs.layer(layer, length, longest);
  const PartCost rest = costs.rest(length, longest);
  const std::int64_t layers = task().model.layers;
  const auto L = static_cast<double>(layers);
  Estimate e{
      .wall = L * one.wall + rest.wall,
      .busy = L * one.busy + rest.busy,
      .saved = layers * one.saved_bytes + rest.saved_bytes,
      .peak = 0};
  e.peak = static_bytes() + e.saved +
           std::max(layers > 0 ? one.transient_bytes : 0, rest.transient_bytes);
  return e;
}

DocumentPlans::Estimate DocumentPlans::once(const LayerChoice& layer, int ranks) {
  LayerCosts& costs = this->costs().of(ranks);
  const std::vector<PartCost> parts = costs.predicted_parts_once(layer);
  const std::vector<double> factors = costs.factors(layer, 1);
  const PartCost rest = costs.predicted_rest_once() * costs.rest_factor(1);
  Estimate sum{.wall = rest.wall, .busy = rest.busy};
  for (std::size_t p = 0; p < parts.size(); ++p) {
    const double times = static_cast<double>(task().model.layers) * factors[p];
    sum.wall += times * parts[p].wall;
    sum.busy += times * parts[p].busy;
  }
  return sum;
}

std::vector<std::vector<double>> DocumentPlans::walls(
    const std::vector<Room>& layers, const std::vector<std::int64_t>& lengths, int ranks) {
  LayerCosts& costs = this->costs().of(ranks);
  const std::vector<LayerCosts::Place> places = LayerCosts::places(lengths);
  const std::vector<double> rest = costs.rest_walls(places);
  const auto count = static_cast<double>(task().model.layers);
  std::vector<const LayerChoice*> choices;
  choices.reserve(layers.size());
  for (const Room& one : layers) {
    choices.push_back(&one.layer);
  }
  std::vector<std::vector<double>> all = costs.walls(choices, places);
  for (std::vector<double>& walls : all) {
    for (std::size_t d = 0; d < walls.size(); ++d) {
      walls[d] = count * walls[d] + rest[d];
    }
  }
  return all;
}

const std::vector<DocumentPlans::Room>& DocumentPlans::rooms(int ranks, Caps caps) {
  if (rooms_held_to_ != held_to()) {
    rooms_held_to_ = held_to();
    rooms_.clear();
  }
  const auto [found, fresh] = rooms_.try_emplace({ranks, caps, weights_whole()});
  if (fresh) {
    LayerCosts& costs = this->costs().of(ranks);
    for (const std::vector<LayerChoice>* layers : {&costs.uniform(), &costs.tried()}) {
      for (const LayerChoice& layer : *layers) {
        if (const std::int64_t tokens = longest(layer, ranks, caps); tokens > 0) {
          found->second.push_back({.layer = layer, .longest = tokens});
        }
      }
    }
  }
  return found->second;
}

std::int64_t DocumentPlans::longest(const LayerChoice& layer, int ranks, Caps caps) {
  return largest_that(
      [&](std::int64_t length) { return fits(estimate(layer, length, ranks).peak, length, caps); },
      kMostTokens);
}

// On all ranks together, or whole on one of them.
bool DocumentPlans::can_run(std::int64_t length) {
  if (best(length, task().ranks)) {
    return true;
  }
  std::vector<std::vector<std::int64_t>> groups(idx(task().ranks));
  groups.front() = {length};
  return !whole_.empty() && program_for(length, 1, groups);
}

std::optional<std::int64_t> DocumentPlans::longest() {
  if (task().memory_per_rank == 0) {
    return std::nullopt;
  }
  return largest_that([&](std::int64_t length) { return can_run(length); }, kMostTokens);
}

DocumentPlans::Shortage DocumentPlans::shortage(std::int64_t length) {
  Shortage least{.budget = budget(length)};
  const auto consider = [&](int ranks) {
    LayerRuns program;
    if (task().model.layers > 0) {
      const Choices known = choices(length, ranks);
      if (known.ways.costs.empty()) {
        return;
      }
      const LayerPlan plan = plan_layers(known.ways.costs, task().model.layers, 0);
      program = in_order(known.ways, plan);
    }
    std::vector<std::vector<std::int64_t>> documents(idx(task().ranks / ranks));
    documents.front() = {length};
    const PredictedBytes bytes = prediction().bytes_of(program, documents, ranks);
    if (least.bytes.total() == 0 || bytes.total() < least.bytes.total()) {
      least.bytes = bytes;
      least.program = name(program);
    }
  };
  if (!costs().of(task().ranks).uniform().empty()) {
    consider(task().ranks);
  }
  if (!whole_.empty()) {
    consider(1);
  }
  return least;
}

std::string DocumentPlans::refusal(std::int64_t length) {
  const Shortage least = shortage(length);
  const std::int64_t fits = longest().value_or(0);
  return "no plan fits: a document of " + std::to_string(length) + " tokens needs " +
         bytes_text(least.bytes.total()) + " on a rank" +
         (least.program.empty() ? " (" : " even with " + least.program + " (") +
         bytes_text(least.bytes.static_bytes) + " for parameters, gradients and optimizer, " +
         bytes_text(least.bytes.saved) + " saved for the backward pass, " +
         bytes_text(least.bytes.transient) + " while it computes), " +
         std::to_string(least.missing()) + " bytes more than the " + bytes_text(least.budget) +
         " available for planning in the budget of " + bytes_text(task().memory_per_rank) +
         (fits > 0 ? "; the longest document that fits has " + counted(fits, "token")
                   : std::string("; no document fits, however short")) +
         ". Give more memory or more ranks, or set data.max_tokens";
}

std::vector<OptionRow> DocumentPlans::table(const std::vector<std::int64_t>& lengths) {
  std::vector<OptionRow> rows;
  const auto add = [&](const LayerChoice& layer, std::int64_t n, int ranks) {
    const Estimate e = estimate(layer, n, ranks);
    rows.push_back(
        {.length = n,
         .option = name(layer),
         .seconds = ranks == task().ranks ? e.wall : e.busy,
         .peak_bytes = e.peak,
         .fits = fits(e.peak, n)});
  };
  for (const std::int64_t n : lengths) {
    for (const LayerChoice& layer : costs().of(task().ranks).uniform()) {
      add(layer, n, task().ranks);
    }
    if (task().ranks > 1) {
      for (const LayerChoice& layer : whole_) {
        add(layer, n, 1);
      }
    }
  }
  return rows;
}

}  // namespace paradyse
