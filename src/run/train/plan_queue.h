// Plans batches in the background, on a thread of its own: one after the other in the order in
// which they are asked for, each by what was learned when it was asked for, however late it is
// planned.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "paradyse/plan/batch_planner.h"

namespace paradyse {

class PlanQueue {
 public:
  explicit PlanQueue(std::unique_ptr<BatchPlanner> planner);
  ~PlanQueue();  // waits for the plan under way
  PlanQueue(const PlanQueue&) = delete;
  PlanQueue& operator=(const PlanQueue&) = delete;

  void ask(std::size_t step, BatchSizes sizes, BatchPlanner::Learned learned);

  // Of a step that was asked for.  Whether its planning is over, once it is or `seconds` since it
  // was asked for are.
  bool ready(std::size_t step, double seconds);
  // Its plan, once it is there.  Throws std::runtime_error saying why none fits.
  Plan take(std::size_t step);
  // Nobody wants its plan any more, or that of any step: nothing is waited for.
  void forget(std::size_t step);
  void forget_all();

  // Forgets all, and waits until nothing is under way: the planner is the caller's until ask().
  BatchPlanner& at_rest();

 private:
  using Clock = std::chrono::steady_clock;
  struct Batch {
    std::size_t step = 0;
    BatchSizes sizes;
    BatchPlanner::Learned learned;
    Clock::time_point asked;
    bool begun = false;
    bool over = false;
    std::optional<Plan> plan = {};
    std::exception_ptr error = {};
  };
  using Batches = std::deque<std::shared_ptr<Batch>>;  // in the order of planning

  void run();
  void plan(Batch& batch);
  Batches::iterator find(std::size_t step);

  std::unique_ptr<BatchPlanner> planner_;
  std::optional<BatchPlanner::Learned> learned_;  // what the planner knows, unless that is unknown
  std::mutex mutex_;                              // of all below
  std::condition_variable changed_;
  Batches batches_;
  bool under_way_ = false;
  bool ending_ = false;
  std::thread thread_;  // begun when first needed
};

}  // namespace paradyse
