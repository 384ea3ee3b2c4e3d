#include "paradyse/plan/sample_planner.h"

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <utility>

#include "paradyse/plan/group_timeline.h"
#include "paradyse/plan/index.h"
#include "paradyse/plan/layer_planner.h"
#include "paradyse/plan/layout_planner.h"
#include "src/plan/base/bytes_text.h"
#include "src/plan/layout/dims_text.h"
#include "src/plan/search/layouts/layer_ways.h"
#include "src/plan/search/layouts/wall_seconds.h"

namespace paradyse {
namespace {

PredictedBytes bytes_of(const PlanGroup& group) {
  return group.predicted.bytes.value_or(PredictedBytes{});
}

const PlanMicroBatch& fullest(const Plan& plan) {
  return *std::ranges::max_element(plan.micro_batches, {}, [](const PlanMicroBatch& micro) {
    return bytes_of(micro.groups.front()).total();
  });
}

PredictedBytes most_bytes(const Plan& plan) { return bytes_of(fullest(plan).groups.front()); }

// Plans remembered.
constexpr std::size_t kPlansKept = 1024;

// Samples of a batch that have the same sizes.
struct OneSize {
  DimSizes dims;
  std::vector<std::int64_t> samples = {};  // by number in the batch
  std::vector<std::int64_t> lengths = {};  // of these
};

// What is the same for all sizes, of a plan of one.
Plan empty_copy(Plan plan, const std::vector<std::int64_t>& lengths) {
  plan.lengths = lengths;
  plan.dims.clear();
  plan.programs.clear();
  plan.micro_batches.clear();
  plan.predicted = Predicted();
  plan.predicted.seconds = 0;
  return plan;
}

// Puts a plan of the samples of one size behind what there is.
void add(Plan of_one, const OneSize& size, Plan& whole) {
  const LayerRuns& program = of_one.programs.begin()->second;
  auto same = std::ranges::find_if(
      whole.programs, [&](const auto& known) { return known.second == program; });
  if (same == whole.programs.end()) {
    const std::string number =
        whole.programs.empty() ? "" : " " + std::to_string(whole.programs.size() + 1);
    same = whole.programs.emplace(of_one.programs.begin()->first + number, program).first;
  }
  for (PlanMicroBatch& micro : of_one.micro_batches) {
    PlanGroup& group = micro.groups.front();
    group.program = same->first;
    group.dims = size.dims;
    for (std::int64_t& document : group.documents) {
      document = size.samples[idx(document)];
    }
    whole.micro_batches.push_back(std::move(micro));
  }
  whole.predicted.seconds =
      whole.predicted.seconds.value_or(0) + of_one.predicted.seconds.value_or(0);
}

double seconds_of(const Plan& plan) { return plan.predicted.seconds.value_or(0); }

// Placements of `layouts`, and of each layer what is made again, and in how many tiles, as the way
// of its number says; without numbers as the first way.
std::vector<LayerChoice> with(
    const Model& model,
    std::vector<LayerChoice> layouts,
    const std::vector<LayerChoice>& ways,
    const std::vector<std::size_t>& numbers) {
  for (std::size_t layer = 0; layer < layouts.size(); ++layer) {
    const LayerChoice& way = ways[numbers.empty() ? 0 : numbers[layer]];
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

}  // namespace

SamplePlanner::SamplePlanner(PlanningTask task)
    : task_(std::move(task)),
      model_(task_.model),
      recompute_(
          task_.recompute.empty() ? std::nullopt
                                  : std::optional(layer_recompute(task_.recompute))) {}

Plan SamplePlanner::alike(
    const std::vector<std::int64_t>& lengths,
    const DimSizes& dims,
    std::size_t at_once,
    LayerRecompute level) const {
  LayoutTask task{
      .model = &model_,
      .documents =
          packed(std::vector<std::int64_t>(at_once, lengths.front()), task_.ranks, model_.causal),
      .recompute = level,
      .seconds = {}};
  task.documents.dims = dims;
  task.documents.mesh = task_.mesh;
  Plan plan = checked_plan(task, plan_layouts(task, model_.layers), 0);
  const PlanGroup group = plan.micro_batches.front().groups.front();
  plan.lengths = lengths;
  plan.micro_batches.clear();
  for (std::size_t first = 0; first < lengths.size(); first += at_once) {
    PlanGroup& samples =
        plan.micro_batches.emplace_back(PlanMicroBatch{.groups = {group}, .predicted = {}})
            .groups.front();
    samples.documents.clear();
    for (std::size_t i = first; i < std::min(lengths.size(), first + at_once); ++i) {
      samples.documents.push_back(static_cast<std::int64_t>(i));
    }
  }
  predict(plan);
  return plan;
}

std::optional<Plan> SamplePlanner::within(
    std::int64_t budget, const Plan& alike, std::size_t at_once, PredictedBytes& least) const {
  const PredictedBytes whole = most_bytes(alike);
  if (whole.total() <= budget) {
    return alike;
  }
  const std::vector<LayerChoice> layouts = choices(alike.programs.begin()->second);
  LayerWaysTask ways_task{
      .model = &model_,
      .documents = packed(
          std::vector<std::int64_t>(at_once, alike.lengths.front()), task_.ranks, model_.causal),
      .layer = layouts[layouts.size() / 2],
      .seconds = seconds_task(),
      .precision = task_.precision,
      .training = task_.training,
      .offload = task_.offload,
      .recompute = recompute_};
  ways_task.documents.dims = alike.dims;
  ways_task.documents.mesh = task_.mesh;
  const LayerWays ways = layer_ways(ways_task);
  std::optional<Plan> best;
  const auto fits = [&](const std::vector<LayerChoice>& layers) {
    Plan tried = alike;
    tried.programs.begin()->second = runs_of(layers);
    predict(tried);
    const PredictedBytes bytes = most_bytes(tried);
    if (bytes.total() > budget) {
      least = least.total() == 0 || bytes.total() < least.total() ? bytes : least;
      return false;
    }
    if (!best || seconds_of(tried) < seconds_of(*best)) {
      best = std::move(tried);
    }
    return true;
  };
  // All layers alike, which is what there is to fall back on; then mixed.  What is not in a layer,
  // and moves, show when all is counted: the capacity of layers at which all fits is bisected.
  for (const LayerChoice& way : ways_alike(ways_task)) {
    fits(with(model_, layouts, {way}, {}));
  }
  constexpr int kTries = 12;
  std::int64_t low = 0;
  std::int64_t high = 2 * budget;
  for (int i = 0; i < kTries && low < high; ++i) {
    const std::int64_t capacity = i == 0 ? budget - whole.static_bytes : low + (high - low) / 2;
    const LayerPlan chosen = plan_layers(ways.costs, model_.layers, capacity);
    const bool small_enough =
        fits(with(model_, layouts, ways.layers, layer_order(ways.costs, chosen)));
    if (small_enough) {
      low = capacity;
    } else if (!chosen.feasible) {
      break;  // nothing takes less
    } else {
      high = capacity;
    }
  }
  return best;
}

SecondsTask SamplePlanner::seconds_task() const {
  return {
      .ranks = task_.ranks,
      .machine = task_.machine,
      .precision = task_.precision,
      .seconds = task_.seconds};
}

void SamplePlanner::predict(Plan& plan) const {
  double total = 0;
  for (PlanMicroBatch& micro : plan.micro_batches) {
    PlanGroup& group = micro.groups.front();
    const GroupTimeline built = group_timeline(plan, group, model_, task_.training);
    group.predicted.bytes = fullest_rank(
        built.parts,
        built.seats,
        model_,
        task_.ranks,
        task_.precision,
        task_.precision.static_bytes(task_.training));
    const double wall = wall_seconds(built.parts, seconds_task());
    group.predicted.seconds = wall;
    micro.predicted.seconds = wall;
    total += wall;
  }
  plan.predicted.seconds = total;
}

BatchPlanner::Answer SamplePlanner::plan(const BatchSizes& batch) {
  if (batch.lengths.empty()) {
    return {.plan = std::nullopt, .why_not = "there are no samples"};
  }
  std::vector<OneSize> sizes;  // as they come
  for (std::size_t i = 0; i < batch.lengths.size(); ++i) {
    const DimSizes& dims = batch.dims.empty() ? task_.dims : batch.dims[i];
    auto found = std::ranges::find(sizes, dims, &OneSize::dims);
    if (found == sizes.end()) {
      found = sizes.insert(found, {.dims = dims});
    }
    found->samples.push_back(static_cast<std::int64_t>(i));
    found->lengths.push_back(batch.lengths[i]);
  }
  const auto begin = std::chrono::steady_clock::now();
  Plan whole;
  std::vector<Messages> ways;  // [size]
  for (const OneSize& one : sizes) {
    Answer answer = plan_alike(one.lengths, one.dims);
    if (!answer.plan) {
      answer.why_not += sizes.size() > 1 ? ". It is one of " + text_of(one.dims) : "";
      return answer;
    }
    if (sizes.size() == 1) {
      answer.plan->predicted.seconds = seconds_of(*answer.plan) + task_.step_seconds;
      return answer;
    }
    if (whole.programs.empty()) {
      whole = empty_copy(*answer.plan, batch.lengths);
    }
    ways.push_back(answer.plan->messages);
    add(*std::move(answer.plan), one, whole);
  }
  // What there is room for at every size.
  whole.messages = {
      .overlap = std::ranges::all_of(ways, &Messages::overlap),
      .reshard_after_forward = std::ranges::any_of(ways, &Messages::reshard_after_forward)};
  if (std::ranges::any_of(ways, [&](Messages way) { return way != whole.messages; })) {
    predict(whole);
  }
  whole.predicted.seconds = seconds_of(whole) + task_.step_seconds;
  whole.planner_seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return {.plan = std::move(whole), .why_not = {}};
}

BatchPlanner::Answer SamplePlanner::plan_alike(
    const std::vector<std::int64_t>& lengths, const DimSizes& dims) {
  const BatchSizes known{.lengths = lengths, .dims = {dims}};
  if (const auto found = plans_.find(known); found != plans_.end()) {
    return {.plan = found->second, .why_not = {}};
  }
  const auto begin = std::chrono::steady_clock::now();
  const auto cap = caps_.find(log2_bucket(lengths.front()));
  std::int64_t budget = task_.memory_per_rank;  // 0: no limit
  if (cap != caps_.end()) {
    budget = budget == 0 ? cap->second : std::min(budget, cap->second);
  }
  const LayerRecompute level =
      task_.training ? recompute_.value_or(LayerRecompute{}) : LayerRecompute{};
  PredictedBytes least;
  std::optional<Plan> best;
  for (std::size_t at_once = model_.has_dim("batch") ? lengths.size() : 1;;
       at_once = (at_once + 1) / 2) {
    Plan all = alike(lengths, dims, at_once, level);
    for (const bool reshard : {true, false}) {
      if (!reshard && (task_.memory_per_rank == 0 || task_.offload || !task_.training)) {
        break;  // as ways_of_messages()
      }
      if (!reshard) {
        all.messages.reshard_after_forward = false;
        predict(all);
      }
      std::optional<Plan> tried = budget == 0 ? all : within(budget, all, at_once, least);
      if (tried && (!best || seconds_of(*tried) < seconds_of(*best))) {
        best = std::move(tried);
      }
    }
    if (at_once == 1 || budget == 0) {
      break;
    }
  }
  if (best) {
    Plan overlapped = *best;
    overlapped.messages.overlap = true;
    predict(overlapped);
    if (budget == 0 || most_bytes(overlapped).total() <= budget) {
      best = std::move(overlapped);
    }
    best->planner_seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    if (plans_.size() < kPlansKept) {
      plans_.emplace(known, *best);
    }
    return {.plan = std::move(best), .why_not = {}};
  }
  return {
      .plan = std::nullopt,
      .why_not = "no plan fits: one sample needs " + bytes_text(least.total()) +
                 " on the fullest rank (" + bytes_text(least.static_bytes) +
                 " for parameters, gradients and optimizer, " + bytes_text(least.saved) +
                 " saved for the backward pass, " + bytes_text(least.transient) +
                 " while it computes), " + std::to_string(least.total() - budget) +
                 " bytes more than the " + bytes_text(budget) +
                 " available for planning. Give more memory or more ranks, or smaller samples"};
}

std::optional<std::string> SamplePlanner::observe(const Plan&, const RankSeconds&) {
  return std::nullopt;
}

std::optional<Plan> SamplePlanner::leaner(const Plan& plan) {
  const PlanGroup& group = fullest(plan).groups.front();
  const std::int64_t most = bytes_of(group).total();
  if (most == 0) {
    return std::nullopt;
  }
  caps_[log2_bucket(plan.lengths.at(idx(group.documents.front())))] = most - most / 20;
  plans_.clear();
  return this->plan(sizes_of(plan)).plan;
}

void SamplePlanner::learn(const Learned& learned) {
  if (caps_ != learned.caps) {
    caps_ = learned.caps;
    plans_.clear();
  }
}

std::unique_ptr<BatchPlanner> planner_for(PlanningTask task) {
  if (task.model.of_samples()) {
    return std::make_unique<SamplePlanner>(std::move(task));
  }
  return batch_planner(std::move(task));
}

}  // namespace paradyse
