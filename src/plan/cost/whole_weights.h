// What the ranks of a sharding group exchange once a step where weights are whole while it lasts
// (Messages::reshard_after_backward): before its first micro-batch weights, after its last the sums
// of their gradients.
#pragma once

#include <cstdint>
#include <vector>

#include "paradyse/plan/cost.h"
#include "paradyse/plan/detail/transfer.h"
#include "paradyse/plan/model.h"

namespace paradyse {

// From where the matrices of a part are stored to all of them on every rank; gradients go back.
Redistribution whole_stack(const PartWeights& weights, int domain);

struct StepExchanges {
  Redistribution copy;
  std::int64_t parts = 0;  // that are alike
  bool frozen = false;     // no gradients go back

  // Of weights; or of their gradients, in the type of sums.
  [[nodiscard]] Exchange weights(Precision precision) const;
  [[nodiscard]] Exchange gradients(Precision precision) const;
};
// Tied matrices once.
std::vector<StepExchanges> step_exchanges(const Model& model, int domain);
// What a rank sends once a step, weights and then sums of gradients, which copies of the sharding
// group add up, too.
struct SentOnce {
  struct Phase {
    double bytes = 0;
    double between_nodes = 0;  // of them, to ranks of other nodes
    double collectives = 0;
  };
  Phase weights;
  Phase gradients;
};
// [rank] Of `ranks` in sharding groups of `domain`, so many on each node; what one sends is taken
// to be the same for all others.
std::vector<SentOnce> sent_once(
    const Model& model, int ranks, int domain, int ranks_per_node, Precision precision);

// Sent by a rank of the sharding group.
Traffic step_traffic(const Model& model, int domain, int rank, Precision precision, Keeps keeps);

}  // namespace paradyse
