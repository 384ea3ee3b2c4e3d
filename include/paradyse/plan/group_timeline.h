// From a plan to what the ranks of a group run.  The run, the checker, predictions, the simulator
// and explanations ask here and nowhere else, so they speak of the same programs.
#pragma once

#include <vector>

#include "paradyse/plan/plan.h"

namespace paradyse {

struct GroupTimeline {
  Timeline parts;
  std::vector<Seat> seats;  // [rank of the group]
};

// The program of a group of the plan, for its documents and cuts.  Without `keep` (evaluation)
// nothing is saved, and dropout is off.  Throws std::out_of_range for a program or document that
// the plan has not got, std::invalid_argument like timeline(); problems() finds both with their
// place.
GroupTimeline group_timeline(
    const Plan& plan, const PlanGroup& group, const ModelShape& model, bool keep);

}  // namespace paradyse
