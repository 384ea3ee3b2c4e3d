#include "paradyse/plan/planner.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <numeric>
#include <set>
#include <stdexcept>

#include "src/plan/search/batch/micro_batches.h"

namespace paradyse {
namespace {

constexpr std::int64_t kUnlimited = std::numeric_limits<std::int64_t>::max() / 4;

// The layer planner adds up bytes part by part; the exact fold finds what parts share and overlap.
// So often it is asked again, with what the fold found left over or missing; at last for the plan
// that needs least.
constexpr int kAttempts = 8;

// Plans remembered by their lengths.
constexpr std::size_t kPlansKept = 1024;

std::string mebibytes(std::int64_t bytes) {
  return std::to_string(bytes >> 20) + "." + std::to_string((bytes >> 10) % 1024 * 10 / 1024) +
         " MiB";
}

// With the layers in the order of the lowest peak.
LayerProgram in_order(const LayerCosts::Ways& ways, const LayerPlan& plan) {
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
  if (task.planner != "exact" && task.planner != "paper") {
    throw std::invalid_argument(
        "planner '" + task.planner + "' is not known; there are exact and paper");
  }
  return task;
}

}  // namespace

Planner::Planner(PlanningTask task)
    : task_(checked(std::move(task))),
      all_(task_, task_.ranks, correction_),
      one_(task_, 1, correction_),
      prediction_(task_, correction_, all_, one_) {
  for (int r = 0; r < task_.ranks; ++r) {
    static_bytes_ = std::max(
        static_bytes_,
        stored_elements(task_.model, task_.ranks, r) * task_.static_bytes_per_element());
  }
  // The publication splits every document over all ranks.
  if (task_.planner == "exact" || all_.uniform().empty()) {
    whole_ = one_.uniform();
  }
  if (all_.uniform().empty() && whole_.empty()) {
    throw std::invalid_argument(
        "planner: no strategy is left with attention '" + task_.attention + "' and mlp '" +
        task_.mlp + "' on " + std::to_string(task_.ranks) +
        " ranks; weights can be held only by all ranks together");
  }
}

std::int64_t Planner::budget(std::int64_t tokens) const {
  const std::int64_t bytes =
      task_.memory_per_rank == 0
          ? kUnlimited
          : static_cast<std::int64_t>(
                static_cast<double>(task_.memory_per_rank) / (1 + task_.memory_overhead));
  const auto cap = caps_.find(log2_bucket(tokens));
  return cap == caps_.end() || past_caps_ ? bytes : std::min(bytes, cap->second);
}

bool Planner::fits(std::int64_t bytes, std::int64_t tokens) const {
  return bytes <= budget(tokens);
}

std::optional<Plan> Planner::leaner(const Plan& plan) {
  std::int64_t most = 0;
  std::int64_t tokens = 0;
  for (const PlanMicroBatch& micro : plan.micro_batches) {
    for (const PlanGroup& group : micro.groups) {
      const PredictedBytes bytes = group.predicted.bytes.value_or(PredictedBytes{});
      const std::int64_t sum = bytes.total();
      if (sum > most) {
        most = sum;
        tokens = fullest(plan, micro);
      }
    }
  }
  if (most == 0) {
    return std::nullopt;
  }
  caps_[log2_bucket(tokens)] = most - most / 20;
  documents_.clear();
  plans_.clear();
  return make(plan.lengths).plan;
}

Planner::Learned Planner::learned() const {
  return {.ratios = correction_.ratios(), .caps = caps_};
}

void Planner::learn(const Learned& learned) {
  correction_.learn(learned.ratios);  // so that plans are made anew
  caps_ = learned.caps;
}

Planner::Choices Planner::choices_of(LayerCosts& costs, std::int64_t length) const {
  Choices found{
      .ways = costs.ways(length), .static_bytes = static_bytes_, .rest = costs.rest(length)};
  for (LayerCost& way : found.ways.costs) {
    way.transient_bytes = std::max(way.transient_bytes, found.rest.transient_bytes);
  }
  found.capacity_bytes = budget(length) - static_bytes_ - found.rest.saved_bytes;
  return found;
}

Planner::Choices Planner::choices_of(std::int64_t length) { return choices_of(all_, length); }

LayerPlan Planner::layers_of(const LayerCosts::Ways& ways, std::int64_t capacity) const {
  if (!task_.mix) {
    return plan_alike(ways.costs, task_.model.layers, capacity);
  }
  return task_.planner == "paper"
             ? plan_layers_as_published(ways.costs, task_.model.layers, capacity)
             : plan_layers(ways.costs, task_.model.layers, capacity);
}

std::vector<RejectedWay> Planner::rejected(std::int64_t length) {
  const Choices known = choices_of(length);
  std::vector<RejectedWay> ways = rejected_ways(
      known.ways.costs,
      task_.model.layers,
      known.capacity_bytes,
      layers_of(known.ways, known.capacity_bytes));
  for (RejectedWay& way : ways) {
    way.uniform_seconds += known.rest.wall;
    way.uniform_peak_bytes += known.static_bytes + known.rest.saved_bytes;
    way.with_one_seconds += known.rest.wall;
  }
  return ways;
}

// At the costs of a document of `length`.
std::optional<Planner::Fitting> Planner::program_for(
    LayerCosts& costs, std::int64_t length, const std::vector<std::vector<std::int64_t>>& groups) {
  if (task_.model.layers == 0) {
    const PredictedBytes bytes = prediction_.bytes_of({}, groups);
    return fits(bytes.total(), length) ? std::optional(Fitting{.program = {}, .bytes = bytes})
                                       : std::nullopt;
  }
  const Choices known = choices_of(costs, length);
  const LayerCosts::Ways& ways = known.ways;
  if (ways.costs.empty()) {
    return std::nullopt;
  }
  std::optional<Fitting> best;
  double best_seconds = std::numeric_limits<double>::infinity();
  std::int64_t capacity = known.capacity_bytes;
  std::int64_t step = 1;  // what overshoots again is held shorter each time
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    const bool last = attempt + 1 == kAttempts;
    const LayerPlan plan = layers_of(ways, last && !best ? 0 : capacity);
    if (best && (!plan.feasible || plan.seconds >= best_seconds)) {
      break;
    }
    Fitting fitting{.program = in_order(ways, plan), .bytes = {}};
    fitting.bytes = prediction_.bytes_of(fitting.program, groups);
    const std::int64_t left = budget(length) - fitting.bytes.total();
    if (left >= 0) {
      best = std::move(fitting);
      best_seconds = plan.seconds;
    }
    if (!plan.feasible || left == 0 || task_.memory_per_rank == 0) {
      break;  // that was the plan that needs least, or all there is to find
    }
    capacity += left > 0 ? left : step * left;
    step *= left > 0 ? 1 : 2;
  }
  return best;
}

