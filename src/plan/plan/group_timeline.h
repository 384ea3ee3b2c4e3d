// From a plan to what the ranks of a group run.  The run, the checker, predictions, the simulator
// and explanations ask here and nowhere else, so they speak of the same programs.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "paradyse/plan/plan.h"
#include "src/plan/strategy/built_parts.h"

namespace paradyse {

// What a group's programs are made from, beside the model: groups that are equal in it run the
// same.
struct GroupTask {
  LayerRuns layers;
  std::vector<std::int64_t> lengths;  // tokens of its documents
  int ranks = 1;
  std::vector<double> shares;  // as in PlanGroup
  std::vector<int> mesh = {};  // the same
  DimSizes dims = {};          // of its documents
  int weight_domain = 1;       // of those that gather weights: 1 where they are whole
  bool keep = true;            // else evaluation: nothing is saved, and dropout is off
  Messages messages = {};      // as in Plan
  Tiles tiles = {};            // the same

  friend bool operator==(const GroupTask&, const GroupTask&) = default;
};

// That of a group of the plan.  Throws std::out_of_range for a program or document that the plan
// has not got; problems() finds both with their place.
GroupTask group_task(const Plan& plan, const PlanGroup& group, bool keep);
// How its documents are cut over its ranks.
Documents packed(const GroupTask& task, bool causal);
// Its programs.  Throws std::invalid_argument like timeline().
Timeline timeline(const GroupTask& task, const Model& model);
// The same, of a model in the task's tiles; `built`: of groups that differ in layers alone.
Timeline timeline(const GroupTask& task, const Model& model, BuiltParts& built);

// Whether ranks from `first` to `last` are on several nodes of so many ranks.
inline bool across_nodes(int first, int last, int ranks_per_node) {
  return first / ranks_per_node != last / ranks_per_node;
}

// [rank of the group] Where its ranks sit.  0 `ranks_per_node`: all are on one.
std::vector<Seat> seats_of(const Plan& plan, const PlanGroup& group, int ranks_per_node = 0);

struct GroupTimeline {
  Timeline parts;
  std::vector<Seat> seats;  // [rank of the group]
};

// Both for a group of the plan.
GroupTimeline group_timeline(
    const Plan& plan, const PlanGroup& group, const Model& model, bool keep);

// Of the rank that needs most.
PredictedBytes fullest_rank(
    const Timeline& parts,
    const std::vector<Seat>& seats,
    const Model& model,
    int weight_domain,
    Precision precision,
    Keeps keeps,
    Messages messages = {});

// How messages of a plan may travel, the fastest and fullest first: gathered weights kept and
// beside work, beside work alone, neither.  Weights are kept only within a limit of `memory` bytes,
// 0: none, since a model may be larger than a rank; and not by a plan whose parts wait on the host.
std::vector<Messages> ways_of_messages(const Plan& plan, std::int64_t memory);

// Gives the plan the first of them with which it `fits()`; false: it has the last, and does not.
template <typename Fits>
bool let_messages_travel(Plan& plan, std::int64_t memory, Fits fits) {
  return std::ranges::any_of(ways_of_messages(plan, memory), [&](Messages messages) {
    plan.messages = messages;
    return fits();
  });
}
// With which every rank stays within `memory` bytes.
void let_messages_travel(
    Plan& plan, const Model& model, Precision precision, Keeps keeps, std::int64_t memory);

// Where world rank `rank` is in a micro-batch.  Throws std::invalid_argument where it is in no
// group.
struct RankPlace {
  std::size_t group = 0;  // index
  Seat seat;
};
RankPlace rank_place(const Plan& plan, const PlanMicroBatch& micro_batch, int rank);

// What that rank runs.
struct RankPart {
  Seat seat;
  Timeline timeline;
};
RankPart rank_part(
    const Plan& plan, const PlanMicroBatch& micro_batch, const Model& model, int rank, bool keep);

}  // namespace paradyse
