#include "src/run/train/step_plans.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <numeric>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "paradyse/plan/detail/index.h"
#include "src/plan/layout/dims_text.h"
#include "src/plan/search/batch/document_planner.h"
#include "src/run/measure/measure.h"
#include "src/run/train/run_inputs.h"

namespace paradyse {

namespace {

PlanningTask with(PlanningTask task, const char* planner) {
  task.batch_planner = planner;
  return task;
}

// How many there are of each: "2 of frames 5, patches 6".
using Counts = std::map<DimSizes, int>;
Counts counts_of(const BatchSizes& batch) {
  Counts counts;
  for (const DimSizes& dims : batch.dims) {
    ++counts[dims];
  }
  return counts;
}
std::string counts_text(const Counts& counts) {
  std::string text;
  for (const auto& [dims, count] : counts) {
    text += fmt::format("{}{} of {}", text.empty() ? "" : "; ", count, text_of(dims));
  }
  return text.empty() ? "one dim" : text;
}

}  // namespace

namespace {

std::filesystem::path recorded_file(const std::filesystem::path& run, std::size_t step) {
  return run / "plans" / fmt::format("step-{:05}.json", step + 1);
}

}  // namespace

StepPlans::Planners planners_of(
    PlanningTask task,
    const std::function<std::unique_ptr<BatchPlanner>(PlanningTask task)>& make) {
  StepPlans::Planners planners;
  planners.fallback = batch_planner(with(task, StepPlans::kFallback));
  planners.ranks = task.ranks;
  planners.problems = [model = task.model, precision = task.precision](const Plan& plan) {
    return problems(plan, {.model = model, .precision = precision});
  };
  planners.steps = make(std::move(task));
  return planners;
}

StepPlans::StepPlans(Planners planners, Options options)
    : options_(std::move(options)),
      planners_(std::move(planners)),
      queue_(std::move(planners_.steps)) {}

StepPlans::Step StepPlans::take(std::size_t step) {
  if (given()) {
    return {.plan = options_.plan.empty() ? recorded(step) : same_for_all(step)};
  }
  if (!next_ || *next_ < step) {
    next_ = step;
  }
  ask_until(step + kAhead);
  return made(step);
}

void StepPlans::ask_until(std::size_t step) {
  for (; *next_ <= step && *next_ < options_.steps; ++*next_) {
    queue_.ask(*next_, options_.batch(*next_), learned());
  }
}

StepPlans::Step StepPlans::made(std::size_t step) {
  const auto decided = options_.decided.find(step);
  const bool late = decided != options_.decided.end()
                        ? decided->second
                        : !queue_.ready(step, options_.planning_seconds);
  if (late) {
    if (std::optional<Plan> plan = fallback(step)) {
      queue_.forget(step);
      if (!std::exchange(told_, true)) {
        options_.note(fmt::format(
            "step {}: its plan is not ready {} s after it was requested; instead, all documents "
            "run whole, or all are split. Raise parallel.planning_seconds to wait longer",
            step + 1,
            options_.planning_seconds));
      }
      return {.plan = *std::move(plan), .late = true};
    }
  }
  return {.plan = queue_.take(step)};
}

std::optional<Plan> StepPlans::fallback(std::size_t step) {
  const auto begin = std::chrono::steady_clock::now();
  std::optional<Plan> plan = planners_.fallback->plan(options_.batch(step)).plan;
  if (plan) {
    plan->planner_name = kFallback;
    plan->planner_seconds = seconds_since(begin);
  }
  return plan;
}

std::optional<Plan> StepPlans::leaner(std::size_t step, const Step& planned) {
  std::optional<Plan> less;
  if (planned.late) {
    queue_.forget_all();
    less = planners_.fallback->leaner(planned.plan);
    if (less) {
      less->planner_name = kFallback;
    }
  } else {
    less = planner().leaner(planned.plan);
    planners_.fallback->learn(queue_.at_rest().learned());
  }
  next_ = step + 1;
  if (less) {
    ask_until(step + kAhead);
  }
  return less;
}

void StepPlans::took(
    std::size_t step,
    const Plan& plan,
    const BatchPlanner::PartSeconds& seconds,
    const std::vector<double>& computed_seconds) {
  const bool learns = corrects();
  if (const auto changed = learns ? planners_.fallback->observe(plan, seconds) : std::nullopt) {
    options_.note(*changed);
  }
  if (!RankSpeeds::tells(computed_seconds) || !speeds_.observe(
                                                  computed_seconds,
                                                  planners_.fallback->work_of_ranks(plan),
                                                  static_cast<std::int64_t>(step + 1))) {
    return;
  }
  const char* const so = learns ? "plans take this into account"
                                : "plans do not take this into account; with measured costs "
                                  "(costs.file = \"measure\") and costs.correct = true they do";
  options_.note(fmt::format("step {}: {}: {}", step + 1, speeds_.said(), so));
  if (learns) {
    BatchPlanner::Learned learned = planners_.fallback->learned();
    learned.speeds = speeds_.ratios();
    learned.slow_since = speeds_.slow_since();
    planners_.fallback->learn(learned);
  }
}

BatchPlanner::Learned StepPlans::to_keep() const {
  BatchPlanner::Learned kept = learned();
  if (!corrects()) {
    kept.speeds = speeds_.ratios();
    kept.slow_since = speeds_.slow_since();
  }
  return kept;
}

void StepPlans::learn(const BatchPlanner::Learned& kept) {
  BatchPlanner::Learned of_plans = kept;
  if (!corrects()) {
    of_plans.speeds.clear();
    of_plans.slow_since.clear();
  }
  planners_.fallback->learn(of_plans);
  speeds_.learn(kept.speeds, kept.slow_since);
}

BatchPlanner& StepPlans::planner() {
  BatchPlanner& planner = queue_.at_rest();
  planner.learn(learned());
  next_.reset();
  return planner;
}

void StepPlans::go_back(const BatchPlanner::Learned& kept) {
  if (!given()) {
    planner();
    learn(kept);
  }
}

Plan StepPlans::recorded(std::size_t step) const {
  const std::filesystem::path file = recorded_file(options_.replay, step);
  if (!std::filesystem::exists(file)) {
    std::size_t there = 0;  // of the first steps
    while (there < step && std::filesystem::exists(recorded_file(options_.replay, there))) {
      ++there;
    }
    throw std::runtime_error(fmt::format(
        "--replay: {} does not exist: the run has no plan of step {}; {}",
        file.string(),
        step + 1,
        there == 0 ? "it has none of the first step, either"
                   : fmt::format("set train.steps = {}", there)));
  }
  Plan plan = read_plan(file);
  if (const BatchSizes drawn = options_.batch(step); sizes_of(plan) != drawn) {
    throw std::runtime_error(fmt::format(
        "--replay: {} is for documents of other {} than this run uses in step {}: give the data, "
        "data.seed and train.tokens_per_step of that run",
        file.string(),
        plan.lengths != drawn.lengths ? "lengths" : "sizes",
        step + 1));
  }
  expect_playable(plan, step, "--replay: " + file.string());
  return plan;
}

// Its documents are numbered as the step draws them: by size, those of one size in turn.
Plan StepPlans::same_for_all(std::size_t step) {
  if (!plan_) {
    plan_ = read_plan(options_.plan);
  }
  Plan plan = *plan_;
  expect_playable(plan, step, "--plan: " + options_.plan.string());
  const BatchSizes of_plan = sizes_of(plan);
  const BatchSizes of_step = options_.batch(step);
  const std::vector<std::int64_t>& drawn = of_step.lengths;
  const auto size = [](const BatchSizes& batch, std::int64_t d) {
    return std::pair(batch.lengths[idx(d)], batch.dims.empty() ? DimSizes() : batch.dims[idx(d)]);
  };
  const auto by_size = [&](const BatchSizes& batch) {
    std::vector<std::int64_t> order(batch.lengths.size());
    std::iota(order.begin(), order.end(), std::int64_t{0});
    std::ranges::stable_sort(order, {}, [&](std::int64_t d) { return size(batch, d); });
    return order;
  };
  const std::vector<std::int64_t> wanted = by_size(of_plan);
  const std::vector<std::int64_t> there = by_size(of_step);
  std::vector<std::int64_t> number(wanted.size());  // [document of the plan]
  for (std::size_t i = 0; i < std::max(wanted.size(), there.size()); ++i) {
    if (wanted.size() != there.size() || size(of_plan, wanted[i]) != size(of_step, there[i])) {
      throw std::runtime_error(fmt::format(
          "--plan: {} is for {} documents of {} tokens, but step {} has {} of {}: give only data "
          "of these lengths and train.tokens_per_step = {}",
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

void StepPlans::expect_playable(const Plan& plan, std::size_t step, const std::string& from) const {
  if (plan.ranks != planners_.ranks) {
    throw std::runtime_error(fmt::format(
        "{} is for {} ranks, but there are {}: set parallel.ranks",
        from,
        plan.ranks,
        planners_.ranks));
  }
  const Counts of_plan = counts_of(sizes_of(plan));
  const Counts of_step = counts_of(options_.batch(step));
  if (of_plan != of_step) {
    throw std::runtime_error(fmt::format(
        "{} is for samples of other sizes ({}) than step {} has ({}); make a plan for these",
        from,
        counts_text(of_plan),
        step + 1,
        counts_text(of_step)));
  }
  if (const auto wrong = planners_.problems(plan); !wrong.empty()) {
    throw std::runtime_error(from + ": " + wrong.front());
  }
}

}  // namespace paradyse