std::optional<DocumentPlan> Planner::find_document(std::int64_t length) {
  std::optional<Fitting> fitting = program_for(all_, length, {{length}});
  if (!fitting) {
    return std::nullopt;
  }
  const auto priced = [&](Fitting found) {
    DocumentPlan plan{
        .program = std::move(found.program),
        .seconds = all_.rest(length).wall,
        .bytes = found.bytes};
    for (const LayerRun& run : plan.program) {
      plan.seconds += static_cast<double>(run.layers) * all_.layer(run.choice, length).wall;
    }
    return plan;
  };
  DocumentPlan plan = priced(*std::move(fitting));
  if (task_.planner == "paper" && task_.smoothing && !last_.empty()) {
    DocumentPlan same =
        priced({.program = last_, .bytes = prediction_.bytes_of(last_, {{length}})});
    if (fits(same.bytes.total(), length) && same.seconds <= 1.05 * plan.seconds) {
      plan = std::move(same);
    }
  }
  last_ = plan.program;
  return plan;
}

std::optional<DocumentPlan> Planner::document(std::int64_t length) {
  forget_what_is_out_of_date();
  if (all_.uniform().empty()) {
    return std::nullopt;
  }
  const auto found = documents_.find(length);
  return found != documents_.end()
             ? found->second
             : documents_.emplace(length, find_document(length)).first->second;
}

Planner::Answer Planner::plan(const std::vector<std::int64_t>& lengths) {
  forget_what_is_out_of_date();
  const auto found = plans_.find(lengths);
  cached_ = found != plans_.end();
  if (cached_) {
    return {.plan = found->second, .why_not = {}};
  }
  Answer answer = make(lengths);
  if (!answer.plan && !caps_.empty()) {  // other documents of such lengths may still need more
    past_caps_ = true;
    documents_.clear();
    answer = make(lengths);
    past_caps_ = false;
    documents_.clear();
  }
  if (answer.plan && plans_.size() < kPlansKept) {
    plans_.emplace(lengths, *answer.plan);
  }
  return answer;
}

void Planner::forget_what_is_out_of_date() {
  if (version_ != correction_.version()) {
    version_ = correction_.version();
    documents_.clear();
    plans_.clear();
  }
}

