#include "src/plan/search/batch/micro_batches.h"

#include <algorithm>
#include <array>

#include "paradyse/plan/index.h"
#include "src/plan/plan/group_timeline.h"
#include "src/plan/search/layers/layer_planner.h"

namespace paradyse {

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

std::int64_t longest_of(const std::vector<std::int64_t>& lengths) {
  return lengths.empty() ? 0 : *std::max_element(lengths.begin(), lengths.end());
}

Plan empty_plan(
    const PlanningTask& task, const std::vector<std::int64_t>& lengths, const std::string& space) {
  Plan plan;
  plan.model_name = task.model.name;
  plan.model_sha256 = task.model.sha256;
  plan.layers = task.model.layers;
  plan.cluster_name = "local-" + std::to_string(task.ranks);
  plan.ranks = task.ranks;
  plan.weight_domain = task.ranks;
  plan.tiles = task.model.tiles();
  plan.lengths = lengths;
  plan.planner_name = layer_planner(task.planner).name;
  plan.planner_space = space;
  return plan;
}

bool all_fit(const Planning& planning, const Plan& plan, Caps caps) {
  return std::ranges::all_of(plan.micro_batches, [&](const PlanMicroBatch& micro) {
    return std::ranges::all_of(micro.groups, [&](const PlanGroup& group) {
      return planning.fits(group.predicted.bytes->total(), fullest(plan, micro), caps);
    });
  });
}

bool predicted_to_fit(Planning& planning, Plan& plan, Caps caps) {
  const PlanningTask& task = planning.task();
  const std::int64_t memory = task.training ? task.memory_per_rank : 0;  // else nothing to keep for
  const auto fits = [&] {
    planning.prediction().predict(plan);
    return all_fit(planning, plan, caps);
  };
  if (planning.weights_whole()) {
    return std::ranges::any_of(std::array{true, false}, [&](bool overlap) {
      plan.messages = planning.messages();
      plan.messages.overlap = overlap;
      return fits();
    });
  }
  return let_messages_travel(plan, memory, fits);
}

}  // namespace paradyse
