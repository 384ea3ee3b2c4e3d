// The planner of batches of samples of several dims.  Samples of one size run together, so many at
// once.  Each takes all ranks, one size after the other, or groups of samples run side by side on
// groups of ranks of different sizes, whatever is predicted to take less.
#pragma once

#include <vector>

#include "paradyse/plan/batch_planner.h"
#include "src/plan/search/batch/group_sizes.h"

namespace paradyse {

class SamplePlans;

// The same for the same task on every machine.
class SamplePlanner final : public BatchPlanner {
 public:
  // `task.recompute`: of all layers; "": the least that fits.  `ranks`: of groups that are tried,
  // ascending.
  SamplePlanner(PlanningTask task, std::vector<int> ranks);

  // What one sample of each of these sizes takes alone, on groups of these ranks; as group_sizes()
  // of documents.
  std::vector<GroupSize> group_sizes(const std::vector<int>& tried, const BatchSizes& sizes);

 private:
  // The fastest plan; without a limit of memory nothing is recomputed.  Throws
  // std::invalid_argument where a part has no way to run.
  Answer make(const BatchSizes& batch, Caps caps) override;

  SamplePlans& samples_;
  std::vector<int> ranks_;
};

}  // namespace paradyse
