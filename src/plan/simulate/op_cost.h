// Seconds of an op on every rank of a group: what it computes, and what it exchanges.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "paradyse/plan/cluster.h"
#include "paradyse/plan/cost.h"
#include "src/plan/simulate/exchange_cost.h"

namespace paradyse {

// Where a group's ranks are: numbers in the cluster, and those of their weight domain.
struct GroupSeats {
  std::vector<int> ranks;
  int domain_first = 0;  // its ranks follow one another
  int domain = 1;

  [[nodiscard]] Seat seat(std::size_t group_rank) const {
    return {
        .group_rank = static_cast<int>(group_rank),
        .domain_rank = ranks[group_rank] - domain_first};
  }
};

// What goes round a ring: how large its blocks are.
struct RingBlocks {
  std::vector<std::int64_t> block_bytes =
      {};                                     // [group rank] what of its keys and values goes round
  std::vector<int> hops = {};                 // [group rank] and how far
  std::vector<std::int64_t> sums_bytes = {};  // [group rank] the sums of their gradients
  // [group rank] What it hands on passes as slowly as so many times the bytes: that many ranks hand
  // on at once over the link that their node has.
  std::vector<int> sharing = {};
  int rounds = 0;  // of the ring: keys, then values; 0: no ring

  // Seconds in which a rank hands `bytes` on over `link`.
  [[nodiscard]] double shift_seconds(
      const Link& link, std::size_t group_rank, std::int64_t bytes) const {
    return passing_seconds(link, bytes / rounds * sharing[group_rank]);
  }
  // [group rank] What of its block goes on from this hop to the next.
  [[nodiscard]] std::vector<std::int64_t> handed_on(std::size_t hop) const {
    std::vector<std::int64_t> bytes = block_bytes;
    for (std::size_t owner = 0; owner < bytes.size(); ++owner) {
      bytes[owner] = std::cmp_less(hop, hops[owner]) ? bytes[owner] : 0;
    }
    return bytes;
  }
};

// What an op exchanges: over the weight domain; else over sets of the group's ranks that meet.
struct OpMeetings {
  double domain_seconds = 0;
  std::vector<std::vector<int>> meetings = {};  // group ranks
  std::vector<int> meeting_of = {};             // [group rank]; none: nobody meets
  std::vector<double> seconds = {};             // [meeting] of a ring: 0, it takes its hops
  RingBlocks ring = {};
};

// What a rank sends in an op, and to which nodes.
struct OpTraffic {
  Traffic traffic;
  std::vector<std::pair<int, std::int64_t>> bytes_to_node = {};  // add up to the traffic's
};

struct OpCost {
  std::vector<double> compute_seconds;                // [group rank], of all hops of a ring
  std::vector<std::vector<double>> hop_seconds = {};  // [group rank][hop] of a ring's
  std::vector<Work> work;                             // [group rank]
  std::vector<OpTraffic> traffic;                     // [group rank]
  OpMeetings met = {};
};

// The roofline: the longer of what arithmetic and what reading its operands take, what passes over
// memory take besides, and the launch of kernels.
double seconds(const Work& work, const DeviceClass& device, Precision precision);

// What a rank computes in an op; of a ring op in all hops.
double compute_seconds(const OpView& view, const DeviceClass& device);

OpMeetings op_meetings(
    const Program& program,
    const Op& op,
    Phase phase,
    const GroupSeats& seats,
    Precision precision,
    ExchangeCosts& exchange_costs);

// [group rank] What traffic() says.
std::vector<OpTraffic> op_traffic(
    const Program& program,
    const Op& op,
    Phase phase,
    const GroupSeats& seats,
    const Cluster& cluster,
    Precision precision,
    ExchangeCosts& exchange_costs);

OpCost op_cost(
    const Program& program,
    const Op& op,
    Phase phase,
    const GroupSeats& seats,
    const Cluster& cluster,
    Precision precision,
    ExchangeCosts& exchange_costs);

}  // namespace paradyse
