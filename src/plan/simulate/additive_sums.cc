#include "src/plan/simulate/additive_sums.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>

#include "paradyse/plan/detail/index.h"
#include "src/plan/program/bodies.h"
#include "src/plan/simulate/core_sharing.h"

namespace paradyse {

namespace {

// All take part in the same exchanges of weights.
void expect_same_weights(const GroupRun& a, double of_a, const GroupRun& b, double of_b) {
  constexpr double kRounding = 1e-9;
  if (std::abs(of_a - of_b) > kRounding * std::max(of_a, of_b)) {
    throw std::invalid_argument(
        "simulate: the group of rank " + std::to_string(a.seats.ranks.front()) +
        " exchanges weights for " + std::to_string(of_a) + " s, that of rank " +
        std::to_string(b.seats.ranks.front()) + " for " + std::to_string(of_b) +
        " s: the groups of a sharding group (weight_domain) must call the same collectives; see "
        "plan check --model");
  }
}

}  // namespace

AdditiveSums::AdditiveSums(
    const Cluster& cluster, const SimulationOptions& options, int domain_first, int domain)
    : cluster_(cluster),
      costs_(cluster, options),
      exchange_costs_(cluster),
      precision_(options.precision),
      training_(options.training),
      domain_first_(domain_first),
      ranks_(idx(domain)) {
  for (std::size_t r = 0; r < ranks_.size(); ++r) {
    ranks_[r].as = domain_first + static_cast<int>(r);
  }
}

void AdditiveSums::run(const std::vector<GroupRun>& groups) {
  std::vector<AdditiveGroup> found;
  std::vector<GroupLoad> loads;
  double weights = 0;
  for (const GroupRun& group : groups) {
    found.push_back(costs_.group(group.timeline, group.seats));
    const AdditiveSeconds seconds = found.back().seconds();
    expect_same_weights(group, seconds.weights, groups.front(), found.front().weights);
    weights = std::max(weights, seconds.weights);
    loads.push_back({.ranks = group.seats.ranks, .seconds = seconds.group});
    count(group);
  }
  const std::vector<double> speeds = speeds_beside_others(cluster_, loads);
  double slowest = 0;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    for (AdditiveRank& rank : found[g].ranks) {
      rank.compute /= speeds[g];
    }
    slowest = std::max(slowest, found[g].seconds().group);
  }
  for (std::size_t g = 0; g < groups.size(); ++g) {
    for (std::size_t r = 0; r < groups[g].seats.ranks.size(); ++r) {
      SimulatedRank& rank = ranks_[idx(groups[g].seats.ranks[r] - domain_first_)];
      const AdditiveRank& mine = found[g].ranks[r];
      rank.seconds += weights + slowest;
      rank.compute_seconds += mine.compute;
      rank.communication_seconds += mine.communication + weights;
      rank.exposed_seconds += mine.communication + weights;
      rank.idle_seconds += slowest - mine.sum();
    }
  }
}

// Traffic and operations, as the folds count them.
void AdditiveSums::count(const GroupRun& group) {
  for (const auto& [body, alike] : bodies(group.timeline)) {
    const auto times = static_cast<std::int64_t>(alike.size());
    for (const auto* steps : body->schedule.passes()) {
      for (const ScheduledOp& step : whole(*steps)) {
        const Op& op = body->program.ops[idx(step.op)];
        const Phase phase = step.adjoint ? Phase::adjoint : Phase::forward;
        const std::vector<OpTraffic> sent = op_traffic(
            body->program, op, phase, group.seats, cluster_, precision_, exchange_costs_);
        const bool again = steps != &body->schedule.forward && !step.adjoint;
        for (std::size_t r = 0; r < group.seats.ranks.size(); ++r) {
          SimulatedRank& rank = ranks_[idx(group.seats.ranks[r] - domain_first_)];
          const Traffic& mine = sent[r].traffic;
          rank.traffic +=
              {.bytes = times * mine.bytes,
               .messages = times * mine.messages,
               .collectives = times * mine.collectives};
          for (const auto& [node, bytes] : sent[r].bytes_to_node) {
            rank.bytes_to_node[node] += times * bytes;
          }
          if (!again) {
            const Work done = work({body->program, op, group.seats.seat(r), phase, precision_});
            rank.model_flops +=
                static_cast<double>(times) *
                (done.matmul_flops +
                 (step.adjoint ? 0.0 : (training_ ? 3.0 : 1.0) * done.attention_flops));
          }
        }
      }
    }
  }
}

}  // namespace paradyse
