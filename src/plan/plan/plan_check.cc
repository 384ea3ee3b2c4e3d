// The checker: what is wrong with a plan that could be read.  The rules are in check/.
#include "paradyse/plan/detail/index.h"
#include "src/plan/base/plan_path.h"
#include "src/plan/plan/check/findings.h"

namespace paradyse {

std::vector<std::string> problems(const Plan& plan, const CheckContext& context) {
  check::Findings findings(plan, context);
  check_sizes(findings);
  check_programs(findings);
  check_documents(findings);
  for (std::size_t m = 0; m < plan.micro_batches.size(); ++m) {
    const std::string path = path_to("micro_batches", m);
    std::vector<check::CheckedGroup> groups;
    groups.reserve(plan.micro_batches[m].groups.size());
    for (std::size_t g = 0; g < plan.micro_batches[m].groups.size(); ++g) {
      groups.push_back(
          check_group(findings, path_to(path + ".groups", g), plan.micro_batches[m].groups[g]));
    }
    const bool covered = check_cover(findings, path, groups);
    check_lock_step(findings, groups);
    if (findings.model && findings.sizes_sound && covered) {
      check_built(findings, groups);
    }
  }
  return std::move(findings.problems);
}

std::vector<PredictedBytes> bytes_of_ranks(
    const Plan& plan, const Model& model, Precision precision, bool training) {
  std::vector<PredictedBytes> fullest(idx(plan.ranks));
  for (const PlanMicroBatch& micro_batch : plan.micro_batches) {
    for (const PlanGroup& group : micro_batch.groups) {
      const GroupTimeline built = group_timeline(plan, group, model, training);
      for (std::size_t i = 0; i < group.ranks.size(); ++i) {
        const PredictedBytes held = fullest_rank(
            built.parts,
            {built.seats[i]},
            model,
            plan.weight_domain,
            precision,
            training ? Keeps::optimizer : Keeps::weights,
            plan.messages);
        PredictedBytes& most = fullest[idx(group.ranks[i])];
        most = held.total() > most.total() ? held : most;
      }
    }
  }
  return fullest;
}

}  // namespace paradyse
