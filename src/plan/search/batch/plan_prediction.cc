#include "paradyse/plan/plan_prediction.h"

#include <algorithm>
#include <numeric>

#include "paradyse/plan/group_timeline.h"
#include "paradyse/plan/index.h"
#include "src/plan/program/bodies.h"
#include "src/plan/search/batch/micro_batches.h"

namespace paradyse {

PlanPrediction::PlanPrediction(
    const PlanningTask& task, const Correction& correction, GroupCosts& costs)
    : task_(task),
      correction_(correction),
      model_(task.model),
      seconds_(task.seconds ? task.seconds : closed_form(task.machine)),
      costs_(costs) {}

double PlanPrediction::wall_seconds(const std::vector<GroupSeconds>& groups) const {
  double slowest = 0;
  double busy = 0;  // of cores
  for (const GroupSeconds& group : groups) {
    slowest = std::max(slowest, group.seconds);
    // a group of more ranks than cores has waited for those already
    busy += group.seconds * static_cast<double>(std::min(group.ranks, task_.machine.cores));
  }
  // one group has nobody beside it
  return groups.size() == 1 ? slowest : std::max(slowest, busy / task_.machine.cores);
}

PredictedBytes PlanPrediction::fullest_rank(
    const Timeline& parts, const std::vector<Seat>& seats) const {
  return paradyse::fullest_rank(
      parts, seats, model_, task_.ranks, task_.precision, task_.static_bytes_per_element());
}

PredictedBytes PlanPrediction::bytes_of(
    const LayerRuns& program,
    const std::vector<std::vector<std::int64_t>>& groups,
    int ranks) const {
  PredictedBytes most;
  int first = 0;  // of the group's ranks
  for (const std::vector<std::int64_t>& lengths : groups) {
    std::vector<Seat> seats;
    seats.reserve(idx(ranks));
    for (int r = 0; r < ranks; ++r) {
      seats.push_back({.group_rank = r, .domain_rank = first++});
    }
    const GroupTask group{
        .layers = program,
        .lengths = lengths,
        .ranks = ranks,
        .shares = {},
        .weight_domain = task_.ranks,
        .keep = task_.training,
        .tiles = task_.model.tiles()};
    const PredictedBytes bytes = fullest_rank(timeline(group, model_), seats);
    if (bytes.total() > most.total()) {
      most = bytes;
    }
  }
  return most;
}

// Folds every micro-batch exactly.
void PlanPrediction::predict(Plan& plan) {
  double total = task_.step_seconds * correction_.common_factor();
  for (PlanMicroBatch& micro : plan.micro_batches) {
    std::vector<GroupSeconds> groups;
    for (PlanGroup& group : micro.groups) {
      const GroupTimeline built = group_timeline(plan, group, model_, task_.training);
      group.predicted.bytes = fullest_rank(built.parts, built.seats);
      group.predicted.seconds = group_seconds(
          built.parts,
          choices(plan.programs.at(group.program)),
          built.seats,
          built.parts.front().program().documents.lengths,
          correction_);
      groups.push_back(
          {.ranks = static_cast<int>(group.ranks.size()), .seconds = *group.predicted.seconds});
    }
    const double seconds = wall_seconds(groups);
    micro.predicted.seconds = seconds;
    total += seconds;
  }
  plan.predicted.seconds = total;
}

double PlanPrediction::uncorrected_seconds(const Plan& plan, const PlanMicroBatch& micro) {
  const Correction none;
  std::vector<GroupSeconds> groups;
  for (const PlanGroup& group : micro.groups) {
    const GroupTimeline built = group_timeline(plan, group, model_, task_.training);
    groups.push_back(
        {.ranks = static_cast<int>(group.ranks.size()),
         .seconds = group_seconds(
             built.parts,
             choices(plan.programs.at(group.program)),
             built.seats,
             built.parts.front().program().documents.lengths,
             none)});
  }
  return wall_seconds(groups);
}

// Of a group that is alone on the machine; of one rank beside others: on a core of its own.
double PlanPrediction::group_seconds(
    const Timeline& parts,
    const std::vector<LayerChoice>& layers,
    const std::vector<Seat>& seats,
    const std::vector<std::int64_t>& lengths,
    const Correction& correction) {
  const auto ranks = static_cast<int>(seats.size());
  const std::int64_t longest = longest_of(lengths);
  const auto factor_of = [&](const LayerChoice& layer) {
    return correction.factor(part_of(layer, "attention").strategy, ranks, longest);
  };
  if (!seconds_->by_work()) {  // documents one after the other; without one, weights are gathered
    LayerCosts& costs = costs_.of(ranks);
    const std::vector<std::int64_t> none = {1};
    double sum = 0;
    for (const std::int64_t n : lengths.empty() ? none : lengths) {
      const auto seconds = [&](const PartCost& cost) {
        return ranks < task_.ranks ? cost.busy : cost.wall;
      };
      sum += seconds(costs.predicted_rest(n)) * correction.common_factor();
      for (const LayerChoice& layer : layers) {
        sum += seconds(costs.predicted_layer(layer, n)) * factor_of(layer);
      }
    }
    return sum;
  }
  double sum = 0;
  for (const auto& [body, alike] : bodies(parts)) {
    const ScheduledPart& part = parts[alike.front()];
    const bool moves = part.weights < 0;  // a part that is in no model
    PartQuestion question{
        .part = moves || part.layer < 0 ? "rest" : part.program().part,
        .ranks = ranks,
        .length = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0})};
    double factor = correction.common_factor();  // by what was measured
    if (!moves && part.layer >= 0) {
      const LayerChoice& layer = layers[idx(part.layer)];
      const PartChoice& choice = part_of(layer, question.part);
      factor = factor_of(layer);
      question.strategy = canonical(choice).strategy;
      question.recompute = choice.recompute;
    }
    std::vector<PartWork> works;
    works.reserve(seats.size());
    for (const Seat& seat : seats) {
      works.push_back(part_work(part, seat, task_.precision));
    }
    question.work = together(works, task_.machine.cores);
    sum += factor * static_cast<double>(alike.size()) * seconds_->seconds(question).total();
  }
  return sum;
}

}  // namespace paradyse
