// What ranks would tell a planner of a step (BatchPlanner::observe).
#pragma once

#include <functional>
#include <vector>

#include "paradyse/plan/batch_planner.h"
#include "paradyse/plan/detail/index.h"
#include "src/plan/search/batch/plan_prediction.h"

namespace paradyse::test {

// If each part takes so many times as long as the time model says.
inline BatchPlanner::PartSeconds part_seconds(
    PlanPrediction& prediction,
    const Plan& plan,
    const std::function<double(const CostedPart& part)>& times) {
  BatchPlanner::PartSeconds seconds;
  for (const PlanMicroBatch& micro : plan.micro_batches) {
    auto& of_ranks = seconds.emplace_back(idx(plan.ranks));
    const std::vector<std::vector<double>> predicted = prediction.uncorrected_parts(plan, micro);
    for (std::size_t g = 0; g < micro.groups.size(); ++g) {
      const PlanGroup& group = micro.groups[g];
      const std::vector<CostedPart> parts = costed_parts(plan.programs.at(group.program));
      std::vector<double> its = predicted[g];
      for (std::size_t p = 0; p < its.size(); ++p) {
        its[p] *= times(parts[p]);
      }
      for (const int rank : group.ranks) {
        of_ranks[idx(rank)] = its;
      }
    }
  }
  return seconds;
}

}  // namespace paradyse::test
