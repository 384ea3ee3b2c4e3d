#include "paradyse/plan/group_timeline.h"

namespace paradyse {

GroupTimeline group_timeline(
    const Plan& plan, const PlanGroup& group, const ModelShape& model, bool keep) {
  const Task task{
      .model = &model,
      .tokens = token_layout(plan, group, model.causal),
      .domain = plan.weight_domain};
  GroupTimeline result{
      .parts = timeline(task, choices(plan.programs.at(group.program)), keep), .seats = {}};
  for (const int rank : group.ranks) {
    result.seats.push_back(
        {.group_rank = static_cast<int>(result.seats.size()),
         .domain_rank = rank % plan.weight_domain});
  }
  return result;
}

}  // namespace paradyse
