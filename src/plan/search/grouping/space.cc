#include "src/plan/search/grouping/space.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "src/plan/plan/programs.h"

namespace paradyse {

std::optional<PlanMicroBatch> side_by_side(
    const GroupingTask& task,
    const Grouping::MicroBatch& micro_batch,
    const ProgramOfGroup& of_group,
    const std::function<std::optional<std::string>()>& idle) {
  const std::optional<std::vector<int>> first = first_ranks(task, micro_batch);
  if (!first) {
    return std::nullopt;
  }
  PlanMicroBatch planned;
  std::vector<bool> busy(idx(task.ranks));
  for (std::size_t g = 0; g < micro_batch.size(); ++g) {
    std::optional<std::string> program = of_group(micro_batch[g]);
    if (!program) {
      return std::nullopt;
    }
    PlanGroup& one = planned.groups.emplace_back();
    const int size = task.types[idx(micro_batch[g].type)].ranks;
    one.ranks.resize(idx(size));
    std::iota(one.ranks.begin(), one.ranks.end(), (*first)[g]);
    std::fill_n(busy.begin() + (*first)[g], size, true);
    one.documents.assign(micro_batch[g].documents.begin(), micro_batch[g].documents.end());
    one.program = *std::move(program);
    one.predicted.seconds = group_seconds(task, micro_batch[g]);
  }
  std::optional<std::string> of_idle;
  for (int rank = 0; rank < task.ranks; ++rank) {
    if (busy[idx(rank)]) {
      continue;
    }
    if (!of_idle) {
      of_idle = idle();
    }
    if (!of_idle) {
      return std::nullopt;
    }
    planned.groups.push_back(
        {.ranks = {rank}, .documents = {}, .program = *of_idle, .predicted = {}});
  }
  std::ranges::sort(planned.groups, {}, [](const PlanGroup& group) { return group.ranks.front(); });
  planned.predicted.seconds = task.micro_batch(slowest_group(task, micro_batch));
  return planned;
}

const LayerRuns& GroupSpace::program(const Grouping::Group& group) const {
  const std::size_t type = idx(group.type);
  return programs[of_samples() ? items[idx(group.documents.front())].programs[type] : type];
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
  plan.lengths = space.of_samples() ? space.rows : task.lengths;
  plan.planner_space = space.name;
  double total = space.batch_seconds;
  for (const Grouping::MicroBatch& micro_batch : grouping.micro_batches) {
    std::optional<PlanMicroBatch> planned = side_by_side(
        task,
        micro_batch,
        [&](const Grouping::Group& group) {
          return std::optional(use(plan, space.program(group)));
        },
        [&] { return std::optional(use(plan, space.idle)); });
    if (!planned) {
      throw std::logic_error("a planner's groups do not fit side by side");
    }
    for (PlanGroup& group : planned->groups) {
      if (space.of_samples() && !group.documents.empty()) {
        const SampleItem& item = space.items[idx(group.documents.front())];
        group.documents = item.samples;
        group.dims = item.dims;
      }
    }
    total += planned->predicted.seconds.value_or(0);
    plan.micro_batches.push_back(*std::move(planned));
  }
  plan.predicted.seconds = total;
  say_dims_once(plan);
  return plan;
}

void say_dims_once(Plan& plan) {
  const DimSizes* dims = nullptr;
  for (const PlanMicroBatch& micro : plan.micro_batches) {
    for (const PlanGroup& group : micro.groups) {
      if (group.documents.empty()) {
        continue;
      }
      if (dims != nullptr && *dims != group.dims) {
        return;
      }
      dims = &group.dims;
    }
  }
  if (dims == nullptr) {
    return;
  }
  plan.dims = *dims;
  for (PlanMicroBatch& micro : plan.micro_batches) {
    for (PlanGroup& group : micro.groups) {
      group.dims.clear();
    }
  }
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
