// A plan, or an error.
#pragma once

#include <stdexcept>
#include <utility>

#include "paradyse/plan/batch_planner.h"

namespace paradyse {

// A plan for such a batch; why there is none as std::runtime_error.
inline Plan plan_or_throw(BatchPlanner& planner, const BatchSizes& batch) {
  BatchPlanner::Answer answer = planner.plan(batch);
  if (!answer.plan) {
    throw std::runtime_error(answer.why_not);
  }
  return *std::move(answer.plan);
}

}  // namespace paradyse
