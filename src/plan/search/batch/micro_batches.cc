#include "src/plan/search/batch/micro_batches.h"

#include <algorithm>

#include "paradyse/plan/index.h"

namespace paradyse {

std::string name(const LayerRuns& program) {
  std::string text;
  for (const LayerRun& run : program) {
    text += text.empty() ? "" : "; ";
    text += program.size() == 1 ? "" : std::to_string(run.layers) + " x ";
    text += name(run.choice);
  }
  return text;
}

std::int64_t fullest(const Plan& plan, const PlanMicroBatch& micro) {
  std::int64_t most = 0;
  for (const PlanGroup& group : micro.groups) {
    std::int64_t tokens = 0;
    for (const std::int64_t d : group.documents) {
      tokens += plan.lengths[idx(d)];
    }
    most = std::max(most, tokens);
  }
  return most;
}

std::int64_t longest_of(const Plan& plan, const PlanMicroBatch& micro) {
  std::int64_t longest = 0;
  for (const PlanGroup& group : micro.groups) {
    for (const std::int64_t d : group.documents) {
      longest = std::max(longest, plan.lengths[idx(d)]);
    }
  }
  return longest;
}

}  // namespace paradyse
