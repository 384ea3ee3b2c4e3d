#include "src/run/train/static_plans.h"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>

namespace paradyse {

StaticPlans::StaticPlans(const PlanningTask& task, const std::vector<BatchSizes>& largest)
    : strategies_(static_strategies(task)) {
  std::erase_if(strategies_, [&](NamedStrategy& one) {
    return std::ranges::any_of(
        largest, [&](const BatchSizes& alone) { return !one.plans.plan(alone); });
  });
}

std::optional<Plan> StaticPlans::plan(
    const BatchSizes& batch, BatchPlanner::Learned learned, const std::string& before) {
  learned.caps.clear();  // of plans that were not these
  for (NamedStrategy& one : strategies_) {
    one.plans.learn(learned);
  }
  if (chosen_.empty()) {
    choose(batch, before);
  }
  return chosen_.empty() ? std::nullopt : strategies_.front().plans.plan(batch);
}

void StaticPlans::choose(const BatchSizes& batch, const std::string& before) {
  auto best = std::ranges::find(strategies_, before, &NamedStrategy::name);
  if (best == strategies_.end()) {
    double least = std::numeric_limits<double>::infinity();
    for (auto one = strategies_.begin(); one != strategies_.end(); ++one) {
      const std::optional<Plan> plan = one->plans.plan(batch);
      const double seconds = plan ? plan->predicted.seconds.value_or(least) : least;
      if (seconds < least) {
        least = seconds;
        best = one;
      }
    }
  }
  if (best == strategies_.end()) {
    return;
  }
  NamedStrategy chosen = std::move(*best);
  chosen_ = chosen.name;
  strategies_.clear();
  strategies_.push_back(std::move(chosen));
}

void expect_comparable(const RunConfig& config, const Backend& backend, const TrainFrom& from) {
  if (config.train.compare == 0) {
    return;
  }
  const auto refuse = [&](const std::string& why) {
    throw std::invalid_argument(
        fmt::format("train.compare is {}, but {}", config.train.compare, why));
  };
  if (!from.plan.empty() || !from.replay.empty()) {
    refuse(fmt::format(
        "with {} the plans are given, and none that this run makes could be compared; leave "
        "one of the two out, as with --set train.compare=0",
        from.plan.empty() ? "--replay" : "--plan"));
  }
  if (backend.name() == "nccl") {
    refuse(
        "over nccl a rank that runs out of memory ends the run, and the static plan may need more "
        "memory; set train.compare = 0");
  }
}

}  // namespace paradyse
