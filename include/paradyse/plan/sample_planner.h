// Plans batches of samples of a multi-axis model.  Samples of one size run together, so many at
// once.  Each takes all ranks, one size after the other, or groups of samples run side by side on
// groups of ranks of different sizes, whatever is predicted to take less.
#pragma once

#include <memory>

#include "paradyse/plan/batch_planner.h"

namespace paradyse {

class SamplePlans;

// The same for the same task on every machine.
class SamplePlanner final : public BatchPlanner {
 public:
  // `task.recompute`: of all layers; "": the least that fits.  `task.batch_planner` says which
  // sizes of groups are tried (BatchPlannerRow::sizes).
  explicit SamplePlanner(PlanningTask task);
  ~SamplePlanner() override;

  using BatchPlanner::plan;

 private:
  // The fastest plan; without a limit of memory nothing is recomputed.  Throws
  // std::invalid_argument where a part has no way to run.
  Answer make(const BatchSizes& batch, Caps caps) override;
  [[nodiscard]] const Planning& planning() const override;
  Planning& planning() override;

  std::unique_ptr<SamplePlans> samples_;
};

// The planner of samples, or of documents as the task names it, as the model has them.  Throws like
// batch_planner().
std::unique_ptr<BatchPlanner> planner_for(PlanningTask task);

}  // namespace paradyse
