// Seconds of exchanges on the links of a cluster: who meets in one, and for how long.
//
// The table of an exchange lists who sends what to whom, for each pair of ranks.  What it costs is
// proportional to its elements as long as pieces lie alike, so tables are made of the smallest
// tensor that is cut so, once, and exchanges of longer documents, other layers and other
// micro-batches look their seconds up.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "paradyse/plan/cluster.h"
#include "paradyse/plan/detail/op_traits.h"

namespace paradyse {

// Ranks of an exchange's table that exchange with one another, directly or by way of others.
struct ExchangeCost {
  std::vector<std::vector<int>> meetings = {};  // ranks of the table, ascending
  std::vector<int> meeting_of = {};             // [rank of the table]
  std::vector<double> seconds = {};             // [meeting] latencies included
};

// What a rank sends, and to which nodes.
struct SentByNode {
  std::int64_t elements = 0;
  std::int64_t messages = 0;
  std::vector<std::pair<int, std::int64_t>> to_node =
      {};  // number in the cluster, elements; nodes ascend
};

// Not for several threads at once.  Outlived by the cluster.
class ExchangeCosts {
 public:
  explicit ExchangeCosts(const Cluster& cluster) : cluster_(cluster) {}
  [[nodiscard]] const Cluster& cluster() const { return cluster_; }

  // `ranks`: [rank of the table] its number in the cluster.  O(ranks x ranks) where pieces lie as
  // none did before, else O(ranks).
  ExchangeCost cost(const Exchange& exchange, const std::vector<int>& ranks);
  // Seconds of one in which all ranks take part, whoever wants something.
  double together(const Exchange& exchange, const std::vector<int>& ranks);
  // [rank of the table] What the exchange's own `sent` says (or, transposed, that of its
  // transpose).
  std::vector<SentByNode> sent(const Exchange& exchange, const std::vector<int>& ranks);

 private:
  struct Known {
    std::vector<std::vector<int>> meetings;
    std::vector<int> meeting_of;
    std::vector<double> wire_seconds;  // [meeting] a byte an element of the smallest tensor
    std::vector<double> latencies;     // [meeting]
    // [transposed][rank] of the smallest tensor; nodes counted from that of the first rank
    std::array<std::vector<SentByNode>, 2> sent;
  };
  const Known& known(const Exchange& exchange, const std::vector<int>& ranks, bool together);

  const Cluster& cluster_;
  std::map<std::vector<std::int64_t>, Known> known_;  // by how pieces lie, and on which nodes
  std::vector<std::int64_t> key_;                     // of the last that was asked for
  std::int64_t scale_ = 1;                            // its elements: so many times as many
};

// Seconds in which `bytes` pass a link between two ranks; nothing takes no time.
double passing_seconds(const Link& link, std::int64_t bytes);

// Seconds of a collective of so many ranks that takes `seconds` on the wire.
double collective_seconds(const Link& slowest, int ranks, double wire_seconds);

}  // namespace paradyse
