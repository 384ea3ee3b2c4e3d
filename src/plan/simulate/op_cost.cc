#include "src/plan/simulate/op_cost.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>

#include "paradyse/plan/detail/index.h"

namespace paradyse {
namespace {

bool is_ring(const Op& op) { return traits(op.kind).rings > 0; }

std::vector<int> ranks_of_domain(const GroupSeats& seats) {
  std::vector<int> ranks(idx(seats.domain));
  std::iota(ranks.begin(), ranks.end(), seats.domain_first);
  return ranks;
}

// Of the ranks of the weight domain, in all of the op's exchanges.
double domain_seconds(
    const std::vector<Exchange>& all, const GroupSeats& seats, ExchangeCosts& exchange_costs) {
  const std::vector<int> ranks = ranks_of_domain(seats);
  double sum = 0;
  for (const Exchange& exchange : all) {
    sum += exchange_costs.together(exchange, ranks);
  }
  return sum;
}

// [hop] What a rank attends with the block that it has, of `all` that the op computes.
std::vector<double> hop_seconds(const OpView& view, const Work& all, const DeviceClass& device) {
  std::vector<double> pairs;
  const int hops = ring_size(view.program, view.op);
  for (int hop = 0; hop < hops; ++hop) {
    double seen = 0;
    for (const AttentionBlock& b : ring_blocks(view.program, view.op, view.seat.group_rank, hop)) {
      seen += static_cast<double>(b.pairs(masks(view.program)));
    }
    pairs.push_back(seen);
  }
  const double sum = std::accumulate(pairs.begin(), pairs.end(), 0.0);
  std::vector<double> found;
  for (const double seen : pairs) {
    const double part = sum > 0 ? seen / sum : 0;
    found.push_back(seconds(
        {.attention_flops = all.attention_flops * part,
         .touched_bytes = all.touched_bytes * part,
         .operand_bytes = all.operand_bytes * part,
         .launches = seen > 0 ? 1 : 0},
        device,
        view.precision));
  }
  return found;
}

double sum_of(const std::vector<double>& numbers) {
  return std::accumulate(numbers.begin(), numbers.end(), 0.0);
}

// [group rank] How many hand on over the same link at once.
std::vector<int> sharing_of_links(
    const std::vector<std::vector<int>>& rings, const GroupSeats& seats, const Cluster& cluster) {
  std::vector<int> sharing(seats.ranks.size(), 1);
  if (!cluster.node_shares_link) {
    return sharing;
  }
  std::map<int, std::vector<int>> leaving;  // by node
  for (const std::vector<int>& ring : rings) {
    for (std::size_t i = 0; i < ring.size(); ++i) {
      const int node = cluster.node(seats.ranks[idx(ring[i])]);
      if (cluster.node(seats.ranks[idx(ring[(i + 1) % ring.size()])]) != node) {
        leaving[node].push_back(ring[i]);
      }
    }
  }
  for (const auto& [node, ranks] : leaving) {
    for (const int rank : ranks) {
      sharing[idx(rank)] = static_cast<int>(ranks.size());
    }
  }
  return sharing;
}

// The ranks of a ring meet: every `stride`-th of the group.
OpMeetings ring_meetings(
    const Program& program,
    const Op& op,
    Phase phase,
    const GroupSeats& seats,
    const Cluster& cluster,
    Precision precision) {
  OpMeetings met;
  met.ring.rounds = phase == Phase::forward ? traits(op.kind).rings : 1;
  met.meetings.resize(idx(op.stride));
  met.seconds.resize(met.meetings.size());
  for (std::size_t r = 0; r < seats.ranks.size(); ++r) {
    met.meeting_of.push_back(static_cast<int>(r) % op.stride);
    met.meetings[r % idx(op.stride)].push_back(static_cast<int>(r));
    const RingPass pass = ring_pass(program, op, static_cast<int>(r));
    const std::int64_t block =
        size(pass.rows) * local_extent(program, op.in[1], seats.seat(r)).cols;
    met.ring.block_bytes.push_back(block * precision.activation);
    met.ring.hops.push_back(pass.hops);
    met.ring.sums_bytes.push_back(block * precision.statistic);
  }
  met.ring.sharing = sharing_of_links(met.meetings, seats, cluster);
  return met;
}

}  // namespace

double seconds(const Work& work, const DeviceClass& device, Precision precision) {
  const double peak =
      precision.activation <= 2 ? device.matmul_flops_per_second : device.float32_flops_per_second;
  const double arithmetic = work.matmul_flops / (peak * device.matmul_fraction) +
                            work.attention_flops / (peak * device.attention_fraction);
  const double operands = work.operand_bytes / device.memory_bytes_per_second;
  // passes of their own: scores that are written and read again wait for no product
  const double touched = work.touched_bytes / device.memory_bytes_per_second;
  return std::max(arithmetic, operands) + touched +
         static_cast<double>(work.launches) * device.launch_seconds;
}

double compute_seconds(const OpView& view, const DeviceClass& device) {
  const Work all = work(view);
  return is_ring(view.op) ? sum_of(hop_seconds(view, all, device))
                          : seconds(all, device, view.precision);
}

OpMeetings op_meetings(
    const Program& program,
    const Op& op,
    Phase phase,
    const GroupSeats& seats,
    Precision precision,
    ExchangeCosts& exchange_costs) {
  if (is_ring(op)) {
    return ring_meetings(program, op, phase, seats, exchange_costs.cluster(), precision);
  }
  const std::vector<Exchange> all = exchanges({program, op, seats.seat(0), phase, precision});
  OpMeetings met;
  if (traits(op.kind).meets == OpTraits::Meets::domain) {
    met.domain_seconds = program.domain > 1 ? domain_seconds(all, seats, exchange_costs) : 0;
    return met;
  }
  if (all.size() > 1) {
    throw std::logic_error(
        "op_meetings: " + to_string(op.kind) + " has " + std::to_string(all.size()) +
        " exchanges inside its group; one is played");
  }
  for (const Exchange& exchange : all) {
    ExchangeCost found = exchange_costs.cost(exchange, seats.ranks);
    met.meetings = std::move(found.meetings);
    met.meeting_of = std::move(found.meeting_of);
    met.seconds = std::move(found.seconds);
  }
  return met;
}

std::vector<OpTraffic> op_traffic(
    const Program& program,
    const Op& op,
    Phase phase,
    const GroupSeats& seats,
    const Cluster& cluster,
    Precision precision,
    ExchangeCosts& exchange_costs) {
  std::vector<OpTraffic> all(seats.ranks.size());
  if (is_ring(op)) {  // all goes to the next
    for (std::size_t r = 0; r < all.size(); ++r) {
      const std::size_t next = r + idx(op.stride);
      all[r].traffic = traffic({program, op, seats.seat(r), phase, precision});
      all[r].bytes_to_node.emplace_back(
          cluster.node(seats.ranks[next < all.size() ? next : r % idx(op.stride)]),
          all[r].traffic.bytes);
    }
    return all;
  }
  const bool over_domain = traits(op.kind).meets == OpTraits::Meets::domain;
  if (over_domain && program.domain == 1) {
    return all;  // nobody is met
  }
  const std::vector<int> ranks = over_domain ? ranks_of_domain(seats) : seats.ranks;
  for (const Exchange& exchange : exchanges({program, op, seats.seat(0), phase, precision})) {
    const std::vector<SentByNode> sent = exchange_costs.sent(exchange, ranks);
    for (std::size_t r = 0; r < all.size(); ++r) {
      const Seat seat = seats.seat(r);
      const SentByNode& mine =
          sent[idx(over_domain ? place_in_domain(program, seat) : seat.group_rank)];
      all[r].traffic +=
          {.bytes = mine.elements * exchange.element_bytes,
           .messages = mine.messages,
           .collectives = 1};
      for (const auto& [node, elements] : mine.to_node) {
        all[r].bytes_to_node.emplace_back(node, elements * exchange.element_bytes);
      }
    }
  }
  return all;
}

OpCost op_cost(
    const Program& program,
    const Op& op,
    Phase phase,
    const GroupSeats& seats,
    const Cluster& cluster,
    Precision precision,
    ExchangeCosts& exchange_costs) {
  OpCost cost;
  cost.traffic = op_traffic(program, op, phase, seats, cluster, precision, exchange_costs);
  for (std::size_t r = 0; r < seats.ranks.size(); ++r) {
    const OpView view{program, op, seats.seat(r), phase, precision};
    const DeviceClass& device = cluster.device(seats.ranks[r]);
    cost.work.push_back(work(view));
    if (is_ring(op)) {
      cost.hop_seconds.push_back(hop_seconds(view, cost.work.back(), device));
      cost.compute_seconds.push_back(sum_of(cost.hop_seconds.back()));
    } else {
      cost.compute_seconds.push_back(seconds(cost.work.back(), device, precision));
    }
  }
  cost.met = op_meetings(program, op, phase, seats, precision, exchange_costs);
  return cost;
}

}  // namespace paradyse
