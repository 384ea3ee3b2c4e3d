#include "src/run/train/step_plans.h"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "paradyse/plan/index.h"
#include "src/run/measure/measure.h"
#include "src/run/train/run_inputs.h"

namespace paradyse {

StepPlans::StepPlans(PlanningTask task, Options options)
    : options_(std::move(options)),
      model_(task.model),
      precision_(task.precision),
      ranks_(task.ranks),
      planner_(batch_planner(std::move(task))) {}

StepPlans::~StepPlans() {
  if (ahead_.valid()) {
    ahead_.wait();
  }
}

Plan StepPlans::take(std::size_t step) {
  if (given()) {
    return options_.plan.empty() ? recorded(step) : same_for_all(step);
  }
  Plan plan = made(step);
  if (step + 1 < options_.lengths.size()) {
    begin(step + 1);
  }
  return plan;
}

std::optional<Plan> StepPlans::leaner(std::size_t step, const Plan& plan) {
  std::optional<Plan> less = planner().leaner(plan);
  if (less && step + 1 < options_.lengths.size()) {
    begin(step + 1);
  }
  return less;
}

void StepPlans::took(Plan plan, BatchPlanner::RankSeconds seconds) {
  last_ = {.plan = std::move(plan), .seconds = std::move(seconds)};
}

BatchPlanner& StepPlans::planner() {
  if (ahead_.valid()) {
    ahead_.wait();
    ahead_ = {};
  }
  return *planner_;
}

void StepPlans::begin(std::size_t step) {
  ahead_ = std::async(std::launch::async, [this, lengths = options_.lengths[step]] {
    const auto begin = std::chrono::steady_clock::now();
    Plan plan = plan_or_throw(*planner_, lengths);
    plan.planner_seconds = seconds_since(begin);
    return plan;
  });
  ahead_of_ = step;
}

Plan StepPlans::made(std::size_t step) {
  if (!ahead_.valid() || ahead_of_ != step) {
    planner();
    begin(step);
  }
  Plan plan = ahead_.get();
  if (last_ && options_.correct) {
    if (const auto changed = planner_->observe(last_->plan, last_->seconds)) {
      options_.note(*changed);
    }
    last_.reset();
  }
  return plan;
}

Plan StepPlans::recorded(std::size_t step) const {
  const std::filesystem::path file =
      options_.replay / "plans" / fmt::format("step-{:05}.json", step + 1);
  if (!std::filesystem::exists(file)) {
    throw std::runtime_error(fmt::format(
        "--replay: {} is not there: the run has no plan of step {}; set train.steps = {}",
        file.string(),
        step + 1,
        step));
  }
  Plan plan = read_plan(file);
  if (plan.lengths != options_.lengths[step]) {
    throw std::runtime_error(fmt::format(
        "--replay: {} is for documents of other lengths than this run draws for step {}: give "
        "the data, data.seed and train.tokens_per_step of that run",
        file.string(),
        step + 1));
  }
  expect_playable(plan, "--replay: " + file.string());
  return plan;
}

// Its documents are numbered as the step draws them: by length, those of one length in turn.
Plan StepPlans::same_for_all(std::size_t step) const {
  Plan plan = read_plan(options_.plan);
  expect_playable(plan, "--plan: " + options_.plan.string());
  const std::vector<std::int64_t>& drawn = options_.lengths[step];
  const auto by_length = [](const std::vector<std::int64_t>& lengths) {
    std::vector<std::int64_t> order(lengths.size());
    std::iota(order.begin(), order.end(), std::int64_t{0});
    std::ranges::stable_sort(order, {}, [&](std::int64_t d) { return lengths[idx(d)]; });
    return order;
  };
  const std::vector<std::int64_t> wanted = by_length(plan.lengths);
  const std::vector<std::int64_t> there = by_length(drawn);
  std::vector<std::int64_t> number(wanted.size());  // [document of the plan]
  const auto length = [](const std::vector<std::int64_t>& lengths, std::int64_t d) {
    return lengths[idx(d)];
  };
  for (std::size_t i = 0; i < std::max(wanted.size(), there.size()); ++i) {
    if (wanted.size() != there.size() ||
        length(plan.lengths, wanted[i]) != length(drawn, there[i])) {
      throw std::runtime_error(fmt::format(
          "--plan: {} is for {} documents of {} tokens, and step {} draws {} of {}: give data of "
          "these lengths alone and train.tokens_per_step = {}",
          options_.plan.string(),
          plan.lengths.size(),
          fmt::join(plan.lengths, ", "),
          step + 1,
          drawn.size(),
          fmt::join(drawn, ", "),
          std::accumulate(plan.lengths.begin(), plan.lengths.end(), std::int64_t{0})));
    }
    number[idx(wanted[i])] = there[i];
  }
  for (PlanMicroBatch& micro : plan.micro_batches) {
    for (PlanGroup& group : micro.groups) {
      for (std::int64_t& document : group.documents) {
        document = number[idx(document)];
      }
    }
  }
  plan.lengths = drawn;
  return plan;
}

void StepPlans::expect_playable(const Plan& plan, const std::string& from) const {
  if (plan.ranks != ranks_) {
    throw std::runtime_error(fmt::format(
        "{} is for {} ranks, and there are {}: set parallel.ranks", from, plan.ranks, ranks_));
  }
  if (const auto wrong = problems(plan, {.model = &model_, .precision = precision_});
      !wrong.empty()) {
    throw std::runtime_error(from + ": " + wrong.front());
  }
}

}  // namespace paradyse
