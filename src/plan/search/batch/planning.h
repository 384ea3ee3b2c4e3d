// What the planners of one task share, whatever the model: what plans are predicted to take, what
// steps taught, and the memory that plans are held to.
#pragma once

#include <cstdint>
#include <map>

#include "paradyse/plan/planning_task.h"
#include "src/plan/search/batch/plan_prediction.h"
#include "src/plan/search/layers/group_costs.h"

namespace paradyse {

// The bytes that plans for such documents are held to, after plans that were within their count
// ran out of memory (BatchPlanner::leaner).
enum class Caps {
  held,   // they count
  passed  // they do not: nothing fits below them
};

class Planning {
 public:
  explicit Planning(PlanningTask task);
  virtual ~Planning() = default;
  Planning(const Planning&) = delete;
  Planning& operator=(const Planning&) = delete;

  [[nodiscard]] const PlanningTask& task() const { return task_; }
  GroupCosts& costs() { return costs_; }
  PlanPrediction& prediction() { return prediction_; }
  Correction& correction() { return correction_; }
  [[nodiscard]] const Correction& correction() const { return correction_; }

  // Plans from now on leave weights whole while a step lasts, or do not.
  void leave_weights_whole(bool whole);
  [[nodiscard]] bool weights_whole() const { return costs_.domain() < task_.ranks; }
  // The least that messages of plans are.
  [[nodiscard]] Messages messages() const;
  // Whether they may: there is a limit of memory, within which that is counted.
  [[nodiscard]] bool may_leave_weights_whole() const;

  // Of the fullest rank: parameters, gradients and optimizer.
  [[nodiscard]] std::int64_t static_bytes() const { return static_bytes_; }
  // Bytes that plans may fill where the fullest group holds `tokens`, or rows of samples; very many
  // without a limit.
  [[nodiscard]] std::int64_t budget(std::int64_t tokens, Caps caps = Caps::held) const;
  [[nodiscard]] bool fits(std::int64_t bytes, std::int64_t tokens, Caps caps = Caps::held) const {
    return bytes <= budget(tokens, caps);
  }
  [[nodiscard]] bool limited(std::int64_t tokens, Caps caps = Caps::held) const;
  // Tokens by powers of two (log2_bucket) and the bytes that they are held to.
  using HeldTo = std::map<int, std::int64_t>;
  [[nodiscard]] const HeldTo& held_to() const { return held_to_; }
  void hold_to(HeldTo bytes);

  // Forgets what was made with factors that no longer hold.  True: there was something to forget.
  bool forget_what_is_out_of_date();

 protected:
  // Whatever was made with a budget or with factors.
  virtual void forget() = 0;

 private:
  PlanningTask task_;
  Correction correction_;
  std::int64_t static_bytes_ = 0;
  GroupCosts costs_;
  PlanPrediction prediction_;
  HeldTo held_to_;
  std::int64_t version_ = 0;  // of the correction that they go by
};

// While it lives, plans leave weights whole.
class WholeWhile {
 public:
  explicit WholeWhile(Planning& planning) : planning_(planning) {
    planning_.leave_weights_whole(true);
  }
  ~WholeWhile() { planning_.leave_weights_whole(false); }
  WholeWhile(const WholeWhile&) = delete;
  WholeWhile& operator=(const WholeWhile&) = delete;

 private:
  Planning& planning_;
};

}  // namespace paradyse
