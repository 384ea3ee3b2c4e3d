// What each way to run a layer costs on groups of any size: the layer costs of each size, made when
// they are first asked for.
#pragma once

#include <map>
#include <utility>

#include "src/plan/search/layers/layer_costs.h"

namespace paradyse {

class GroupCosts {
 public:
  // Both live longer.
  GroupCosts(const PlanningTask& task, const Correction& correction)
      : task_(task), correction_(correction), domain_(task.ranks) {}

  // Of groups of so many ranks, which fill the task's side by side, and gather weights from the
  // ranks of domain() or of another.  Throws std::invalid_argument for fewer than one or more than
  // the task has.
  LayerCosts& of(int ranks) { return of(ranks, domain_); }
  LayerCosts& of(int ranks, int domain);

  // All ranks; or 1, where each has all weights while a step lasts.
  [[nodiscard]] int domain() const { return domain_; }
  void gather_over(int domain) { domain_ = domain; }

 private:
  const PlanningTask& task_;
  const Correction& correction_;
  int domain_;
  // By ranks and domain; kept for good: corrections are applied as they are read.
  std::map<std::pair<int, int>, LayerCosts> costs_;
};

}  // namespace paradyse
