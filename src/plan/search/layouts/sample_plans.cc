#include "src/plan/search/layouts/sample_plans.h"

#include <algorithm>
#include <utility>

#include "paradyse/plan/detail/index.h"
#include "paradyse/plan/layout_planner.h"
#include "src/plan/plan/group_timeline.h"
#include "src/plan/search/batch/micro_batches.h"
#include "src/plan/search/layers/layer_planner.h"
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

std::vector<LayerChoice> SamplePlans::layout(const SampleGroup& group) {
  if (layouts_.size() >= kLayoutsKept) {
    layouts_.clear();
  }
  const auto [known, fresh] = layouts_.try_emplace({group, costs().domain()});
  if (fresh) {
    const LayoutTask layout{
        .model = &task().model,
        .documents = documents(group),
        .domain = costs().domain(),
        .recompute = {.parts = savings_.levels.front(), .layer = !savings_.part_by_part},
        .seconds = {}};
    try {
      known->second = runs_of(choices(layout, plan_layouts(layout, task().model.layers)));
    } catch (...) {
      layouts_.erase(known);
      throw;
    }
  }
  return choices(known->second);
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
  const Model& model = task().model;
  const std::int64_t budget = this->budget(group.samples * group.rows, caps);
  const std::vector<LayerChoice> layouts = layout(group);
  Found found;
  const auto fits = [&](const std::vector<LayerChoice>& layers) {
    Fitting tried = priced(group, messages, layers);
    if (tried.bytes.total() > budget) {
      const bool less = found.least.total() == 0 || tried.bytes.total() < found.least.total();
      found.least = less ? tried.bytes : found.least;
      return false;
    }
    if (!found.fitting || tried.seconds < found.fitting->seconds) {
      found.fitting = std::move(tried);
    }
    return true;
  };
  if (fits(layouts) || layouts.empty()) {
    return found;
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
  std::vector<StackWays> stacks;
  LayerChoice all_parts;
  for (const Stack& stack : model.stacks()) {
    layer.choice = layouts[idx(stack.first + stack.layers / 2)];
    all_parts.insert(all_parts.end(), layer.choice.begin(), layer.choice.end());
    stacks.push_back({.layers = stack.layers, .ways = ways_of(layer)});
  }
  share_out(stacks);
  layer.choice = std::move(all_parts);
  // All layers alike, which is what there is to fall back on; then mixed.  What is not in a layer,
  // and moves, show when all is counted: the capacity of layers at which all fits is bisected.
  for (const LayerChoice& way : ways_alike(layer)) {
    fits(with(model, layouts, {&way}));
  }
  constexpr int kTries = 12;
  std::int64_t low = 0;
  std::int64_t high = 2 * budget;
  for (int i = 0; i < kTries && low < high; ++i) {
    const std::int64_t capacity = i == 0 ? budget - static_bytes() : low + (high - low) / 2;
    const Mixed chosen = mixed(stacks, capacity);
    const bool small_enough = fits(with(model, layouts, chosen.ways));
    if (small_enough) {
      low = capacity;
    } else if (!chosen.feasible) {
      break;  // nothing takes less
    } else {
      high = capacity;
    }
  }
  return found;
}

}  // namespace paradyse
