#include "src/plan/simulate/op_cost.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <utility>

#include "paradyse/plan/index.h"

namespace paradyse {
namespace {

bool is_ring(const Op& op) { return traits(op.kind).rings > 0; }

const Link& slowest_link(const std::vector<int>& ranks, const Cluster& cluster) {
  const bool one_node = std::ranges::all_of(
      ranks, [&](int rank) { return cluster.node(rank) == cluster.node(ranks.front()); });
  return one_node ? cluster.inside_node : cluster.between_nodes;
}

// Who exchanges with whom, directly or by way of others.
class Meetings {
 public:
  explicit Meetings(std::size_t ranks) : parent_(ranks) {
    std::iota(parent_.begin(), parent_.end(), 0);
  }
  void join(int a, int b) { parent_[idx(find(a))] = find(b); }
  int find(int rank) {
    auto r = idx(rank);
    while (parent_[r] != static_cast<int>(r)) {
      parent_[r] = parent_[idx(parent_[r])];
      r = idx(parent_[r]);
    }
    return static_cast<int>(r);
  }

 private:
  std::vector<int> parent_;
};

// What passes a member of an exchange, and what passes its node.
struct Passing {
  double in = 0;        // all that it gets from others, or (sums) gives to them
  double out = 0;       // what others want of it, once however many want it
  double node_in = 0;   // of the first of a meeting on its node: what enters that, once
  double node_out = 0;  // what other nodes want of this one, once for all of them
};

// What is read of a source, and the node that wants it (by its first member).
struct Wanted {
  int source = 0;
  Region region = {};
  std::size_t node = 0;

