// All weights of a model on every rank while a step lasts (Messages::reshard_after_backward): what
// micro-batches read in place of a rank's shard, and add their gradients to.
#pragma once

#include <cstddef>
#include <map>
#include <vector>

#include "paradyse/plan/detail/transfer.h"
#include "paradyse/run/communicator.h"
#include "paradyse/run/weights.h"

namespace paradyse {

// By index of Model::parts, of each that stores matrices of its own: whole_stack().
using WholeStacks = std::map<std::size_t, Redistribution>;
WholeStacks whole_stacks(const Model& model, int domain);

class WholeWeights {
 public:
  // Gathers the weights from the ranks of the sharding group, each of which calls this.
  // `gradients`: with room for those, which are zero.  `sharded`, whose vectors and their gradients
  // are used, and `stacks` live longer.
  WholeWeights(
      Parameters& sharded, const WholeStacks& stacks, bool gradients, Communicator& domain);

  // In the order of Model::parts.
  std::vector<PartParameters>& parts() { return parts_; }

  // Adds the sums of the ranks' gradients to those of the shards.
  void sum_gradients(Communicator& domain);

 private:
  Parameters& sharded_;
  const WholeStacks& stacks_;
  std::vector<PartParameters> parts_;
};

}  // namespace paradyse
