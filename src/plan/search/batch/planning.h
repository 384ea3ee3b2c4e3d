// What the planners of one task share, whatever the model: what plans are predicted to take, what
// steps taught, and the memory that plans are held to.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <optional>

#include "paradyse/plan/batch_planner.h"
#include "paradyse/plan/detail/planning_task.h"
#include "src/plan/search/batch/plan_prediction.h"
#include "src/plan/search/layers/group_costs.h"

namespace paradyse {

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
  // Of the ranks, as their steps taught.
  RankSpeeds& speeds() { return speeds_; }
  [[nodiscard]] const RankSpeeds& speeds() const { return speeds_; }

  // Of plans that gather weights for each micro-batch and plans that leave them whole while a step
  // lasts (Messages::reshard_after_backward) the faster that fits.  `make` makes what
  // weights_whole() says; it is called for one kind where that suffices.
  BatchPlanner::Answer faster_of_both(const std::function<BatchPlanner::Answer()>& make);
  // What is planned now: outside faster_of_both() the one kind where there is no choice.
  [[nodiscard]] bool weights_whole() const { return whole_; }
  // Seconds of the plan of the other kind, where that is known: none that takes as long is taken.
  [[nodiscard]] double worth_below() const { return worth_below_; }
  // The least that messages of plans are.
  [[nodiscard]] Messages messages() const;

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
  virtual void forget() {}
  // Whether plans may leave weights whole: there is a limit of memory, within which that is
  // counted.
  [[nodiscard]] virtual bool may_leave_weights_whole() const;

 private:
  // Groups reach beyond sharding groups in such plans alone; or it is asked for.
  [[nodiscard]] bool always_whole() const {
    const bool asked = task_.gather_weights == "step" && task_.training && task_.ranks > 1;
    return task_.domain() < task_.ranks || asked;
  }
  void leave_weights_whole(bool whole);
  class WholeWhile;
  bool far_faster(const Plan& whole);
  // Of a predicted plan of either kind, by one time model: to compare the kinds by.
  double compared_seconds(const Plan& plan);

  PlanningTask task_;
  PlanningTask task_by_work_;  // with the time model of plans that leave weights whole
  Correction correction_;
  RankSpeeds speeds_;
  bool whole_ = false;
  double worth_below_ = std::numeric_limits<double>::infinity();
  std::int64_t static_bytes_ = 0;
  GroupCosts costs_;
  PlanPrediction prediction_;
  std::optional<PlanPrediction> prediction_by_work_ =
      {};  // where prediction_ goes by another model
  HeldTo held_to_;
  std::int64_t version_ = 0;  // of the correction and the speeds that they go by
};

}  // namespace paradyse
