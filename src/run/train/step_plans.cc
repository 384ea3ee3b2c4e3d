#include "src/run/train/step_plans.h"

#include <chrono>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>

#include "src/run/measure/measure.h"
#include "src/run/train/run_inputs.h"

namespace paradyse {

StepPlans::StepPlans(PlanningTask task, Options options)
    : options_(std::move(options)),
      model_(task.model),
      ranks_(task.ranks),
      planner_(batch_planner(std::move(task))) {}

StepPlans::~StepPlans() {
  if (ahead_.valid()) {
    ahead_.wait();
  }
}

Plan StepPlans::take(std::size_t step) {
  if (replays()) {
    return recorded(step);
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
  if (const auto wrong = problems(plan, {.model = &model_}); !wrong.empty()) {
    throw std::runtime_error("--replay: " + file.string() + ": " + wrong.front());
  }
  if (plan.ranks != ranks_) {
    throw std::runtime_error(fmt::format(
        "--replay: {} is for {} ranks, and there are {}: set parallel.ranks",
        file.string(),
        plan.ranks,
        ranks_));
  }
  return plan;
}

}  // namespace paradyse
