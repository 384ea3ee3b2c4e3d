// Seconds of a micro-batch in which nothing overlaps: what planners of batches add up.
//
// A group takes, of its slowest rank, the sum over all ops (forward, recomputed and backward) of
// what they compute and of the meetings inside the group; all groups of a weight domain take what
// it gathers and sums of weights in lock-step, once.  So a micro-batch takes
//
//   weights + max over its groups of group
//
// Ops cost what they cost in the event simulation (op_cost.h); simulate() with
// SimulationOptions::additive adds up exactly these numbers.  docs/internals/simulate.md says where
// the two part.
#pragma once

#include <functional>
#include <vector>

#include "paradyse/plan/simulate.h"
#include "src/plan/plan/group_timeline.h"
#include "src/plan/simulate/exchange_cost.h"
#include "src/plan/simulate/op_cost.h"

namespace paradyse {

struct AdditiveSeconds {
  double group = 0;    // of the group's slowest rank, without
  double weights = 0;  // exchanges over the weight domain: the same for all groups of a micro-batch

  [[nodiscard]] double sum() const { return weights + group; }
};

// A rank's share of that.
struct AdditiveRank {
  double compute = 0;
  double communication = 0;  // meetings inside the group, copies to and from the host

  [[nodiscard]] double sum() const { return compute + communication; }
};

struct AdditiveGroup {
  std::vector<AdditiveRank> ranks;  // [rank of the group]
  double weights = 0;

  [[nodiscard]] AdditiveSeconds seconds() const;
};

// Knows what exchanges cost that lie alike, so one of these answers many questions about a cluster
// fast.  Not for several threads at once; outlived by the cluster.
class AdditiveCosts {
 public:
  // Precision and training (else forward passes alone) are the options'.
  explicit AdditiveCosts(const Cluster& cluster, const SimulationOptions& options = {})
      : cluster_(cluster),
        precision_(options.precision),
        training_(options.training),
        exchange_costs_(cluster) {}

  // A group that runs the task on `ranks` of the cluster, ascending, as many as the task has, all
  // in one weight domain of the task's size.
  //
  // Costs the making of its programs (timeline()) and a fold over the ops of its distinct parts,
  // each once, however many layers there are and about as long; it hardly grows with the ranks.
  // Attention goes by document, on each rank; ring attention by document and hop, on one rank where
  // all have the same (devices, heads, documents of a multiple of twice as many tokens as ranks),
  // else on each.  Tables of who sends what to whom, O(ranks^2), are made once for each way to cut
  // a tensor: documents of another length are cut the same way if both lengths are such multiples,
  // so ask for those. Throws std::invalid_argument like timeline(), and for other ranks than that.
  // The options' training stands in place of the task's `keep`.
  AdditiveSeconds seconds(const GroupTask& task, const std::vector<int>& ranks, const Model& model);

  // The same of a group whose programs are there, rank by rank; no rank stands for another.
  AdditiveGroup group(const Timeline& parts, const GroupSeats& seats);

 private:
  struct Fold;

  const Cluster& cluster_;
  Precision precision_;
  bool training_;
  ExchangeCosts exchange_costs_;
};

// Those of one part on the first ranks of a cluster, which are its weight domain; outlived by the
// cluster.
std::function<double(const ScheduledPart& part)> part_seconds(
    const Cluster& cluster, int ranks, const SimulationOptions& options);

}  // namespace paradyse
