// What each way to run a layer costs on groups of any size: the layer costs of each size, made when
// they are first asked for.
#pragma once

#include <map>

#include "src/plan/search/layers/layer_costs.h"

namespace paradyse {

class GroupCosts {
 public:
  // Both live longer.
  GroupCosts(const PlanningTask& task, const Correction& correction)
      : task_(task), correction_(correction) {}

  // Of groups of so many ranks, which fill the task's side by side.  Throws std::invalid_argument
  // for fewer than one or more than the task has.
  LayerCosts& of(int ranks);

 private:
  const PlanningTask& task_;
  const Correction& correction_;
  std::map<int, LayerCosts> costs_;  // kept for good: corrections are applied as they are read
};

}  // namespace paradyse
