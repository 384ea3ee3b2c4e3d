// Where rank 0 of a run has the plans of its steps from: made one step ahead, while the step before
// runs, or given: recorded by another run, or one for all steps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "paradyse/plan/batch_planner.h"

namespace paradyse {

class StepPlans {
 public:
  struct Options {
    std::vector<std::vector<std::int64_t>> lengths;  // tokens of the documents of each step
    std::filesystem::path replay = {};               // folder of a run, for the plans of its steps
    std::filesystem::path plan = {};                 // a plan file, for every step
    bool correct = false;                            // by what steps take
    std::function<void(const std::string& line)> note = [](const std::string&) {};
  };
  StepPlans(PlanningTask task, Options options);
  ~StepPlans();
  StepPlans(const StepPlans&) = delete;
  StepPlans& operator=(const StepPlans&) = delete;

  // Plans are not made.
  [[nodiscard]] bool given() const { return !options_.replay.empty() || !options_.plan.empty(); }

  // The plan of a step; that of the next one is begun.  Throws std::runtime_error: why no plan
  // fits, or what is wrong with a recorded one.
  Plan take(std::size_t step);
  // Instead of one that ran out of memory in spite of what was counted; nothing when none needs
  // less.
  std::optional<Plan> leaner(std::size_t step, const Plan& plan);
  // What every rank took for the plan's micro-batches; what is learned counts from the next plan
  // that is begun.
  void took(Plan plan, BatchPlanner::RankSeconds seconds);

  // Waits until it is at rest.
  BatchPlanner& planner();
  // Safe while it plans.
  [[nodiscard]] BatchPlanner::Learned learned() const { return planner_->learned(); }

 private:
  struct Taken {
    Plan plan;
    BatchPlanner::RankSeconds seconds;
  };
  void begin(std::size_t step);
  Plan made(std::size_t step);
  [[nodiscard]] Plan recorded(std::size_t step) const;
  [[nodiscard]] Plan same_for_all(std::size_t step) const;
  // Throws std::runtime_error for a plan of this file that does not fit the run.
  void expect_playable(const Plan& plan, const std::string& from) const;

  Options options_;
  ModelShape model_;
  Precision precision_;
  int ranks_;
  std::unique_ptr<BatchPlanner>
      planner_;  // only one thread at a time uses it: this one does while none is ahead
  std::future<Plan> ahead_;
  std::size_t ahead_of_ = 0;
  std::optional<Taken> last_;  // not yet learned from
};

}  // namespace paradyse
