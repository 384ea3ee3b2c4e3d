#include "src/run/train/weight_domain.h"

#include <algorithm>
#include <optional>
#include <stdexcept>

#include <fmt/format.h>

#include "paradyse/plan/batch_planner.h"
#include "paradyse/plan/detail/index.h"
#include "src/run/execute/gather.h"
#include "src/run/train/kept_plans.h"

namespace paradyse {
namespace {

constexpr const char* kKey = "parallel.weight_domain";
// Of the run, that are planned both ways.
constexpr std::size_t kSteps = 3;
// Less than this is no reason to hold more copies.
constexpr double kWorthCopies = 0.98;

// Of plans that the run goes by; of its checkpoint, so that the run stays the same, unless
// something else is asked for or there are other ranks; none: it is the run's to say.
std::optional<int> given_domain(
    const RunConfig& config, const TrainingInputs& inputs, const TrainFrom& from) {
  const bool plans = !from.plan.empty() || !from.replay.empty();
  const bool its = config.parallel.weight_domain == "auto" && !inputs.moved(config) &&
                   config.parallel.gather_weights != "micro-batch";
  if (inputs.from && (plans || its)) {
    return inputs.from->state.weight_domain;
  }
  if (inputs.from) {
    return std::nullopt;
  }
  const std::filesystem::path file = !from.plan.empty()     ? from.plan
                                     : !from.replay.empty() ? first_plan_of(from.replay)
                                                            : std::filesystem::path();
  std::error_code error;
  if (file.empty() || !std::filesystem::is_regular_file(file, error)) {
    return std::nullopt;  // what is wrong with it is said where it is read
  }
  return read_plan(file).weight_domain;
}

// Seconds of the first steps, by plans for such sharding groups; none where one has no plan, or
// some item of the data none.
std::optional<double> predicted(PlanningTask task, int domain, const TrainingInputs& inputs) {
  task.weight_domain = domain;
  if (task.by_work) {  // both by the model that knows both
    task.seconds = task.by_work;
  }
  const std::unique_ptr<BatchPlanner> planner = batch_planner(std::move(task));
  for (const BatchSizes& alone : inputs.largest()) {
    if (!planner->plan(alone).plan) {
      return std::nullopt;
    }
  }
  double sum = 0;
  const auto first = idx(inputs.first_step());
  for (std::size_t s = first; s < std::min(first + kSteps, inputs.steps.size()); ++s) {
    const BatchPlanner::Answer answer = planner->plan(inputs.batch(s));
    if (!answer.plan) {
      return std::nullopt;
    }
    sum += answer.plan->predicted.seconds.value_or(0);
  }
  return sum;
}

// The same over each node; none where a strategy that is asked for by name needs all ranks to
// share weights (tensor-parallel and streamed ones do).
std::optional<double> predicted_of_node(PlanningTask task, int node, const TrainingInputs& inputs) {
  try {
    return predicted(std::move(task), node, inputs);
  } catch (const std::invalid_argument&) {  // all ranks had a planner
    return std::nullopt;
  }
}

}  // namespace

int weight_domain(
    const RunConfig& config,
    const TrainingInputs& inputs,
    const PlanningNumbers& numbers,
    const TrainFrom& from,
    Backend& backend,
    const TrainHooks& hooks) {
  const auto ranks = static_cast<int>(config.parallel.ranks);
  const int node = backend.ranks_per_node(ranks);
  const std::string& asked = config.parallel.weight_domain;
  if (asked == "node" && node == 1 && ranks > 1) {
    throw std::invalid_argument(fmt::format(
        "{} is node, but each node has one rank: weights are sharded over at least two; set {} = "
        "world, or start several ranks on each node",
        kKey,
        kKey));
  }
  if (asked == "node" && node < ranks && config.parallel.gather_weights == "micro-batch") {
    throw std::invalid_argument(fmt::format(
        "{} is node, and parallel.gather_weights is micro-batch: weights that each node holds are "
        "gathered once a step; set one of them to auto",
        kKey));
  }
  if (const std::optional<int> given = given_domain(config, inputs, from)) {
    const int wanted = asked == "world" ? ranks : asked == "node" ? node : *given;
    if (wanted != *given) {
      throw std::invalid_argument(fmt::format(
          "{} is {}, which is {} of {} ranks here, but {} weights are sharded over {}: set {} = "
          "auto",
          kKey,
          asked,
          wanted,
          ranks,
          "in the given plans",
          *given,
          kKey));
    }
    return *given;
  }
  const bool each_time = config.parallel.gather_weights == "micro-batch";
  if (asked != "auto" || node == 1 || node == ranks || each_time) {
    return asked == "node" ? node : ranks;
  }
  int domain = ranks;
  if (backend.leads()) {
    const PlanningTask task = planning_task(config, inputs.model.model, /*training=*/true, numbers);
    const std::optional<double> world = predicted(task, ranks, inputs);
    const std::optional<double> of_node = predicted_of_node(task, node, inputs);
    if (of_node && (!world || *of_node < kWorthCopies * *world)) {
      domain = node;
    }
    if (hooks.note && of_node && world) {
      hooks.note(fmt::format(
          "weights are sharded over {} ({} = auto): the first steps are predicted to take {:.2f} s "
          "sharded over the {} ranks of each node, {:.2f} s over all {}",
          domain == node ? "each node" : "all ranks",
          kKey,
          *of_node,
          node,
          *world,
          ranks));
    }
  }
  backend.run(ranks, [&](Communicators& communicators) {
    const std::int64_t word = broadcast_number(domain, "weight domain", communicators.world());
    if (communicators.rank() == backend.first_rank()) {
      domain = static_cast<int>(word);
    }
  });
  return domain;
}

}  // namespace paradyse
