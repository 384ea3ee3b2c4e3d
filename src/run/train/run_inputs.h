// What a run's configuration names: its model, documents, steps and planning task.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "paradyse/plan/batch_planner.h"
#include "paradyse/plan/config.h"
#include "paradyse/run/backend.h"
#include "paradyse/run/data.h"
#include "paradyse/run/weights.h"
#include "src/plan/profile/fit.h"

namespace paradyse {

// All throw std::invalid_argument naming the key, what stands there and what would be accepted.

ModelFolder model_at(const RunConfig& config);

// `key`: what `path` is written under.
Corpus corpus_at(
    const char* key, const std::string& path, const RunConfig& config, const ModelShape& model);

// Which documents each step trains on: drawn in the run's order until a step has its tokens.
std::vector<std::vector<std::int64_t>> steps_of(const RunConfig& config, const Corpus& corpus);

// The labels of some documents of a corpus, unshifted; none where it has none.
std::vector<const Tokens*> labels_of(
    const Corpus& corpus, const std::vector<std::int64_t>& documents);

// What plans go by where there are no measured costs: a few numbers, taken here and now.
MachineNumbers machine_for(const RunConfig& config, const ModelShape& model, Backend& backend);

PlanningTask planning_task(
    const RunConfig& config,
    const ModelShape& model,
    bool training,
    const MachineNumbers& machine,
    const std::optional<Costs>& costs = std::nullopt);

// A plan for documents of these lengths; why there is none as std::runtime_error.
Plan plan_or_throw(BatchPlanner& planner, const std::vector<std::int64_t>& lengths);

// The model's weights, or random ones where it has none.
void fill(Parameters& parameters, const ModelFolder& model, std::uint64_t seed);

}  // namespace paradyse
