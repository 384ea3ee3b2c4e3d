#include "src/plan/plan/group_timeline.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

#include "paradyse/plan/detail/index.h"

namespace paradyse {
namespace {

Seat seat_of(const Plan& plan, const PlanGroup& group, std::size_t place) {
  return {
      .group_rank = static_cast<int>(place),
      .domain_rank = group.ranks[place] % plan.weight_domain};
}

}  // namespace

GroupTask group_task(const Plan& plan, const PlanGroup& group, bool keep) {
  GroupTask task{
      .layers = plan.programs.at(group.program),
      .lengths = {},
      .ranks = static_cast<int>(group.ranks.size()),
      .shares = group.shares,
      .mesh = group.mesh,
      .dims = dims_of(plan, group),
      .weight_domain = gathers_from(plan),
      .keep = keep,
      .messages = plan.messages,
      .tiles = plan.tiles};
  for (const std::int64_t document : group.documents) {
    task.lengths.push_back(plan.lengths.at(idx(document)));
  }
  return task;
}

Documents packed(const GroupTask& task, bool causal) {
  Documents documents = packed(task.lengths, task.ranks, causal, task.shares);
  documents.dims = task.dims;
  documents.mesh = task.mesh;
  return documents;
}

Timeline timeline(const GroupTask& task, const Model& model) {
  BuiltParts built;
  return timeline(task, task.tiles == model.tiles() ? model : with_tiles(model, task.tiles), built);
}

Timeline timeline(const GroupTask& task, const Model& model, BuiltParts& built) {
  return timeline(
      model,
      packed(task, model.causal),
      task.weight_domain,
      choices(task.layers),
      task.keep,
      task.messages,
      built);
}

GroupTimeline group_timeline(
    const Plan& plan, const PlanGroup& group, const Model& model, bool keep) {
  return {.parts = timeline(group_task(plan, group, keep), model), .seats = seats_of(plan, group)};
}

std::vector<Seat> seats_of(const Plan& plan, const PlanGroup& group, int ranks_per_node) {
  const int node = ranks_per_node == 0 ? plan.ranks : ranks_per_node;
  const bool across = across_nodes(group.ranks.front(), group.ranks.back(), node);  // they ascend
  std::vector<Seat> seats;
  seats.reserve(group.ranks.size());
  for (std::size_t place = 0; place < group.ranks.size(); ++place) {
    seats.push_back(seat_of(plan, group, place));
    seats.back().across_nodes = across;
  }
  return seats;
}

PredictedBytes fullest_rank(
    const Timeline& parts,
    const std::vector<Seat>& seats,
    const Model& model,
    int weight_domain,
    Precision precision,
    Keeps keeps,
    Messages messages) {
  PredictedBytes fullest;
  for (const Seat& seat : seats) {
    const std::int64_t held =
        static_bytes(model, weight_domain, seat.domain_rank, precision, keeps, messages);
    const Footprint foot = footprint(parts, seat, precision, held);
    if (foot.peak_bytes > fullest.total()) {
      fullest = {
          .static_bytes = held,
          .saved = foot.saved_bytes,
          .transient = foot.peak_bytes - held - foot.saved_bytes};
    }
  }
  return fullest;
}

std::vector<Messages> ways_of_messages(const Plan& plan, std::int64_t memory) {
  std::vector<Messages> ways = {{.overlap = true}, {}};
  const bool offloads = std::ranges::any_of(plan.programs, [](const auto& program) {
    return std::ranges::any_of(program.second, [](const LayerRun& run) {
      return std::ranges::any_of(run.choice, &PartChoice::offload);
    });
  });
  if (memory > 0 && !offloads) {
    ways.insert(ways.begin(), {.overlap = true, .reshard_after_forward = false});
  }
  return ways;
}

void let_messages_travel(
    Plan& plan, const Model& model, Precision precision, Keeps keeps, std::int64_t memory) {
  const auto fits = [&](const PlanGroup& group) {
    const GroupTimeline built = group_timeline(plan, group, model, /*keep=*/true);
    const PredictedBytes most =
        fullest_rank(built.parts, built.seats, model, plan.weight_domain, precision, keeps);
    return most.total() <= memory;
  };
  let_messages_travel(plan, memory, [&] {
    return memory == 0 || std::ranges::all_of(plan.micro_batches, [&](const auto& micro) {
             return std::ranges::all_of(micro.groups, fits);
           });
  });
}

RankPlace rank_place(const Plan& plan, const PlanMicroBatch& micro_batch, int rank) {
  for (std::size_t g = 0; g < micro_batch.groups.size(); ++g) {
    const PlanGroup& group = micro_batch.groups[g];
    const auto me = std::ranges::find(group.ranks, rank);
    if (me != group.ranks.end()) {
      const auto place = idx(me - group.ranks.begin());
      return {.group = g, .seat = seat_of(plan, group, place)};
    }
  }
  throw std::invalid_argument(
      "plan: rank " + std::to_string(rank) + " is in no group of a micro-batch");
}

RankPart rank_part(
    const Plan& plan, const PlanMicroBatch& micro_batch, const Model& model, int rank, bool keep) {
  const RankPlace place = rank_place(plan, micro_batch, rank);
  return {
      .seat = place.seat,
      .timeline = timeline(group_task(plan, micro_batch.groups[place.group], keep), model)};
}

}  // namespace paradyse
