#include "src/plan/search/layouts/sample_planner.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <memory>
#include <stdexcept>
#include <utility>

#include "paradyse/plan/detail/index.h"
#include "src/plan/base/bytes_text.h"
#include "src/plan/layout/dims_text.h"
#include "src/plan/search/batch/micro_batches.h"
#include "src/plan/search/layouts/sample_plans.h"

namespace paradyse {

namespace {

double seconds_of(const Plan& plan) { return plan.predicted.seconds.value_or(0); }

// On all ranks; of none that fits, what needs least.
std::optional<Plan> in_turn(
    SamplePlans& samples, const SamplesOfASize& size, Caps caps, PredictedBytes& least) {
  const PlanningTask& task = samples.task();
  const auto count = std::ssize(size.samples);
  std::optional<Plan> best;
  for (std::int64_t at_once = task.model.has_dim("batch") ? count : 1;;
       at_once = (at_once + 1) / 2) {
    for (const bool reshard : {true, false}) {
      if (!reshard && (task.memory_per_rank == 0 || task.offload || !task.training ||
                       samples.weights_whole())) {
        break;  // as ways_of_messages()
      }
      Messages messages = samples.messages();
      messages.reshard_after_forward &= reshard;
      const SamplePlans::Found& found = samples.best(
          {.dims = size.dims, .rows = size.rows, .samples = at_once, .ranks = task.ranks},
          messages,
          caps);
      if (!found.fitting) {
        const bool less = least.total() == 0 || found.least.total() < least.total();
        least = less ? found.least : least;
        continue;
      }
      Plan plan = plan_of_samples(task, std::vector<std::int64_t>(idx(count), size.rows));
      plan.messages = messages;
      plan.dims = size.dims;
      PlanGroup all{
          .ranks = {},
          .documents = {},
          .program = name_in(plan, found.fitting->program),
          .mesh = task.mesh};
      for (int rank = 0; rank < task.ranks; ++rank) {
        all.ranks.push_back(rank);
      }
      for (std::int64_t first = 0; first < count; first += at_once) {
        PlanGroup& group =
            plan.micro_batches.emplace_back(PlanMicroBatch{.groups = {all}, .predicted = {}})
                .groups.front();
        for (std::int64_t i = first; i < std::min(count, first + at_once); ++i) {
          group.documents.push_back(i);
        }
      }
      samples.prediction().predict(plan);
      if (!best || seconds_of(plan) < seconds_of(*best)) {
        best = std::move(plan);
      }
    }
    if (at_once == 1 || !samples.limited(at_once * size.rows, caps)) {
      break;
    }
  }
  if (best) {
    Plan overlapped = *best;
    overlapped.messages.overlap = true;
    samples.prediction().predict(overlapped);
    if (all_fit(samples, overlapped, caps)) {
      best = std::move(overlapped);
    }
  }
  return best;
}

// The same of all sizes, one after the other.
BatchPlanner::Answer in_turn(
    SamplePlans& samples,
    const BatchSizes& batch,
    const std::vector<SamplesOfASize>& sizes,
    Caps caps) {
  std::vector<Plan> plans;  // [size]
  for (const SamplesOfASize& one : sizes) {
    PredictedBytes least;
    std::optional<Plan> plan = in_turn(samples, one, caps, least);
    if (!plan) {
      const std::int64_t budget = samples.budget(one.rows, caps);
      return {
          .plan = std::nullopt,
          .why_not = "no plan fits: one sample needs " + bytes_text(least.total()) +
                     " on the rank with the highest peak (" + bytes_text(least.static_bytes) +
                     " for parameters, gradients and optimizer, " + bytes_text(least.saved) +
                     " saved for the backward pass, " + bytes_text(least.transient) +
                     " while it computes), " + std::to_string(least.total() - budget) +
                     " bytes more than the " + bytes_text(budget) +
                     " available for planning. Give more memory or more ranks, or smaller "
                     "samples" +
                     (sizes.size() > 1 ? ". It is one of " + text_of(one.dims) : "")};
    }
    plans.push_back(*std::move(plan));
  }
  if (plans.size() == 1) {
    return {.plan = std::move(plans.front()), .why_not = {}};
  }
  Plan whole = plan_of_samples(samples.task(), batch.lengths);
  for (std::size_t s = 0; s < sizes.size(); ++s) {
    const std::string program = name_in(whole, plans[s].programs.begin()->second);
    for (PlanMicroBatch& micro : plans[s].micro_batches) {
      PlanGroup& group = micro.groups.front();
      group.program = program;
      group.dims = sizes[s].dims;
      for (std::int64_t& document : group.documents) {
        document = sizes[s].samples[idx(document)];
      }
      whole.micro_batches.push_back(std::move(micro));
    }
  }
  // What there is room for at every size.
  const auto messages = [](const Plan& plan) { return plan.messages; };
  whole.messages = samples.messages();
  whole.messages.overlap = std::ranges::all_of(plans, &Messages::overlap, messages);
  whole.messages.reshard_after_forward =
      std::ranges::any_of(plans, &Messages::reshard_after_forward, messages);
  samples.prediction().predict(whole);
  return {.plan = std::move(whole), .why_not = {}};
}

GroupSize::Item alone(SamplePlans& samples, const SamplesOfASize& size, int ranks) {
  const SamplePlans::Found& found = samples.best(
      {.dims = size.dims, .rows = size.rows, .samples = 1, .ranks = ranks}, samples.messages(), {});
  GroupSize::Item item{.tokens = size.rows, .dims = size.dims};
  if (found.fitting) {
    const LayerRuns& program = found.fitting->program;  // a model may have no layers
    item.program = program.empty() ? "" : name(program.front().choice);
    item.seconds = found.fitting->seconds;
    item.fits = true;
  }
  item.peak_bytes = (found.fitting ? found.fitting->bytes : found.least).total();
  return item;
}

}  // namespace

SamplePlanner::SamplePlanner(PlanningTask task, std::vector<int> ranks)
    : BatchPlanner(std::make_unique<SamplePlans>(std::move(task))),
      samples_(static_cast<SamplePlans&>(planning())),
      ranks_(std::move(ranks)) {}

std::vector<GroupSize> SamplePlanner::group_sizes(
    const std::vector<int>& tried, const BatchSizes& sizes) {
  std::vector<GroupSize> found;
  for (const int ranks : tried) {
    GroupSize of{.ranks = ranks};
    for (const SamplesOfASize& size : samples_by_size(sizes, samples_.task().dims)) {
      try {
        of.by_length.push_back(alone(samples_, size, ranks));
      } catch (const std::invalid_argument&) {  // a part has no way to run on so many
        of.by_length.clear();
        break;
      }
    }
    if (!of.by_length.empty()) {
      found.push_back(std::move(of));
    }
  }
  return found;
}

BatchPlanner::Answer SamplePlanner::make(const BatchSizes& batch, Caps caps) {
  if (batch.lengths.empty()) {
    return {.plan = std::nullopt, .why_not = "there are no samples"};
  }
  const auto begin = std::chrono::steady_clock::now();
  const PlanningTask& task = samples_.task();
  const std::vector<SamplesOfASize> sizes = samples_by_size(batch, task.dims);
  Answer answer = samples_.faster_of_both([&] {
    Answer best;
    if (ranks_.back() == task.ranks) {
      best = in_turn(samples_, batch, sizes, caps);
    }
    // Any size, and each alone: the search among all of them may miss what one alone comes to.
    std::vector<std::vector<int>> tried;
    if (ranks_.front() < task.ranks) {
      tried.push_back(ranks_);
    }
    for (const int size : ranks_) {
      if (ranks_.size() > 1 && size < task.ranks &&
          std::has_single_bit(static_cast<unsigned>(size))) {
        tried.push_back({size});
      }
    }
    for (const std::vector<int>& ranks : tried) {
      std::optional<Plan> plan = samples_in_groups(samples_, batch, sizes, ranks, caps);
      if (plan && (!best.plan || seconds_of(*plan) < seconds_of(*best.plan))) {
        best = {.plan = std::move(plan), .why_not = {}};
      }
    }
    return best;
  });
  if (!answer.plan && answer.why_not.empty()) {
    answer.why_not = "no plan fits in groups of " + std::to_string(ranks_.back()) +
                     " ranks: give more memory, or another parallel.batch_planner";
  }
  if (answer.plan) {
    answer.plan->planner_seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }
  return answer;
}

}  // namespace paradyse
