// Seconds of an op on every rank of a group: what it computes, and what it exchanges.
#pragma once

#include <vector>

#include "paradyse/plan/cluster.h"
#include "paradyse/plan/cost.h"

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

// A ring op: what each rank attends with the block that it has at a hop, and how large blocks are.
struct RingCost {
  std::vector<std::vector<double>> hop_seconds = {};  // [group rank][hop]
  std::vector<std::int64_t> block_bytes = {};         // [group rank] its own keys and values
  std::vector<std::int64_t> sums_bytes = {};          // [group rank] the sums of their gradients
  int rounds = 1;                                     // of the ring: keys, then values
};

struct OpCost {
  std::vector<double> compute_seconds;  // [group rank], of all hops of a ring
  std::vector<Work> work;               // [group rank]
  std::vector<Traffic> traffic;         // [group rank]
  // An exchange over the weight domain; else over sets of the group's ranks that meet.
  double domain_seconds = 0;
  std::vector<std::vector<int>> meetings = {};  // group ranks
  std::vector<int> meeting_of = {};             // [group rank] -1: it meets nobody
  std::vector<double> meeting_seconds = {};     // [meeting]
  RingCost ring = {};                           // of ring ops
};

// The roofline: the longer of what arithmetic and what memory take, and the launch of kernels.
double seconds(const Work& work, const DeviceClass& device, Precision precision);

OpCost op_cost(
    const Program& program,
    const Op& op,
    Phase phase,
    const GroupSeats& seats,
    const Cluster& cluster,
    Precision precision);

// Seconds in which `bytes` pass a link between two ranks; nothing takes no time.
double passing_seconds(const Link& link, std::int64_t bytes);

// Seconds of a collective of so many ranks that takes `seconds` on the wire.
double collective_seconds(const Link& slowest, int ranks, double wire_seconds);

}  // namespace paradyse
