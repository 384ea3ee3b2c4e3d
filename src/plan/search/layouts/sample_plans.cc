#include "src/plan/search/layouts/sample_plans.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <utility>

#include "paradyse/plan/detail/costed_parts.h"
#include "paradyse/plan/detail/index.h"
#include "src/plan/plan/group_timeline.h"
#include "src/plan/search/batch/micro_batches.h"
#include "src/plan/search/layers/layer_planner.h"
#include "src/plan/search/layers/part_cost.h"
#include "src/plan/search/layouts/placed_layers.h"

namespace paradyse {
namespace {

// Placements of `layouts`, and of each layer what is recomputed, and in how many tiles, as its way
// says; the last way is that of all layers behind.
std::vector<LayerChoice> with(
    const Model& model,
    std::vector<LayerChoice> layouts,
    const std::vector<const LayerChoice*>& ways) {
  for (std::size_t layer = 0; layer < layouts.size(); ++layer) {
    const LayerChoice& way = *ways[std::min(layer, ways.size() - 1)];
    for (PartChoice& part : layouts[layer]) {
      const PartChoice& same = part_of(way, part.part);
      part.recompute = same.recompute;
      part.with_layer = same.with_layer;
      part.offload = same.offload;
      const auto tiles = same.options.find(kTilesOption);
      if (tiles != same.options.end() &&
          takes(model.part(part.part)->kind, part.strategy, kTilesOption)) {
        part.options.insert(*tiles);
      }
    }
  }
  return layouts;
}

// Layers that are alike, and what they take of the room for all.
struct StackWays {
  std::int64_t layers = 0;
  LayerWays ways;
  double share = 1;
};

// By what each saves where nothing is made again.
void share_out(std::vector<StackWays>& stacks) {
  double all = 0;
  for (StackWays& one : stacks) {
    std::int64_t most = 1;
    for (const LayerCost& cost : one.ways.costs) {
      most = std::max(most, cost.saved_bytes);
    }
    one.share = static_cast<double>(most * one.layers);
    all += one.share;
  }
  for (StackWays& one : stacks) {
    one.share /= all;
  }
}

// The fastest layers that fit into so much room; each stack is planned by itself.
struct Mixed {
  bool feasible = true;
  std::vector<const LayerChoice*> ways = {};
};
Mixed mixed(const std::vector<StackWays>& stacks, std::int64_t capacity) {
  Mixed found;
  for (const StackWays& one : stacks) {
    const auto own = stacks.size() == 1
                         ? capacity
                         : static_cast<std::int64_t>(one.share * static_cast<double>(capacity));
    const LayerPlan plan = plan_layers(one.ways.costs, one.layers, own);
    found.feasible &= plan.feasible;
    const std::vector<std::size_t> order = layer_order(one.ways.costs, plan);
    for (std::size_t layer = 0; layer < idx(one.layers); ++layer) {
      found.ways.push_back(&one.ways.layers[order.empty() ? 0 : order[layer]]);
    }
  }
  return found;
}

constexpr const char* kLayout = "layout";
constexpr std::size_t kLayoutsKept = 512;  // a hundred kilobytes each, or less

}  // namespace

Plan plan_of_samples(const PlanningTask& task, const std::vector<std::int64_t>& lengths) {
  Plan plan = empty_plan(task, lengths, "elements");
  plan.planner_name = kLayout;
  return plan;
}

std::string name_in(Plan& plan, const LayerRuns& program) {
  const auto same = std::ranges::find_if(
      plan.programs, [&](const auto& known) { return known.second == program; });
  if (same != plan.programs.end()) {
    return same->first;
  }
  const std::string number =
      plan.programs.empty() ? "" : " " + std::to_string(plan.programs.size() + 1);
  return plan.programs.emplace(kLayout + number, program).first->first;
}

SamplePlans::SamplePlans(PlanningTask asked)
    : Planning(std::move(asked)), savings_(saving_choices(task())) {}

Documents SamplePlans::documents(const SampleGroup& group) const {
  Documents packed = paradyse::packed(
      std::vector<std::int64_t>(idx(group.samples), group.rows), group.ranks, task().model.causal);
  packed.dims = group.dims;
  packed.mesh = group.ranks == task().ranks ? task().mesh : std::vector<int>();
  return packed;
}

LayoutTask SamplePlans::layout_task(const SampleGroup& group) {
  return {
      .model = &task().model,
      .documents = documents(group),
      .domain = costs().domain(),
      .recompute = {.parts = savings_.levels.front(), .layer = !savings_.part_by_part},
      .seconds = {}};
}

LayerRuns SamplePlans::fastest_layout(
    const SampleGroup& group, const LayerRuns& sends_least, Recompute level) {
  const std::shared_ptr<const TimeModel> by = seconds_of(task(), costs().domain());
  const std::vector<Seat> seats = seats_side_by_side(group.ranks, task());
  const std::vector<CostedPart> anyway = costed_parts(sends_least);
  LayoutTask layout = layout_task(group);
  layout.objective = LayoutTask::Objective::seconds;
  layout.recompute.parts = level;
  layout.seconds = [&](const ScheduledPart& part) {
    const CostedPart asked = costed_part(part);
    if (!asked.strategy.empty() &&
        strategy(task().model.part(asked.part)->kind, asked.strategy).verb == Verb::hold) {
      return std::numeric_limits<double>::infinity();  // weights are no matter of a layout
    }
    return by->compares(asked.part, asked.strategy) || std::ranges::count(anyway, asked) > 0
               ? seconds_together(task(), *by, {&part, 1}, seats).total()
               : std::numeric_limits<double>::infinity();
  };
  return runs_of(choices(layout, plan_layouts(layout, task().model.layers)));
}

std::vector<Recompute> SamplePlans::levels_by_seconds(const SampleGroup& group) const {
  if (group.ranks <= task().on_a_node()) {
    return {};
  }
  return task().memory_per_rank == 0 || savings_.levels.size() == 1  // nothing, or always the same
             ? std::vector{savings_.levels.front()}
             : std::vector{savings_.levels.front(), savings_.levels.back()};
}

const std::vector<LayerRuns>& SamplePlans::layouts(const SampleGroup& group) {
  if (layouts_.size() >= kLayoutsKept) {
    layouts_.clear();
  }
  const auto [known, fresh] = layouts_.try_emplace({group, costs().domain()});
  if (fresh) {
    try {
      const LayoutTask layout = layout_task(group);
      std::vector<LayerRuns>& found = known->second;
      found.push_back(runs_of(choices(layout, plan_layouts(layout, task().model.layers))));
      for (const Recompute level : levels_by_seconds(group)) {
        LayerRuns fastest = fastest_layout(group, found.front(), level);
        for (LayerRun& run : fastest) {
          set_recompute(run.choice, layout.recompute);
        }
        if (std::ranges::count(found, fastest) == 0) {
          found.push_back(std::move(fastest));
        }
      }
    } catch (...) {
      layouts_.erase(known);
      throw;
    }
  }
  return known->second;
}

SamplePlans::Fitting SamplePlans::priced(
    const SampleGroup& group, Messages messages, const std::vector<LayerChoice>& layers) {
  const GroupTask built{
      .layers = runs_of(layers),
      .lengths = std::vector<std::int64_t>(idx(group.samples), group.rows),
      .ranks = group.ranks,
      .shares = {},
      .mesh = documents(group).mesh,
      .dims = group.dims,
      .weight_domain = costs().domain(),
      .keep = task().training,
      .messages = messages,
      .tiles = task().model.tiles()};
  const std::vector<Seat> seats = seats_side_by_side(group.ranks, task());
  return {
      .program = built.layers,
      .bytes = prediction().fullest_rank(built, seats),
      .seconds = prediction().group_seconds(built, seats)};
}

const SamplePlans::Found& SamplePlans::best(
    const SampleGroup& group, Messages messages, Caps caps) {
  const std::tuple key(group, messages, caps);
  const auto found = known_.find(key);
  return found != known_.end() ? found->second
                               : known_.emplace(key, find(group, messages, caps)).first->second;
}

SamplePlans::Found SamplePlans::find(const SampleGroup& group, Messages messages, Caps caps) {
  std::vector<Fitting> all_saved;
  for (const LayerRuns& layers : layouts(group)) {
    all_saved.push_back(priced(group, messages, choices(layers)));
  }
  // within memory none is faster: what another takes already is not sought
  std::ranges::stable_sort(all_saved, {}, &Fitting::seconds);
  Found found;
  double alike = std::numeric_limits<double>::infinity();
  for (const Fitting& one : all_saved) {
    if (!found.fitting || one.seconds < found.fitting->seconds) {
      find_in(one, group, messages, caps, found, alike);
    }
  }
  return found;
}

void SamplePlans::find_in(
    const Fitting& all_saved,
    const SampleGroup& group,
    Messages messages,
    Caps caps,
    Found& found,
    double& alike) {
  const Model& model = task().model;
  const std::int64_t budget = this->budget(group.samples * group.rows, caps);
  const std::vector<LayerChoice> layouts = choices(all_saved.program);
  // The seconds of what fits.
  const auto add = [&](Fitting tried) -> std::optional<double> {
    if (tried.bytes.total() > budget) {
      const bool less = found.least.total() == 0 || tried.bytes.total() < found.least.total();
      found.least = less ? tried.bytes : found.least;
      return std::nullopt;
    }
    const double seconds = tried.seconds;
    if (!found.fitting || seconds < found.fitting->seconds) {
      found.fitting = std::move(tried);
    }
    return seconds;
  };
  const auto fits = [&](const std::vector<LayerChoice>& layers) {
    return add(priced(group, messages, layers));
  };
  if (add(all_saved) || layouts.empty()) {
    return;
  }
  PlacedLayer layer{
      .task = task(),
      .documents = documents(group),
      .domain = costs().domain(),
      .choice = {},
      .savings = savings_};
  const bool alone = group.ranks == task().ranks || weights_whole();
  layer.savings.whole &= !savings_.part_by_part || alone;
  layer.tiles = alone || task().precision.statistic <= task().precision.activation;
  std::vector<LayerChoice> of_stacks;
  for (const Stack& stack : model.stacks()) {
    of_stacks.push_back(layouts[idx(stack.first + stack.layers / 2)]);
    layer.choice.insert(layer.choice.end(), of_stacks.back().begin(), of_stacks.back().end());
  }
  // All layers alike, which is what there is to fall back on; then mixed, in the layouts where
  // that was fastest.
  const double before = alike;
  for (const LayerChoice& way : ways_alike(layer)) {
    alike = std::min(alike, fits(with(model, layouts, {&way})).value_or(alike));
  }
  if (alike == before && found.fitting) {
    return;
  }
  std::vector<StackWays> stacks;
  for (const Stack& stack : model.stacks()) {
    layer.choice = of_stacks[stacks.size()];
    stacks.push_back({.layers = stack.layers, .ways = ways_of(layer)});
  }
  share_out(stacks);
  // What is not in a layer, and moves, show when all is counted: the capacity of layers at which
  // all fits is bisected.
  constexpr int kTries = 12;
  std::int64_t low = 0;
  std::int64_t high = 2 * budget;
  for (int i = 0; i < kTries && low < high; ++i) {
    const std::int64_t capacity = i == 0 ? budget - static_bytes() : low + (high - low) / 2;
    const Mixed chosen = mixed(stacks, capacity);
    if (fits(with(model, layouts, chosen.ways))) {
      low = capacity;
    } else if (!chosen.feasible) {
      break;  // nothing takes less
    } else {
      high = capacity;
    }
  }
}

}  // namespace paradyse