std::optional<std::string> Planner::observe(const Plan& plan, const std::vector<double>& seconds) {
  for (std::size_t m = 0; m < plan.micro_batches.size() && m < seconds.size(); ++m) {
    const PlanMicroBatch& micro = plan.micro_batches[m];
    if (!micro.predicted.seconds) {
      continue;
    }
    const std::int64_t longest = longest_of(plan, micro);
    // The micro-batch's ratio is that of each strategy in it.
    const LayerProgram& program = plan.programs.at(micro.groups.front().program);
    std::set<std::string> used;
    double factors = 0;
    double layers = 0;
    for (const LayerRun& run : program) {
      const std::string& attention = part_of(run.choice, "attention").strategy;
      used.insert(attention);
      const auto n = static_cast<double>(run.layers);
      factors += n * correction_.factor(attention, longest);
      layers += n;
    }
    if (layers == 0) {
      continue;
    }
    // predicted with the factors of then; those of now differ by little
    const double raw = *micro.predicted.seconds / (factors / layers);
    for (const std::string& strategy : used) {
      correction_.observe(strategy, longest, raw, seconds[m]);
    }
  }
  const std::optional<double> changed = correction_.machine_changed();
  if (!changed) {
    return std::nullopt;
  }
  char ratio[32];
  std::snprintf(ratio, sizeof(ratio), "%.1f", *changed > 1 ? *changed : 1 / *changed);
  return std::string("this machine has become ") + ratio + " times " +
         (*changed > 1 ? "slower" : "faster") +
         " than it was: other programs may run beside this one; plans go by what is measured now";
}

// Whether a document can run at all: on all ranks together, or whole on one of them.
bool Planner::can_run(std::int64_t length) {
  if (document(length)) {
    return true;
  }
  std::vector<std::vector<std::int64_t>> groups(static_cast<std::size_t>(task_.ranks));
  groups.front() = {length};
  for (const LayerChoice& layer : whole_) {
    if (fits(estimate(one_, layer, length).peak, length) && program_for(one_, length, groups)) {
      return true;
    }
  }
  return false;
}

std::optional<std::int64_t> Planner::longest_document() {
  if (task_.memory_per_rank == 0) {
    return std::nullopt;
  }
  std::int64_t low = 0;
  std::int64_t high = 1;
  while (high < (std::int64_t{1} << 40) && can_run(high)) {
    low = high;
    high *= 2;
  }
  while (low + 1 < high) {
    const std::int64_t middle = (low + high) / 2;
    (can_run(middle) ? low : high) = middle;
  }
  return low;
}

Planner::Shortage Planner::shortage(std::int64_t length) {
  Shortage least{.budget = budget(length)};
  const auto consider = [&](LayerCosts& costs, std::size_t groups) {
    LayerProgram program;
    if (task_.model.layers > 0) {
      const Choices known = choices_of(costs, length);
      if (known.ways.costs.empty()) {
        return;
      }
      const LayerPlan plan = plan_layers(known.ways.costs, task_.model.layers, 0);
      program = in_order(known.ways, plan);
    }
    std::vector<std::vector<std::int64_t>> documents(groups);
    documents.front() = {length};
    const PredictedBytes bytes = prediction_.bytes_of(program, documents);
    if (least.bytes.total() == 0 || bytes.total() < least.bytes.total()) {
      least.bytes = bytes;
      least.program = name(program);
    }
  };
  if (!all_.uniform().empty()) {
    consider(all_, 1);
  }
  if (!whole_.empty()) {
    consider(one_, static_cast<std::size_t>(task_.ranks));
  }
  return least;
}

std::string Planner::refusal(std::int64_t longest) {
  const Shortage least = shortage(longest);
  return "no plan fits: a document of " + std::to_string(longest) + " tokens needs " +
         mebibytes(least.bytes.total()) + " on a rank even with " + least.program + " (" +
         mebibytes(least.bytes.static_bytes) + " for parameters, gradients and optimizer, " +
         mebibytes(least.bytes.saved) + " saved for the backward pass, " +
         mebibytes(least.bytes.transient) + " while it computes), " +
         std::to_string(least.missing()) + " bytes more than the " + mebibytes(least.budget) +
         " that can be planned of the budget of " + mebibytes(task_.memory_per_rank) +
         "; the longest document that fits has " + std::to_string(longest_document().value_or(0)) +
         " tokens. Give more memory, more ranks, or set data.max_tokens";
}

std::vector<Planner::Row> Planner::table(const std::vector<std::int64_t>& lengths) {
  std::vector<Row> rows;
  const auto add = [&](LayerCosts& costs, const LayerChoice& layer, std::int64_t n) {
    const Estimate e = estimate(costs, layer, n);
    rows.push_back(
        {.length = n,
         .option = name(layer),
         .seconds = &costs == &all_ ? e.wall : e.busy,
         .peak_bytes = e.peak,
         .fits = fits(e.peak, n)});
  };
  for (const std::int64_t n : lengths) {
    for (const LayerChoice& layer : all_.uniform()) {
      add(all_, layer, n);
    }
    for (const LayerChoice& layer : whole_) {
      if (task_.ranks > 1) {
        add(one_, layer, n);
      }
    }
  }
  return rows;
}

}  // namespace paradyse
