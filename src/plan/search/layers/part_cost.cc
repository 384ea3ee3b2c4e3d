#include "src/plan/search/layers/part_cost.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

#include "paradyse/plan/cost.h"
#include "paradyse/plan/detail/index.h"

namespace paradyse {
namespace {

// What a rank computes itself.
constexpr std::array kComputed = {
    Amounts::matmul_flops, Amounts::attention_flops, Amounts::touched_bytes, Amounts::calls};

void slow_down(PartWork& work, double times) {
  for (Amounts& phase : work.phases) {
    for (const Amounts::Of amount : kComputed) {
      phase.values[amount] *= times;
    }
  }
}

PartCost seconds_alone(
    const PlanningTask& task,
    const TimeModel& seconds,
    const Timeline& parts,
    const std::vector<Seat>& seats,
    Recompute level) {
  const PartSeconds found = seconds_together(task, seconds, parts, seats, {}, level);
  PartCost cost{
      .wall =
          found.total() + copying_seconds(parts, seats, task.precision, machine_of(task, seats)),
      .forward = found.phases[idx(PartPhase::forward)]};
  const double sharing =
      std::max(1.0, static_cast<double>(task.ranks) / static_cast<double>(task.machine.cores));
  cost.busy = cost.wall / sharing;
  return cost;
}

}  // namespace

PartCost operator+(const PartCost& first, const PartCost& next) {
  return {
      .wall = first.wall + next.wall,
      .busy = first.busy + next.busy,
      .forward = first.forward + next.forward,
      .saved_bytes = first.saved_bytes + next.saved_bytes,
      .transient_bytes = std::max(first.transient_bytes - next.saved_bytes, next.transient_bytes),
      .input_bytes = first.input_bytes};
}

PartCost operator*(PartCost cost, double factor) {
  cost.wall *= factor;
  cost.busy *= factor;
  cost.forward *= factor;
  return cost;
}

PartCost whole_layer_cost(PartCost layer) {
  const double more = layer.wall > 0 ? layer.forward / layer.wall : 0;
  layer.busy *= 1 + more;
  layer.wall += layer.forward;
  layer.transient_bytes += layer.saved_bytes - layer.input_bytes;
  layer.saved_bytes = layer.input_bytes;
  return layer;
}

bool attends(const std::string& kind) {
  return kind == "attention" || kind == kAxialAttention || kind == kCrossAttention ||
         kind == kGlobalAttention;
}

std::shared_ptr<const TimeModel> seconds_of(const PlanningTask& task, int domain) {
  const bool whole = domain < task.domain();
  const auto& wanted = whole && task.by_work ? task.by_work : task.seconds;
  return wanted && (!whole || wanted->by_work()) ? wanted : closed_form(task.machine);
}

std::vector<Seat> seats_side_by_side(int group, const PlanningTask& task) {
  std::vector<Seat> seats;
  seats.reserve(idx(task.ranks));
  for (int rank = 0; rank < task.ranks; ++rank) {
    seats.push_back(
        {.group_rank = rank % group,
         .domain_rank = rank % task.domain(),
         .across_nodes = group > task.on_a_node()});
  }
  return seats;
}

NodeCores node_cores(const PlanningTask& task) {
  return {.cores = task.machine.cores, .ranks = task.ranks, .ranks_per_node = task.on_a_node()};
}

MachineNumbers machine_of(const PlanningTask& task, const std::vector<Seat>& seats) {
  MachineNumbers machine = task.machine;
  machine.cores = node_cores(task).of_group(
      static_cast<int>(seats.size()), std::ranges::any_of(seats, &Seat::across_nodes));
  return machine;
}

namespace {

// The first of the seats of whom a part asks the same: of weights that are whole it asks no place
// in a sharding group.
std::size_t first_like(const std::vector<Seat>& seats, std::size_t seat, const Program& program) {
  const Seat& one = seats[seat];
  const auto alike = [&](const Seat& other) {
    return one.group_rank == other.group_rank && one.across_nodes == other.across_nodes &&
           (program.domain == 1 || one.domain_rank == other.domain_rank);
  };
  return idx(std::ranges::find_if(seats, alike) - seats.begin());
}

}  // namespace

PartSeconds seconds_together(
    const PlanningTask& task,
    const TimeModel& seconds,
    std::span<const ScheduledPart> parts,
    const std::vector<Seat>& seats,
    const Slowness& slowness,
    Recompute level) {
  const Program& program = parts.front().program();
  const std::vector<std::int64_t>& lengths = program.documents.lengths;
  CostedPart costed = costed_part(parts.front());
  PartQuestion question{
      .part = std::move(costed.part),
      .strategy = std::move(costed.strategy),
      .recompute = level,
      .ranks = program.ranks(),
      .length = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0})};
  if (question.part == kMoves && !task.model.of_samples()) {
    question.part = kRest;  // costs of language models know no moves
  }
  std::vector<PartWork> works;
  works.reserve(seats.size());
  for (std::size_t i = 0; i < seats.size(); ++i) {
    const std::size_t like = first_like(seats, i, program);
    PartWork& work = works.emplace_back(like < i ? works[like] : PartWork{});
    for (const ScheduledPart& part : like < i ? std::span<const ScheduledPart>() : parts) {
      work += part_work(part, seats[i], task.precision);
    }
  }
  for (std::size_t i = 0; i < slowness.size(); ++i) {
    slow_down(works[i], slowness[i]);
  }
  question.work = together(works, machine_of(task, seats).cores);
  return seconds.seconds(question);
}

PartCost part_cost(
    const PlanningTask& task,
    const TimeModel& seconds,
    const ScheduledPart& part,
    const PartChoice& choice) {
  const Program& program = part.program();
  const std::vector<Seat> seats = seats_side_by_side(program.ranks(), task);
  PartCost cost = seconds_alone(task, seconds, linked({part}), seats, choice.recompute);
  for (std::size_t i = 0; i < seats.size(); ++i) {
    if (first_like(seats, i, program) < i) {
      continue;
    }
    const Seat& seat = seats[i];
    for (const Port& port : program.reads) {
      const std::int64_t read = bytes(program, port.value, seat, task.precision);
      cost.input_bytes = std::max(cost.input_bytes, choice.offload ? 0 : read);
    }
    const PartFootprint held = part_footprint(part, seat, task.precision);
    cost.saved_bytes = std::max(cost.saved_bytes, held.saved_bytes);
    cost.transient_bytes = std::max(cost.transient_bytes, held.transient_bytes);
  }
  return cost;
}

PartCost rest_cost(const PlanningTask& task, const TimeModel& seconds, const Timeline& parts) {
  const std::vector<Seat> seats = seats_side_by_side(parts.front().program().ranks(), task);
  PartCost cost = seconds_alone(task, seconds, parts, seats, Recompute::none);
  for (const Seat& seat : seats) {
    const Footprint held = footprint(parts, seat, task.precision, 0);
    cost.saved_bytes = std::max(cost.saved_bytes, held.saved_bytes);
    cost.transient_bytes = std::max(cost.transient_bytes, held.peak_bytes - held.saved_bytes);
  }
  return cost;
}

}  // namespace paradyse
