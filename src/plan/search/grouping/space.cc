#include "src/plan/search/grouping/space.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <utility>

#include "src/plan/plan/programs.h"

namespace paradyse {

std::optional<PlanMicroBatch> side_by_side(
    const GroupingTask& task,
    const Grouping::MicroBatch& micro_batch,
    std::span<const std::string> programs,
    const std::string& idle) {
  const std::optional<std::vector<int>> first = first_ranks(task, micro_batch);
  if (!first) {
    return std::nullopt;
  }
  PlanMicroBatch planned;
  std::vector<bool> busy(idx(task.ranks));
  for (std::size_t g = 0; g < micro_batch.size(); ++g) {
    PlanGroup& one = planned.groups.emplace_back();
    const int size = task.types[idx(micro_batch[g].type)].ranks;
    one.ranks.resize(idx(size));
    std::iota(one.ranks.begin(), one.ranks.end(), (*first)[g]);
    std::fill_n(busy.begin() + (*first)[g], size, true);
    one.documents.assign(micro_batch[g].documents.begin(), micro_batch[g].documents.end());
    one.program = programs[g];
    one.predicted.seconds = group_seconds(task, micro_batch[g]);
  }
  for (int rank = 0; rank < task.ranks; ++rank) {
    if (!busy[idx(rank)]) {
      planned.groups.push_back(
          {.ranks = {rank}, .documents = {}, .program = idle, .predicted = {}});
    }
  }
  std::ranges::sort(planned.groups, {}, [](const PlanGroup& group) { return group.ranks.front(); });
  planned.predicted.seconds = task.micro_batch(slowest_group(task, micro_batch));
  return planned;
}

Plan plan_of(const GroupSpace& space, const Grouping& grouping) {
  const GroupingTask& task = space.task;
  if (const std::vector<std::string> found = problems(task, grouping); !found.empty()) {
    throw std::logic_error("a planner's grouping is invalid: " + found.front());
  }
  Plan plan;
  plan.model_name = space.model_name;
  plan.model_sha256 = space.model_sha256;
  plan.layers = space.layers;
  plan.cluster_name = space.cluster_name;
  plan.cluster_sha256 = space.cluster_sha256;
  plan.ranks = task.ranks;
  plan.weight_domain = space.weight_domain;
  plan.tiles = space.tiles;
  plan.messages = space.messages;
  plan.lengths = task.lengths;
  plan.planner_space = space.name;
  double total = space.batch_seconds;
  for (const Grouping::MicroBatch& micro_batch : grouping.micro_batches) {
    std::vector<std::string> programs;
    programs.reserve(micro_batch.size());
    int ranks = 0;
    for (const Grouping::Group& group : micro_batch) {
      programs.push_back(use(plan, space.programs[idx(group.type)]));
      ranks += task.types[idx(group.type)].ranks;
    }
    const std::string idle = ranks < task.ranks ? use(plan, space.idle) : "";
    std::optional<PlanMicroBatch> planned = side_by_side(task, micro_batch, programs, idle);
    if (!planned) {
      throw std::logic_error("a planner's groups do not fit side by side");
    }
    total += planned->predicted.seconds.value_or(0);
    plan.micro_batches.push_back(*std::move(planned));
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
