// Groups of a transformer that another program trains, paradyse.torch: its costs are numbers that
// come with the question.  The space `torch`: a document on one rank or, by Ulysses, on several;
// layers recompute nothing or are made again as wholes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "src/plan/search/grouping/batch.h"

namespace paradyse {

// What groups of so many ranks take that run so.
struct TorchGroupCost {
  int ranks = 1;
  std::int64_t capacity = 0;       // tokens of all its documents together
  std::vector<double> seconds;     // [document] on top, forward and backward
  double fixed_seconds = 0;        // of a group that has documents
  std::string recompute = "none";  // or "layer"
};

struct TorchRequest {
  std::string model_name = "torch";
  std::string model_sha256 = {};
  std::int64_t layers = 1;
  int ranks = 1;
  int node = 0;  // ranks of one; 0: all
  // Ranks over which weights are sharded and gathered in each micro-batch, a divisor of `ranks`;
  // 0: each rank has them whole, so that its groups wait for no others.
  int weight_domain = 0;
  double micro_batch_seconds = 0;  // of gathering weights
  double batch_seconds = 0;        // of gradients and the update
  std::vector<std::int64_t> lengths;
  std::vector<TorchGroupCost> groups;
};

// A space with all of the groups where weights are whole.  Where they are sharded all ranks of a
// sharding group make layers again or none does, so a space for each.  Throws std::invalid_argument
// for a request that no planner accepts, naming the value.
std::vector<GroupSpace> torch_spaces(const TorchRequest& request);

// Where weights are whole: groups of the plan, if there is one, go to the ranks that are free
// first, and it takes until the last rank is done.  `space`: that it was planned in.
void without_meeting(PlannedBatch& planned, const GroupSpace& space);

}  // namespace paradyse