  auto operator<=>(const Wanted&) const = default;
};

// [rank of the table]; `ranks`: their numbers in the cluster, `meetings`: who belongs together.
// What several want passes any link once, as in NCCL's rings and trees: one hands it to the next.
std::vector<Passing> passing(
    const Exchange& exchange,
    const std::vector<int>& ranks,
    const std::vector<int>& meetings,
    const Cluster& cluster) {
  std::vector<Passing> all(ranks.size());
  std::vector<std::size_t> node(ranks.size());  // [rank] the first of its meeting on its node
  std::map<std::pair<int, int>, std::size_t> first;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    node[r] = first.emplace(std::pair(meetings[r], cluster.node(ranks[r])), r).first->second;
  }
  std::vector<Wanted> wanted;
  for (const Box& box : exchange.copy->table().boxes) {
    if (box.source != box.destination) {
      const auto to = idx(box.destination);
      all[to].in += static_cast<double>(box.elements() * exchange.element_bytes);
      wanted.push_back({box.source, source_region(box), node[to]});
    }
  }
  std::ranges::sort(wanted);
  wanted.erase(std::ranges::unique(wanted).begin(), wanted.end());
  const Wanted* last = nullptr;  // of the same elements
  bool left = false;             // its node
  for (const Wanted& one : wanted) {
    const auto from = idx(one.source);
    const auto bytes = static_cast<double>(one.region.elements() * exchange.element_bytes);
    const bool fresh = last == nullptr || last->source != one.source || last->region != one.region;
    last = &one;
    left = left && !fresh;
    all[from].out += fresh ? bytes : 0;
    if (one.node != node[from]) {
      all[one.node].node_in += bytes;
      all[node[from]].node_out += left ? 0 : bytes;
      left = true;
    }
  }
  return all;
}

// Seconds on the wire until all `members` (of the table) have what they want.  The links of a
// node's members to other nodes work together.
double wire_seconds(
    const std::vector<Passing>& all,
    const std::vector<int>& members,
    const std::vector<int>& ranks,
    const Cluster& cluster) {
  std::map<int, int> members_of_node;
  for (const int r : members) {
    ++members_of_node[cluster.node(ranks[idx(r)])];
  }
  std::map<int, double> through_node;
  double longest = 0;
  for (const int r : members) {
    const Passing& one = all[idx(r)];
    const int node = cluster.node(ranks[idx(r)]);
    if (members_of_node[node] > 1) {
      longest = std::max(longest, std::max(one.in, one.out) / cluster.inside_node.bytes_per_second);
    }
    through_node[node] += std::max(one.node_in, one.node_out);
  }
  for (const auto& [node, bytes] : through_node) {
    longest =
        std::max(longest, bytes / (cluster.between_nodes.bytes_per_second * members_of_node[node]));
  }
  return longest;
}

double domain_seconds(
    const std::vector<Exchange>& exchanges, const GroupSeats& seats, const Cluster& cluster) {
  std::vector<int> ranks(idx(seats.domain));
  std::iota(ranks.begin(), ranks.end(), seats.domain_first);
  std::vector<int> members(ranks.size());
  std::iota(members.begin(), members.end(), 0);
  double sum = 0;
  for (const Exchange& exchange : exchanges) {
    const std::vector<Passing> all =
        passing(exchange, ranks, std::vector<int>(ranks.size(), 0), cluster);
    sum += collective_seconds(
        slowest_link(ranks, cluster), seats.domain, wire_seconds(all, members, ranks, cluster));
  }
  return sum;
}

void add_meetings(
    const Exchange& exchange, const GroupSeats& seats, const Cluster& cluster, OpCost& cost) {
  const std::size_t p = seats.ranks.size();
  Meetings joined(p);
  for (const Box& box : exchange.copy->table().boxes) {
    joined.join(box.source, box.destination);
  }
  std::vector<int> number(p, -1);  // [representative]
  for (std::size_t r = 0; r < p; ++r) {
    const auto root = idx(joined.find(static_cast<int>(r)));
    if (number[root] < 0) {
      number[root] = static_cast<int>(cost.meetings.size());
      cost.meetings.emplace_back();
    }
    cost.meeting_of.push_back(number[root]);
    cost.meetings[idx(number[root])].push_back(static_cast<int>(r));
  }
  const std::vector<Passing> all = passing(exchange, seats.ranks, cost.meeting_of, cluster);
  for (const std::vector<int>& members : cost.meetings) {
    std::vector<int> ranks;
    ranks.reserve(members.size());
    for (const int r : members) {
      ranks.push_back(seats.ranks[idx(r)]);
    }
    cost.meeting_seconds.push_back(collective_seconds(
        slowest_link(ranks, cluster),
        static_cast<int>(ranks.size()),
        wire_seconds(all, members, seats.ranks, cluster)));
  }
}

// What traffic() says, for all ranks in one pass over each table.
std::vector<Traffic> traffic_of_all(
    const Program& program,
    const Op& op,
    const GroupSeats& seats,
    Phase phase,
    Precision precision) {
  std::vector<Traffic> all(seats.ranks.size());
  if (is_ring(op)) {
    for (std::size_t r = 0; r < all.size(); ++r) {
      all[r] = traffic({program, op, seats.seat(r), phase, precision});
    }
    return all;
  }
  const bool over_domain = traits(op.kind).meets == OpTraits::Meets::domain;
  for (const Exchange& exchange : exchanges({program, op, seats.seat(0), phase, precision})) {
    const std::vector<Sent>& sent = exchange.copy->sent(exchange.transposed);
    for (std::size_t r = 0; r < all.size(); ++r) {
      const Seat seat = seats.seat(r);
      const Sent& mine = sent[idx(over_domain ? seat.domain_rank : seat.group_rank)];
      all[r] +=
          {.bytes = mine.elements * exchange.element_bytes,
           .messages = mine.messages,
           .collectives = 1};
    }
  }
  return all;
}

// The ranks of a ring meet; `cost.work` says what they do in all.
void add_ring(
    const Program& program,
    const Op& op,
    Phase phase,
    const GroupSeats& seats,
    const Cluster& cluster,
    Precision precision,
    OpCost& cost) {
  const std::size_t p = seats.ranks.size();
  const int hops = ring_size(program, op);
  cost.ring.rounds = phase == Phase::forward ? traits(op.kind).rings : 1;
  cost.meetings.resize(idx(op.stride));
  cost.meeting_seconds.resize(cost.meetings.size());
  for (std::size_t r = 0; r < p; ++r) {
    cost.meeting_of.push_back(static_cast<int>(r) % op.stride);
    cost.meetings[r % idx(op.stride)].push_back(static_cast<int>(r));
    const Seat seat = seats.seat(r);
    const DeviceClass& device = cluster.device(seats.ranks[r]);
    const std::int64_t block = local_extent(program, op.in[1], seat).elements();
    cost.ring.block_bytes.push_back(block * precision.activation);
    cost.ring.sums_bytes.push_back(block * precision.statistic);

    std::vector<double> pairs;
    for (int hop = 0; hop < hops; ++hop) {
      double seen = 0;
      for (const AttentionBlock& b : ring_blocks(program, op, seat.group_rank, hop)) {
        seen += static_cast<double>(b.pairs(program.documents.causal));
      }
      pairs.push_back(seen);
    }
    const double all = std::accumulate(pairs.begin(), pairs.end(), 0.0);
    const double touched = cost.work[r].touched_bytes + cost.work[r].operand_bytes;
    std::vector<double> hop_seconds;
    for (const double seen : pairs) {
      const double part = all > 0 ? seen / all : 0;
      hop_seconds.push_back(seconds(
          {.attention_flops = cost.work[r].attention_flops * part,
           .touched_bytes = touched * part,
           .launches = seen > 0 ? 1 : 0},
          device,
          precision));
    }
    cost.compute_seconds[r] = std::accumulate(hop_seconds.begin(), hop_seconds.end(), 0.0);
    cost.ring.hop_seconds.push_back(std::move(hop_seconds));
  }
}

}  // namespace

