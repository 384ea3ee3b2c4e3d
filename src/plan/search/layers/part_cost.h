// What a part of a layer, or the rest of a model, takes on groups of ranks side by side: the one
// price of every planner, whatever the model.  Bytes are folds of the part's program, seconds a
// time model's.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "paradyse/plan/detail/costed_parts.h"
#include "paradyse/plan/detail/planning_task.h"
#include "paradyse/plan/detail/schedule.h"
#include "paradyse/plan/detail/time_model.h"
#include "paradyse/plan/strategy.h"
#include "src/plan/cost/node_cores.h"

namespace paradyse {

struct PartCost {
  double wall = 0;     // seconds of all ranks, in groups of the size, each with such a document
  double busy = 0;     // of one rank, alone on a core
  double forward = 0;  // of `wall`, a forward pass
  std::int64_t saved_bytes = 0;  // of the fullest rank, as the next
  std::int64_t transient_bytes = 0;
  std::int64_t input_bytes = 0;  // of what it reads and does not leave on the host
};

// Of a part and of those that run after it: what it keeps is there while they run.
PartCost operator+(const PartCost& first, const PartCost& next);
// Its seconds, corrected: bytes are counted.
PartCost operator*(PartCost cost, double factor);
// Of a layer that is recomputed as a whole: it keeps what it reads, and all that its parts keep
// while its backward pass runs.
PartCost whole_layer_cost(PartCost layer);

// Whether parts of this kind attend.
bool attends(const std::string& kind);

// What seconds go by where weights are gathered from the ranks of `domain`: where they are whole,
// what goes by the work if there is that, since others were measured with all that they gather.
std::shared_ptr<const TimeModel> seconds_of(const PlanningTask& task, int domain);

// Of groups of so many ranks that fill the task's side by side; small ones lie inside a node.
std::vector<Seat> seats_side_by_side(int group, const PlanningTask& task);

// The cores that the task's ranks share.
NodeCores node_cores(const PlanningTask& task);
// The machine of a group with these seats: its cores are those of the nodes that the group lies on.
MachineNumbers machine_of(const PlanningTask& task, const std::vector<Seat>& seats);

// [seat] How many times as long as the others a rank computes; empty: all are alike.
using Slowness = std::vector<double>;

// Of parts of one name on these ranks of a group, until all are done; copies to the host are not in
// it.  `level`: of what is recomputed, which a model that goes by the work does not ask.
PartSeconds seconds_together(
    const PlanningTask& task,
    const TimeModel& seconds,
    std::span<const ScheduledPart> parts,
    const std::vector<Seat>& seats,
    const Slowness& slowness = {},
    Recompute level = Recompute::none);

// Of a part of a layer that runs as `choice` says; of what is in no layer.
PartCost part_cost(
    const PlanningTask& task,
    const TimeModel& seconds,
    const ScheduledPart& part,
    const PartChoice& choice);
PartCost rest_cost(const PlanningTask& task, const TimeModel& seconds, const Timeline& parts);

}  // namespace paradyse
