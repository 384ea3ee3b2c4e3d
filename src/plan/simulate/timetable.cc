#include "src/plan/simulate/timetable.h"

#include <algorithm>
#include <stdexcept>

#include "paradyse/plan/detail/index.h"

namespace paradyse {
namespace {

class Recorder final : public Machine {
 public:
  explicit Recorder(std::vector<Instruction>& found) : found_(found) {}

  void prefetch(std::size_t part, int op) override { add(Instruction::Kind::prefetch, part, op); }
  void forward(std::size_t part, int op) override { add(Instruction::Kind::forward, part, op); }
  void begin_adjoint(std::size_t part, int op) override { add(Instruction::Kind::begin, part, op); }
  void adjoint(std::size_t part, int op) override { add(Instruction::Kind::adjoint, part, op); }
  void drop_value(std::size_t /*part*/, ValueId /*value*/) override {}
  void offload(std::size_t part, ValueId value) override {
    add(Instruction::Kind::offload, part, -1, value);
  }
  void fetch(std::size_t part, ValueId value) override {
    add(Instruction::Kind::fetch, part, -1, value);
  }
  void drop_gradients(std::size_t /*part*/, int /*op*/) override {}
  void hand_forward(std::size_t /*part*/, std::size_t /*end*/) override {}
  void hand_backward(std::size_t /*part*/) override {}

  void go_back() { back_ = true; }

 private:
  void add(Instruction::Kind kind, std::size_t part, int op, ValueId value = -1) {
    found_.push_back({.kind = kind, .part = part, .op = op, .value = value, .recompute = back_});
  }

