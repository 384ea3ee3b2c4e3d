#include "src/plan/search/grouping/space.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <utility>

#include "src/plan/search/batch/micro_batches.h"

namespace paradyse {

Plan plan_of(const GroupSpace& space, const Grouping& grouping) {
  const GroupingTask& task = space.task;
  if (const std::vector<std::string> found = problems(task, grouping); !found.empty()) {
    throw std::logic_error("a planner's grouping is unsound: " + found.front());
  }
  Plan plan;
  plan.model_name = space.model_name;
  plan.model_sha256 = space.model_sha256;
  plan.layers = space.layers;
  plan.cluster_name = space.cluster_name;
  plan.cluster_sha256 = space.cluster_sha256;
  plan.ranks = task.ranks;
  plan.weight_domain = space.weight_domain;
  plan.lengths = task.lengths;
  plan.planner_space = space.name;
  const auto use = [&](const LayerRuns& program) {
    const std::string key = name(program);
    plan.programs[key] = program;
    return key;
  };
  double total = space.batch_seconds;
  for (const Grouping::MicroBatch& micro_batch : grouping.micro_batches) {
    std::vector<int> sizes;
    for (const Grouping::Group& group : micro_batch) {
      sizes.push_back(task.types[idx(group.type)].ranks);
    }
    const std::optional<std::vector<int>> places = first_ranks(task.ranks, task.node, sizes);
    if (!places) {
      throw std::logic_error("a planner's groups find no room side by side");
    }
    const std::vector<int>& first = *places;
    std::vector<bool> busy(idx(task.ranks));
    PlanMicroBatch& planned = plan.micro_batches.emplace_back();
    for (std::size_t g = 0; g < micro_batch.size(); ++g) {
      const Grouping::Group& group = micro_batch[g];
      PlanGroup& one = planned.groups.emplace_back();
      one.ranks.resize(idx(sizes[g]));
      std::iota(one.ranks.begin(), one.ranks.end(), first[g]);
      std::fill_n(busy.begin() + first[g], sizes[g], true);
      one.documents.assign(group.documents.begin(), group.documents.end());
      one.program = use(space.programs[idx(group.type)]);
      one.predicted.seconds = group_seconds(task, group);
    }
    for (int rank = 0; rank < task.ranks; ++rank) {
      if (!busy[idx(rank)]) {
        planned.groups.push_back(
            {.ranks = {rank}, .documents = {}, .program = use(space.idle), .predicted = {}});
      }
    }
    std::ranges::sort(
        planned.groups, {}, [](const PlanGroup& group) { return group.ranks.front(); });
    planned.predicted.seconds = task.micro_batch(slowest_group(task, micro_batch));
    total += *planned.predicted.seconds;
  }
  plan.predicted.seconds = total;
  return plan;
}

LayerRuns uniform_program(
    std::int64_t layers,
    const std::string& attention,
    const std::string& mlp,
    Recompute recompute) {
  const Recompute of_mlp = recompute == Recompute::attention_output ? Recompute::full : recompute;
  return {{.layers = layers, .choice = text_layer(attention, mlp, recompute, of_mlp)}};
}

}  // namespace paradyse
