#include "src/plan/search/batch/torch_groups.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include <fmt/format.h>

#include "src/plan/base/rank_limits.h"
#include "src/plan/base/text_match.h"
#include "src/plan/plan/size_limits.h"
#include "src/plan/search/batch/micro_batches.h"

namespace paradyse {
namespace {

LayerRuns program_of(std::int64_t layers, int ranks, bool again) {
  LayerRuns program =
      uniform_program(layers, ranks == 1 ? "DataZ" : "UlyssesZ", "gather", Recompute::none);
  for (PartChoice& part : program.front().choice) {
    part.with_layer = again;
  }
  return program;
}

void expect_sound(const TorchRequest& request) {
  if (request.ranks < 1 || request.ranks > kMostPlannedRanks || request.layers < 1 ||
      request.node < 0) {
    throw std::invalid_argument(fmt::format(
        "{} ranks, {} layers, {} ranks of a node: accepted are 1 to {} ranks, at least 1 layer, "
        "and no negative number",
        request.ranks,
        request.layers,
        request.node,
        kMostPlannedRanks));
  }
  if (request.weight_domain < 0 ||
      (request.weight_domain > 0 && request.ranks % request.weight_domain != 0)) {
    throw std::invalid_argument(fmt::format(
        "weights sharded over {} ranks: accepted is a divisor of {} ranks, or 0",
        request.weight_domain,
        request.ranks));
  }
  if (request.lengths.empty()) {
    throw std::invalid_argument("a batch needs at least one document");
  }
  for (const std::int64_t tokens : request.lengths) {
    if (tokens < 1 || tokens > kMostRows) {
      throw std::invalid_argument(
          fmt::format("a document of {} tokens: accepted are 1 to {}", tokens, kMostRows));
    }
  }
  for (const double seconds : {request.micro_batch_seconds, request.batch_seconds}) {
    if (!(seconds >= 0 && std::isfinite(seconds))) {
      throw std::invalid_argument(
          fmt::format("{} seconds of a micro-batch or batch: must be at least 0", seconds));
    }
  }
  for (const TorchGroupCost& group : request.groups) {
    expect_one_of("recompute", group.recompute, {"none", "layer"});
    if (request.weight_domain > 0 && group.ranks > request.weight_domain) {
      throw std::invalid_argument(fmt::format(
          "a group of {} ranks is larger than the {} over which weights are sharded",
          group.ranks,
          request.weight_domain));
    }
  }
}

GroupSpace space_of(const TorchRequest& request, const std::string& only) {
  const bool whole = request.weight_domain == 0;
  GroupSpace space{
      .name = "torch",
      .task =
          {.ranks = request.ranks,
           .lengths = request.lengths,
           .types = {},
           .seconds = {},
           .micro_batch_seconds = request.micro_batch_seconds,
           .node = request.node == 0 ? request.ranks : std::min(request.node, request.ranks)},
      .programs = {},
      .idle = program_of(request.layers, 1, only == "layer"),
      .batch_seconds = request.batch_seconds,
      .weight_domain = whole ? request.ranks : request.weight_domain,
      .model_name = request.model_name,
      .model_sha256 = request.model_sha256,
      .layers = request.layers,
      .cluster_name = {},
      .cluster_sha256 = {}};
  space.messages.reshard_after_forward = !whole;
  space.messages.reshard_after_backward = !whole;
  std::vector<const TorchGroupCost*> groups;
  for (const TorchGroupCost& group : request.groups) {
    if (only.empty() || group.recompute == only) {
      groups.push_back(&group);
    }
  }
  std::ranges::stable_sort(groups, {}, [](const TorchGroupCost* group) { return group->ranks; });
  for (const TorchGroupCost* group : groups) {
    const bool again = group->recompute == "layer";
    space.task.types.push_back(
        {.name = fmt::format("{} ranks{}", group->ranks, again ? ", layers recomputed" : ""),
         .ranks = group->ranks,
         .capacity = group->capacity,
         .fixed_seconds = group->fixed_seconds});
    space.task.seconds.insert(
        space.task.seconds.end(), group->seconds.begin(), group->seconds.end());
    space.programs.push_back(program_of(request.layers, group->ranks, again));
  }
  if (!groups.empty()) {
    check(space.task);
  }
  return space;
}

}  // namespace

std::vector<GroupSpace> torch_spaces(const TorchRequest& request) {
  expect_sound(request);
  if (request.groups.empty()) {
    throw std::invalid_argument("no kind of group: at least one is needed");
  }
  if (request.weight_domain == 0) {
    return {space_of(request, "")};
  }
  std::vector<GroupSpace> spaces;
  for (const char* level : {"none", "layer"}) {
    GroupSpace space = space_of(request, level);
    if (!space.task.types.empty()) {
      spaces.push_back(std::move(space));
    }
  }
  return spaces;
}

void without_meeting(PlannedBatch& planned, const GroupSpace& space) {
  if (!planned.plan) {
    return;
  }
  Plan& plan = *planned.plan;
  Plan moved = plan;
  if (spread_over_ranks(NodeCores::of_their_own(moved.ranks, space.task.node), moved)) {
    plan = std::move(moved);
  }
  planned.seconds = until_last_rank(plan) + space.batch_seconds;
  plan.predicted.seconds = planned.seconds;
  planned.optimal = false;  // of a batch whose groups meet
  planned.bound = area_bound(space.task);
  planned.bound.seconds += space.batch_seconds;
  plan.predicted.lower_bound_seconds = std::min(planned.bound.seconds, planned.seconds);
}

}  // namespace paradyse