double seconds(const Work& work, const DeviceClass& device, Precision precision) {
  const double peak =
      precision.activation <= 2 ? device.matmul_flops_per_second : device.float32_flops_per_second;
  const double arithmetic = work.matmul_flops / (peak * device.matmul_fraction) +
                            work.attention_flops / (peak * device.attention_fraction);
  const double memory = (work.touched_bytes + work.operand_bytes) / device.memory_bytes_per_second;
  return std::max(arithmetic, memory) + static_cast<double>(work.launches) * device.launch_seconds;
}

double passing_seconds(const Link& link, std::int64_t bytes) {
  return bytes == 0 ? 0 : link.latency_seconds + static_cast<double>(bytes) / link.bytes_per_second;
}

double collective_seconds(const Link& slowest, int ranks, double wire_seconds) {
  return ranks < 2 ? 0 : wire_seconds + slowest.latency_seconds * std::ceil(std::log2(ranks));
}

OpCost op_cost(
    const Program& program,
    const Op& op,
    Phase phase,
    const GroupSeats& seats,
    const Cluster& cluster,
    Precision precision) {
  OpCost cost;
  cost.traffic = traffic_of_all(program, op, seats, phase, precision);
  for (std::size_t r = 0; r < seats.ranks.size(); ++r) {
    cost.work.push_back(work({program, op, seats.seat(r), phase, precision}));
    cost.compute_seconds.push_back(
        is_ring(op) ? 0 : seconds(cost.work.back(), cluster.device(seats.ranks[r]), precision));
  }
  if (is_ring(op)) {
    add_ring(program, op, phase, seats, cluster, precision, cost);
    return cost;
  }
  const std::vector<Exchange> all = exchanges({program, op, seats.seat(0), phase, precision});
  if (traits(op.kind).meets == OpTraits::Meets::domain) {
    cost.domain_seconds = domain_seconds(all, seats, cluster);
  } else {
    for (const Exchange& exchange : all) {
      add_meetings(exchange, seats, cluster, cost);
    }
  }
  return cost;
}

}  // namespace paradyse
