// Documents on all ranks of a group, as a user asks for them: what `paradyse plan layers --model`
// and Python's plan_document() and plan_step() share.
#pragma once

#include <cstdint>
#include <string>

#include "paradyse/plan/detail/planning_task.h"
#include "paradyse/plan/dtype.h"

namespace paradyse {

struct DocumentRequest {
  Model model;
  std::int64_t length = 0;  // of the longest
  int ranks = 4;
  Dtype dtype = Dtype::float32;
  std::string attention = "auto";  // or a strategy
  std::string mlp = "auto";        // or a weight mode: mlp_strategy()
  std::string recompute = "auto";  // or a level
  bool offload = false;
  bool optimizer_offload = false;
  std::int64_t memory_per_rank = 0;  // bytes; 0: no limit
  std::string planner = "exact";     // layer_planners()
};

// What is asked, but for what it goes by: a machine's numbers, or costs.  Throws
// std::invalid_argument for a document that the model does not take, and names that are not known.
PlanningTask planning_task(const DocumentRequest& request);

}  // namespace paradyse
