// Where rank 0 of a run has the plans of its steps from: made in the background while the steps
// before run, or given: recorded by another run, or one for all steps.
//
// A plan is asked for kAhead steps before its step, with what is known then (the steps until the
// one before that are observed), so what it knows does not hang on how long planning takes.  One
// that is not there in time is replaced by a fallback: all documents whole or all over all ranks.
// Which steps went by one stands in their recorded plans, and a run that is resumed does so again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "paradyse/plan/batch_planner.h"
#include "src/run/train/plan_queue.h"

namespace paradyse {

class StepPlans {
 public:
  static constexpr std::size_t kAhead = 2;  // steps
  // The planner of fallbacks, and what their plans call it.
  static constexpr const char* kFallback = "whole-or-split";

  struct Options {
    std::size_t steps = 0;
    std::function<BatchSizes(std::size_t step)> batch;
    std::filesystem::path replay = {};  // folder of a run, for the plans of its steps
    std::filesystem::path plan = {};    // a plan file, for every step
    bool correct = false;               // by what steps take
    // A plan is late when its step begins and so much time is over since it was asked for.
    double planning_seconds = 1e6;
    // Of steps that were begun before the run was resumed: whether the plan was late.
    std::map<std::size_t, bool> decided = {};
    std::function<void(const std::string& line)> note = [](const std::string&) {};
  };
  // Who plans, and what a plan has to be that is given.
  struct Planners {
    std::unique_ptr<BatchPlanner> steps;  // the queue's
    std::unique_ptr<BatchPlanner> fallback;
    int ranks = 1;
    std::function<std::vector<std::string>(const Plan& plan)> problems;
  };
  StepPlans(Planners planners, Options options);

  // Plans are not made.
  [[nodiscard]] bool given() const { return !options_.replay.empty() || !options_.plan.empty(); }
  // Steps correct them.
  [[nodiscard]] bool corrects() const { return options_.correct && !given(); }

  struct Step {
    Plan plan;
    bool late = false;  // this is the fallback
  };
  // The plan of a step; those of the next kAhead are asked for.  Throws std::runtime_error: why no
  // plan fits, or what is wrong with a recorded one.
  Step take(std::size_t step);
  // Instead of one that ran out of memory in spite of what was counted; nothing when none needs
  // less.
  std::optional<Plan> leaner(std::size_t step, const Step& planned);
  // What every rank took for the parts of the plan's micro-batches, where that was measured, and
  // how long it computed in all; what is learned counts from the next plan that is asked for.
  void took(
      std::size_t step,
      const Plan& plan,
      const BatchPlanner::PartSeconds& seconds,
      const std::vector<double>& computed_seconds);

  // What was learned so far that plans go by.
  [[nodiscard]] BatchPlanner::Learned learned() const { return planners_.fallback->learned(); }
  // That for a checkpoint: the speeds of ranks are with it, also where plans do not go by them.
  [[nodiscard]] BatchPlanner::Learned to_keep() const;
  // What was kept, in the place of what was learned.
  void learn(const BatchPlanner::Learned& kept);
  // The next step is one that was taken before; what was learned since is forgotten.
  void go_back(const BatchPlanner::Learned& kept);
  // The planner of fallbacks, which knows all that was learned.
  BatchPlanner& known() { return *planners_.fallback; }

  // The planner of the run, with all that was learned; waits until it is at rest.  Plans that were
  // asked for are asked for again.
  BatchPlanner& planner();

 private:
  void ask_until(std::size_t step);
  std::optional<Plan> fallback(std::size_t step);
  Step made(std::size_t step);
  [[nodiscard]] Plan recorded(std::size_t step) const;
  [[nodiscard]] Plan same_for_all(std::size_t step);
  // Throws std::runtime_error for a plan of this file that does not fit the run.
  void expect_playable(const Plan& plan, std::size_t step, const std::string& from) const;

  Options options_;
  Planners planners_;  // the fallback learns, too: the queue's has what it is handed
  PlanQueue queue_;
  std::optional<Plan> plan_;         // that of Options::plan, once it was read
  std::optional<std::size_t> next_;  // step to be asked for; none: of the one that is taken
  bool told_ = false;                // that a plan was late
  RankSpeeds speeds_;                // of the ranks, by which plans go where steps correct them
};

// `make`: the planner of the run's steps.
StepPlans::Planners planners_of(
    PlanningTask task,
    const std::function<std::unique_ptr<BatchPlanner>(PlanningTask task)>& make = batch_planner);

}  // namespace paradyse
