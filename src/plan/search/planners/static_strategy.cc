#include "paradyse/plan/detail/static_strategy.h"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <utility>

#include "paradyse/plan/detail/index.h"
#include "src/plan/search/batch/document_planner.h"
#include "src/plan/search/batch/micro_batches.h"
#include "src/plan/search/batch/table.h"

namespace paradyse {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr std::int64_t kEndless = std::numeric_limits<std::int64_t>::max();  // no budget

PlanningTask task_of(PlanningTask task, const Strategy& attention, Recompute level) {
  task.attention = attention.name;
  task.mlp = to_string(attention.verb);
  task.recompute = to_string(level);
  task.without.clear();
  task.mix = false;
  task.try_options = false;
  task.planner = "exact";
  task.batch_planner = "borders";
  return task;
}

}  // namespace

StaticStrategy::StaticStrategy(StaticStrategy&&) noexcept = default;
StaticStrategy& StaticStrategy::operator=(StaticStrategy&&) noexcept = default;
StaticStrategy::~StaticStrategy() = default;

StaticStrategy::StaticStrategy(const PlanningTask& task, const std::string& attention, How how)
    : packs_(how.packs && !strategy("attention", attention).one_rank) {
  PlanningTask its = task;
  its.offload = task.offload && !packs_;  // packed layers are all alike, and none waits on the host
  for (const Recompute level : kRecomputeLevels) {
    if (level == Recompute::none || how.recomputes) {
      auto planner = document_planner(task_of(its, strategy("attention", attention), level));
      DocumentPlanner* const documents = planner.get();
      levels_.push_back({.planner = std::move(planner), .documents = documents});
    }
  }
}

StaticStrategy::StaticStrategy(const PlanningTask& task, const std::string& batch_planner)
    : packs_(false) {
  PlanningTask its = task;
  its.batch_planner = batch_planner;
  levels_.push_back({.planner = paradyse::batch_planner(std::move(its))});
}

std::int64_t StaticStrategy::room(Level& level) {
  DocumentPlans& documents = level.documents->documents();
  const auto [found, fresh] = level.room.try_emplace(documents.weights_whole());
  if (fresh) {
    found->second = documents.longest().value_or(kEndless);
  }
  return found->second;
}

void StaticStrategy::find_rooms() {
  for (Level& level : levels_) {
    if (packs_) {
      level.documents->documents().faster_of_both([&] {
        room(level);
        return BatchPlanner::Answer{};
      });
    }
  }
}

void StaticStrategy::learn(const BatchPlanner::Learned& learned) {
  for (Level& level : levels_) {
    level.planner->learn(learned);
  }
}

std::optional<std::int64_t> StaticStrategy::longest() {
  if (levels_.front().documents == nullptr) {
    throw std::logic_error("StaticStrategy: samples have no one length");
  }
  std::optional<std::int64_t> most;
  for (Level& level : levels_) {
    const std::int64_t tokens = room(level);
    if (tokens == kEndless) {
      return std::nullopt;
    }
    most = std::max(most.value_or(0), tokens);
  }
  return most;
}

std::optional<Plan> StaticStrategy::plan(const BatchSizes& batch) {
  for (Level& level : levels_) {
    std::optional<Plan> found =
        packs_ ? level.documents->documents()
                     .faster_of_both([&] {
                       return BatchPlanner::Answer{
                           .plan = packed(level, batch.lengths), .why_not = {}};
                     })
                     .plan
               : level.planner->plan(batch).plan;
    if (found) {
      return found;
    }
  }
  return std::nullopt;
}

// Packed documents hold hardly more than one document of as many tokens: each is cut to within two
// tokens a rank.  Where that is too much they are packed less full.
std::optional<Plan> StaticStrategy::packed(Level& level, const std::vector<std::int64_t>& lengths) {
  const PlanningTask& task = level.planner->task();
  DocumentPlans& documents = level.documents->documents();
  const std::int64_t most = room(level);
  if (longest_of(lengths) > most) {
    return std::nullopt;
  }
  const std::vector<LayerChoice>& layers = documents.costs().of(task.ranks).uniform();
  if (layers.empty()) {
    return std::nullopt;  // weights that are whole are not passed on
  }
  const LayerChoice& layer = layers.front();
  Plan plan = uniform_plan(
      task.model, lengths, task.ranks, std::vector<LayerChoice>(idx(task.model.layers), layer));
  plan.weight_domain = task.domain();
  const PlanGroup everyone = plan.micro_batches.front().groups.front();
  for (std::int64_t full = most;; full -= std::max<std::int64_t>(1, full / 32)) {
    plan.micro_batches.clear();
    std::int64_t tokens = 0;  // of the last micro-batch
    for (std::size_t d = 0; d < lengths.size(); ++d) {
      if (plan.micro_batches.empty() || tokens > full - lengths[d]) {
        plan.micro_batches.push_back({.groups = {everyone}, .predicted = {}});
        plan.micro_batches.back().groups.front().documents.clear();
        tokens = 0;
      }
      plan.micro_batches.back().groups.front().documents.push_back(static_cast<std::int64_t>(d));
      tokens += lengths[d];
    }
    if (predicted_to_fit(documents, plan, Caps::held)) {
      documents.prediction().expect(plan);
      return plan;
    }
    if (plan.micro_batches.size() == lengths.size()) {
      return std::nullopt;  // each has its own
    }
  }
}

std::vector<NamedStrategy> static_strategies(const PlanningTask& task) {
  std::vector<NamedStrategy> all;
  if (task.model.of_samples()) {
    int before = 0;
    for (const BatchPlannerRow& row : groups_of_one_size()) {
      const int ranks = row.sizes(task.ranks).front();
      if (ranks != before) {
        all.push_back({.name = row.name, .plans = {task, row.name}});
      }
      before = ranks;
    }
    return all;
  }
  for (const Strategy& one : strategies("attention")) {
    if (std::ranges::find(task.without, one.name) != task.without.end()) {
      continue;
    }
    try {
      all.push_back({.name = one.name, .plans = {task, one.name, {.recomputes = true}}});
    } catch (const std::invalid_argument&) {
      continue;  // the model or the ranks do not suit it
    }
  }
  return all;
}

std::optional<StaticComparison> compared_to_static(BatchPlanner& known, std::span<Plan> plans) {
  StaticComparison found{.batches = static_cast<std::int64_t>(plans.size())};
  for (Plan& plan : plans) {
    known.expect(plan);
    found.ours += plan.predicted.seconds.value_or(0);
  }
  BatchPlanner::Learned learned = known.learned();
  learned.caps.clear();  // of plans that were not these
  for (NamedStrategy& one : static_strategies(known.task())) {
    one.plans.learn(learned);
    double seconds = 0;
    for (const Plan& plan : plans) {
      const std::optional<Plan> its = one.plans.plan(sizes_of(plan));
      seconds += its ? its->predicted.seconds.value_or(kNever) : kNever;
      if (!found.strategy.empty() && seconds >= found.seconds) {
        break;
      }
    }
    if (seconds < (found.strategy.empty() ? kNever : found.seconds)) {
      found.strategy = one.name;
      found.seconds = seconds;
    }
  }
  return found.strategy.empty() || !(found.ours > 0) ? std::nullopt : std::optional(found);
}

}  // namespace paradyse