  std::vector<Instruction>& found_;
  bool back_ = false;
};

Span::What what(const Instruction& instruction) {
  switch (instruction.kind) {
    case Instruction::Kind::prefetch:
      return Span::What::prefetch;
    case Instruction::Kind::forward:
      return instruction.recompute ? Span::What::recompute : Span::What::forward;
    case Instruction::Kind::begin:
    case Instruction::Kind::adjoint:
      return Span::What::backward;
    case Instruction::Kind::offload:
      return Span::What::offload;
    case Instruction::Kind::fetch:
      return Span::What::fetch;
  }
  throw std::logic_error("Timetable: unknown Instruction");
}

}  // namespace

std::vector<Instruction> instructions(const Timeline& timeline) {
  std::vector<Instruction> found;
  Recorder recorder(found);
  walk_forward(timeline, recorder);
  recorder.go_back();
  if (!timeline.empty() && !timeline.back().schedule().backward.empty()) {
    walk_backward(timeline, recorder);
  }
  return found;
}

Timetable::Timetable(
    const Cluster& cluster,
    const SimulationOptions& options,
    int domain_first,
    int domain,
    ExchangeCosts& exchange_costs)
    : cluster_(cluster),
      options_(options),
      domain_first_(domain_first),
      domain_(domain),
      clocks_(idx(domain)),
      exchange_costs_(exchange_costs) {}

std::vector<SimulatedRank> Timetable::ranks() const {
  std::vector<SimulatedRank> found;
  for (std::size_t r = 0; r < clocks_.size(); ++r) {
    found.push_back(clocks_[r].sums);
    found.back().as = domain_first_ + static_cast<int>(r);
    found.back().seconds = clocks_[r].compute;
  }
  return found;
}

void Timetable::run(
    std::size_t micro_batch,
    const std::vector<GroupRun>& groups,
    const std::vector<double>& speeds) {
  micro_batch_ = micro_batch;
  groups_ = groups.data();
  costs_.clear();
  for (const GroupRun& group : groups) {
    costs_.emplace_back().of_instruction.resize(group.instructions.size());
  }
  over_domain_.clear();
  of_groups_.clear();
  ready_.clear();
  for (const GroupRun& group : groups) {
    for (std::size_t r = 0; r < group.seats.ranks.size(); ++r) {
      const int rank = group.seats.ranks[r] - domain_first_;
      Clock& mine = clock(rank);
      mine.group = &group;
      mine.speed = speeds[idx(&group - groups.data())];
      mine.group_rank = r;
      mine.at = 0;
      mine.stage = 0;
      mine.domain_meetings = 0;
      mine.under_way.clear();
      mine.here = nullptr;
      ready_.push_back(rank);
    }
  }
  while (!ready_.empty()) {
    const int rank = ready_.back();
    ready_.pop_back();
    while (clock(rank).at < clock(rank).group->instructions.size() && advance(rank)) {
    }
  }
  for (std::size_t r = 0; r < clocks_.size(); ++r) {
    if (clocks_[r].group != nullptr && clocks_[r].at < clocks_[r].group->instructions.size()) {
      throw std::logic_error(
          "simulate: rank " + std::to_string(domain_first_ + static_cast<int>(r)) +
          " waits forever at instruction " + std::to_string(clocks_[r].at) + " of " +
          std::to_string(clocks_[r].group->instructions.size()) + " of micro-batch " +
          std::to_string(micro_batch));
    }
  }
}

const OpCost& Timetable::cost(const GroupRun& group, std::size_t at) {
  CostsOfOps& costs = costs_[idx(&group - groups_)];
  const OpCost*& known = costs.of_instruction[at];
  if (known != nullptr) {
    return *known;
  }
  const Instruction& instruction = group.instructions[at];
  const ScheduledPart& part = group.timeline[instruction.part];
  const bool adjoint = instruction.goes_back();
  std::unique_ptr<const OpCost>& found = costs.of_op[{part.body.get(), {instruction.op, adjoint}}];
  if (found == nullptr) {
    found = std::make_unique<OpCost>(op_cost(
        part.program(),
        part.program().ops[idx(instruction.op)],
        adjoint ? Phase::adjoint : Phase::forward,
        group.seats,
        cluster_,
        options_.precision,
        exchange_costs_));
  }
  known = found.get();
  return *known;
}

// Its communication lane is busy with what others have not come for yet.
bool Timetable::waits_for_others(int rank) {
  for (const auto& [op, meeting] : clock(rank).under_way) {
    if (meeting != nullptr && !meeting->over) {
      meeting->waiting.push_back(rank);
      return true;
    }
  }
  return false;
}

// The rank's instruction exchanges something with others, or is a ring.
bool Timetable::meets(int rank) {
  const Clock& mine = clock(rank);
  const OpCost& costs = cost(*mine.group, mine.at);
  const Instruction& instruction = mine.group->instructions[mine.at];
  const Op& op = mine.group->timeline[instruction.part].program().ops[idx(instruction.op)];
  const bool domain_wide = traits(op.kind).meets == OpTraits::Meets::domain &&
                           costs.traffic[mine.group_rank].traffic.collectives > 0;
  return domain_wide || !costs.met.meetings.empty();
}

// To where the rank's instruction meets others; `wait`: it goes on when that is over.
Timetable::JointOp* Timetable::come(int rank, bool wait) {
  const Clock& mine = clock(rank);
  const Instruction& instruction = mine.group->instructions[mine.at];
  const OpCost& costs = cost(*mine.group, mine.at);
  const Op& op = mine.group->timeline[instruction.part].program().ops[idx(instruction.op)];
  JointOp* meeting = nullptr;
  double seconds = costs.met.domain_seconds;
  int needed = domain_;
  if (traits(op.kind).meets == OpTraits::Meets::domain) {
    if (mine.domain_meetings == over_domain_.size()) {
      over_domain_.push_back(std::make_unique<JointOp>());
    }
    meeting = over_domain_[clock(rank).domain_meetings++].get();
  } else {
    const int number = costs.met.meeting_of[mine.group_rank];
    meeting = &of_groups_[{mine.group, {mine.at, number}}];
    seconds = costs.met.seconds[idx(number)];
    needed = static_cast<int>(costs.met.meetings[idx(number)].size());
    if (!costs.hop_seconds.empty()) {
      meeting->ring = &costs;
      meeting->group = mine.group;
    }
  }
  const bool as_much = meeting->members.empty() || meeting->seconds == seconds;
  meeting->needed = needed;
  meeting->seconds = seconds;
  meeting->ready = std::max(meeting->ready, mine.compute);
  meeting->members.push_back(rank);
  meeting->instructions.push_back(&instruction);
  expect_same(rank, *meeting, as_much);
  if (static_cast<int>(meeting->members.size()) == needed) {
    finish(*meeting);
  } else if (wait) {
    meeting->waiting.push_back(rank);
  }
  return meeting;
}

// All of a meeting mean the same by it, and (`as_much`) exchange as much.
void Timetable::expect_same(int rank, const JointOp& meeting, bool as_much) const {
  const auto part_of = [&](int member, const Instruction& instruction) -> const ScheduledPart& {
    return clocks_[idx(member)].group->timeline[instruction.part];
  };
  const auto op_of = [&](int member, const Instruction& instruction) -> const Op& {
    return part_of(member, instruction).program().ops[idx(instruction.op)];
  };
  const int other = meeting.members.front();
  const Instruction& mine = *meeting.instructions.back();
  const Instruction& theirs = *meeting.instructions.front();
  // Other groups may reshard elsewhere: parts are counted without that.
  if (as_much && part_of(rank, mine).weights == part_of(other, theirs).weights &&
      mine.goes_back() == theirs.goes_back() &&
      op_of(rank, mine).kind == op_of(other, theirs).kind) {
    return;
  }
  const auto text = [&](int member, const Instruction& instruction) {
    return to_string(op_of(member, instruction).kind) +
           (instruction.goes_back() ? " backward" : " forward") + " of " +
           part_of(member, instruction).program().part + ", layer " +
           std::to_string(part_of(member, instruction).layer);
  };
  throw std::invalid_argument(
      "simulate: micro-batch " + std::to_string(micro_batch_) + ": rank " +
      std::to_string(domain_first_ + rank) + " enters " + text(rank, mine) + ", rank " +
      std::to_string(domain_first_ + other) + " for " + text(other, theirs) +
      (as_much ? "" : ", which take different times") +
      ": the groups of a sharding group (weight_domain) must call the same collectives; see plan "
      "check --model");
}

void Timetable::finish(JointOp& meeting) {
  if (meeting.ring != nullptr) {
    finish_ring(meeting);
  } else {
    double begin = meeting.ready;
    for (const int rank : meeting.members) {
      begin = std::max(begin, clock(rank).communication);
    }
    meeting.end = begin + meeting.seconds;
    for (std::size_t i = 0; i < meeting.members.size(); ++i) {
      exchange(meeting.members[i], begin, meeting.end, *meeting.instructions[i]);
    }
  }
  meeting.over = true;
  ready_.insert(ready_.end(), meeting.waiting.begin(), meeting.waiting.end());
  meeting.waiting.clear();
}

void Timetable::finish_ring(JointOp& meeting) {
  const GroupRun& group = *meeting.group;
  std::vector<int> order = meeting.members;  // by number: each hands on to the next
  std::ranges::sort(order);
  std::vector<RingSeat> seats;
  for (std::size_t i = 0; i < order.size(); ++i) {
    const std::size_t mine = clock(order[i]).group_rank;
    const std::size_t next = clock(order[(i + 1) % order.size()]).group_rank;
    seats.push_back(
        {.rank = order[i],
         .group_rank = mine,
         .to_next = &cluster_.link(group.seats.ranks[mine], group.seats.ranks[next])});
  }
  const Instruction& instruction = *meeting.instructions.front();
  for (int round = 0; round < meeting.ring->met.ring.rounds; ++round) {
    ring_round(seats, *meeting.ring, instruction);
  }
}

// All hand a block on, that of the rank `behind` places before them.  Post: `shifted_` says when
// each has handed on its own and received another.
void Timetable::shift(
    const std::vector<RingSeat>& seats,
    const RingBlocks& ring,
    const std::vector<std::int64_t>& bytes,
    std::size_t behind,
    const Instruction& instruction) {
  const std::size_t p = seats.size();
  shifts_.resize(p);
  shifted_.resize(p);
  for (std::size_t i = 0; i < p; ++i) {
    const Clock& from = clock(seats[i].rank);
    const Clock& to = clock(seats[i + 1 < p ? i + 1 : 0].rank);
    const std::size_t owner = i >= behind ? i - behind : i + p - behind;
    auto& [begin, end] = shifts_[i];
    begin = std::max(
        std::max(from.compute, to.compute), std::max(from.communication, to.communication));
    end = begin + ring.shift_seconds(
                      *seats[i].to_next, seats[i].group_rank, bytes[seats[owner].group_rank]);
  }
  for (std::size_t i = 0; i < p; ++i) {
    const auto& mine = shifts_[i];
    const auto& before = shifts_[i > 0 ? i - 1 : p - 1];
    shifted_[i] = std::max(mine.second, before.second);
    exchange(seats[i].rank, std::min(mine.first, before.first), shifted_[i], instruction);
  }
}

// Once round the ring.  At each hop a rank attends with the block that is here while it hands it on
// and receives the next one; going back, the sums of gradients of the block before go on first, and
// in the end they go home.
void Timetable::ring_round(
    const std::vector<RingSeat>& seats, const OpCost& cost, const Instruction& instruction) {
  const bool adjoint = instruction.goes_back();
  const std::size_t p = seats.size();
  const RingBlocks& ring = cost.met.ring;
  const auto wait_for_shift = [&] {
    for (std::size_t i = 0; i < p; ++i) {
      wait_until(seats[i].rank, shifted_[i]);
    }
  };
  for (std::size_t hop = 0; hop < p; ++hop) {
    if (adjoint && hop > 1) {
      shift(seats, ring, ring.sums_bytes, hop - 1, instruction);
      wait_for_shift();
    }
    if (hop + 1 < p) {
      shift(seats, ring, ring.handed_on(hop), hop, instruction);
    }
    for (const RingSeat& seat : seats) {
      compute(seat.rank, cost.hop_seconds[seat.group_rank][hop] / ring.rounds, instruction);
    }
    if (hop + 1 < p) {
      wait_for_shift();
    }
  }
  if (adjoint && p > 1) {
    shift(seats, ring, ring.sums_bytes, p - 1, instruction);
    wait_for_shift();
  }
}

void Timetable::send(int rank, const OpCost& cost) {
  Clock& mine = clock(rank);
  const OpTraffic& sent = cost.traffic[mine.group_rank];
  mine.sums.traffic += sent.traffic;
  for (const auto& [node, bytes] : sent.bytes_to_node) {
    mine.sums.bytes_to_node[node] += bytes;
  }
}

void Timetable::compute(int rank, double of_device, const Instruction& instruction) {
  Clock& mine = clock(rank);
  const double seconds = of_device / mine.speed;
  tell(rank, Lane::compute, mine.compute, mine.compute + seconds, instruction);
  mine.compute += seconds;
  mine.sums.compute_seconds += seconds;
}

void Timetable::exchange(int rank, double begin, double end, const Instruction& instruction) {
  Clock& mine = clock(rank);
  tell(rank, Lane::communication, begin, end, instruction);
  mine.communication = end;
  mine.sums.communication_seconds += end - begin;
  if (end > begin) {
    mine.exchanges.emplace_back(begin, end);
  }
}

// Post: the compute lane is free at `time` or later; what it waited is exposed while the other
// lane was busy, else idle.
void Timetable::wait_until(int rank, double time) {
  Clock& mine = clock(rank);
  if (time <= mine.compute) {
    return;
  }
  double busy = 0;
  for (const auto& [begin, end] : mine.exchanges) {
    busy += std::max(0.0, std::min(end, time) - std::max(begin, mine.compute));
  }
  mine.sums.exposed_seconds += busy;
  mine.sums.idle_seconds += time - mine.compute - busy;
  mine.compute = time;
  std::erase_if(mine.exchanges, [&](const auto& one) { return one.second <= time; });
}

void Timetable::done(int rank) {
  Clock& mine = clock(rank);
  if (options_.observer.memory && mine.group->memory[mine.group_rank] != nullptr) {
    const MemoryTrail& trail = *mine.group->memory[mine.group_rank];
    tell_memory(rank, mine.began, trail.highest[mine.at]);
    tell_memory(rank, mine.compute, trail.after[mine.at]);
  }
  ++mine.at;
  mine.stage = 0;
  mine.here = nullptr;
}

// A prefetch, or an adjoint's beginning: what is sent travels on, and nobody waits.
bool Timetable::begin(int rank) {
  if (waits_for_others(rank)) {
    return false;
  }
  Clock& mine = clock(rank);
  const Instruction& instruction = mine.group->instructions[mine.at];
  const OpCost& costs = cost(*mine.group, mine.at);
  const Op& op = mine.group->timeline[instruction.part].program().ops[idx(instruction.op)];
  const OpTraits& kind = traits(op.kind);
  send(rank, costs);
  if (instruction.goes_back()) {
    mine.sums.model_flops += costs.work[mine.group_rank].matmul_flops;
  }
  if (instruction.goes_back() || !kind.receives_first) {
    compute(
        rank,
        costs.compute_seconds[mine.group_rank] * (kind.operands_first ? 0.5 : 1),
        instruction);
  }
  mine.under_way[{instruction.part, instruction.op}] =
      meets(rank) ? come(rank, /*wait=*/false) : nullptr;
  done(rank);
  return true;
}

bool Timetable::advance(int rank) {
  using Kind = Instruction::Kind;
  Clock& mine = clock(rank);
  const GroupRun& group = *mine.group;
  const Instruction& instruction = group.instructions[mine.at];
  const ScheduledPart& part = group.timeline[instruction.part];
  if (mine.stage == 0) {
    mine.began = mine.compute;
  }

  if (instruction.kind == Kind::offload || instruction.kind == Kind::fetch) {
    if (waits_for_others(rank)) {
      return false;
    }
    const int world_rank = domain_first_ + rank;
    const std::int64_t count = bytes(
        part.program(), instruction.value, group.seats.seat(mine.group_rank), options_.precision);
    const double begin = std::max(mine.compute, mine.communication);
    const double end =
        begin + static_cast<double>(count) / cluster_.device(world_rank).host_bytes_per_second;
    exchange(rank, begin, end, instruction);
    wait_until(rank, end);
    done(rank);
    return true;
  }

  if (instruction.kind == Kind::prefetch || instruction.kind == Kind::begin) {
    return begin(rank);
  }
  const Op& op = part.program().ops[idx(instruction.op)];
  const OpCost& costs = cost(group, mine.at);
  const bool adjoint = instruction.kind == Kind::adjoint;
  const OpTraits& kind = traits(op.kind);
  // All else is made before it is sent.
  const bool compute_last = kind.receives_first && !adjoint;
  const auto compute_now = [&] {
    compute(rank, costs.compute_seconds[mine.group_rank], instruction);
  };
  if (const auto asked = mine.under_way.find({instruction.part, instruction.op});
      asked != mine.under_way.end()) {
    if (JointOp* meeting = asked->second; meeting != nullptr) {
      if (!meeting->over) {
        meeting->waiting.push_back(rank);
        return false;
      }
      wait_until(rank, meeting->end);
    }
    mine.under_way.erase(asked);
    if (kind.operands_first) {
      compute(rank, costs.compute_seconds[mine.group_rank] * 0.5, instruction);
    } else if (compute_last) {
      compute_now();
    }
    done(rank);
    return true;
  }

  if (mine.stage == 0) {
    const Work& work = costs.work[mine.group_rank];
    send(rank, costs);
    if (!instruction.recompute || adjoint) {
      mine.sums.model_flops +=
          work.matmul_flops +
          (adjoint ? 0.0 : (options_.training ? 3.0 : 1.0) * work.attention_flops);
    }
    if (!compute_last && costs.hop_seconds.empty()) {
      compute_now();
    }
    mine.stage = 1;
  }
  if (mine.stage == 1) {
    if (!meets(rank)) {
      if (compute_last && costs.hop_seconds.empty()) {
        compute_now();
      }
      done(rank);
      return true;
    }
    if (waits_for_others(rank)) {
      return false;
    }
    mine.stage = 2;
    mine.here = come(rank, /*wait=*/true);
    if (!mine.here->over) {
      return false;
    }
  }
  if (mine.here->ring == nullptr) {
    wait_until(rank, mine.here->end);
  }
  if (compute_last) {
    compute_now();
  }
  done(rank);
  return true;
}

void Timetable::tell(
    int rank, Lane lane, double begin, double end, const Instruction& instruction) const {
  if (!options_.observer.span || (lane == Lane::communication && begin == end)) {
    return;
  }
  const GroupRun& group = *clocks_[idx(rank)].group;
  const ScheduledPart& part = group.timeline[instruction.part];
  std::string name = part.program().part + " ";
  name += instruction.op >= 0 ? to_string(part.program().ops[idx(instruction.op)].kind)
                              : part.program().values[idx(instruction.value)].name;
  options_.observer.span(
      {.rank = domain_first_ + rank,
       .micro_batch = micro_batch_,
       .part = instruction.part,
       .op = instruction.op,
       .what = what(instruction),
       .lane = lane,
       .begin = begin,
       .end = end,
       .layer = part.layer,
       .name = std::move(name)});
}

void Timetable::tell_memory(int rank, double at, std::int64_t bytes) const {
  options_.observer.memory({.rank = domain_first_ + rank, .at = at, .bytes = bytes});
}

}  // namespace paradyse
