// The best static plan of a run that is measured beside it (train.compare): one strategy for all
// documents, chosen once.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "paradyse/plan/batch_planner.h"
#include "paradyse/plan/config.h"
#include "paradyse/plan/detail/static_strategy.h"
#include "paradyse/run/backend.h"
#include "paradyse/run/train.h"

namespace paradyse {

class StaticPlans {
 public:
  // All strategies of the task that have room for each of `largest`, with as much recomputation as
  // it takes.  Looking for that room is what takes long here.
  StaticPlans(const PlanningTask& task, const std::vector<BatchSizes>& largest);

  [[nodiscard]] bool empty() const { return strategies_.empty(); }

  // By what the run has learned.  The first call chooses: the strategy that the run had before it
  // was resumed, or else the one that is predicted to take least for this batch.  Nothing: it has
  // no plan for the batch, and before the choice, none of them has.
  std::optional<Plan> plan(
      const BatchSizes& batch, BatchPlanner::Learned learned, const std::string& before = "");
  // "": none is chosen yet.
  [[nodiscard]] const std::string& strategy() const { return chosen_; }

 private:
  void choose(const BatchSizes& batch, const std::string& before);

  std::vector<NamedStrategy> strategies_;  // once it is chosen, that one
  std::string chosen_;
};

// Throws std::invalid_argument, naming train.compare, where it does not apply.
void expect_comparable(const RunConfig& config, const Backend& backend, const TrainFrom& from);

}  // namespace paradyse
