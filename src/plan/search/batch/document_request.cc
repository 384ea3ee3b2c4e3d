#include "src/plan/search/batch/document_request.h"

#include <stdexcept>

#include <fmt/format.h>

#include "paradyse/plan/strategy.h"
#include "src/plan/strategy/mlp_names.h"

namespace paradyse {

PlanningTask planning_task(const DocumentRequest& request) {
  const auto named = [](const std::string& name) { return name == "auto" ? "" : name; };
  if (const LengthLimit& limit = request.model.limits.longest; !limit.allows(request.length)) {
    throw std::invalid_argument(fmt::format("--length is {}: {}", request.length, limit.why));
  }
  PlanningTask task;
  task.model = request.model;
  task.ranks = request.ranks;
  task.precision = precision_of(request.dtype);
  task.precision.optimizer_on_host = request.optimizer_offload;
  task.memory_per_rank = request.memory_per_rank;
  task.offload = request.offload;
  task.attention = named(request.attention);
  task.recompute = named(request.recompute);
  task.planner = request.planner;
  if (request.mlp != "auto") {
    task.mlp = mlp_strategy(request.mlp).name;
  } else if (!task.attention.empty()) {
    task.mlp = to_string(strategy("attention", task.attention).verb);
  }
  return task;
}

}  // namespace paradyse
