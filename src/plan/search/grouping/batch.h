// One batch planned: from lengths to the plan, its bound and what it took to find it.
#pragma once

#include <string>
#include <vector>

#include "src/plan/search/grouping/bounds.h"
#include "src/plan/search/grouping/planners.h"
#include "src/plan/search/grouping/space.h"

namespace paradyse {

struct PlannedBatch {
  std::optional<Plan> plan = {};  // none: why_not
  std::string why_not = {};
  LowerBound bound;
  double seconds = 0;         // of the batch, predicted
  double search_seconds = 0;  // of the planner, all spaces together
  std::size_t space = 0;      // the one of several that is best
  Grouping grouping;
  bool optimal = false;

  // By how much the plan is above the bound, a fraction.
  [[nodiscard]] double gap() const { return seconds / bound.seconds - 1; }
};

// The best plan of several spaces that have the same documents (a weight domain each, say); the
// bound is the least of theirs.  The plan says planner, space, predictions, bound and seconds.
PlannedBatch plan_batch(
    const std::vector<GroupSpace>& spaces,
    const GroupingPlannerRow& planner,
    const GroupingOptions& options);

// The least bound of the spaces in which every document finds room; infinite: there is none.
LowerBound least_bound(const std::vector<GroupSpace>& spaces);

// What binds, for people: of each micro-batch its groups by type, the slowest, how full and how
// busy the others are; then where the plan's rank seconds go.
std::string explained(const GroupSpace& space, const Grouping& grouping);

}  // namespace paradyse
