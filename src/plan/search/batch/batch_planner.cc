#include "paradyse/plan/batch_planner.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "paradyse/plan/index.h"
#include "src/plan/search/batch/micro_batches.h"
#include "src/plan/search/batch/planning.h"

namespace paradyse {
namespace {

// Plans remembered by their lengths.
constexpr std::size_t kPlansKept = 1024;
// Of the slowest group's predicted seconds: a faster group waits for it.
constexpr double kSetsTheTime = 0.8;

// What groups that set the time of a micro-batch have in common.
using Observed = Correction::Key;

// Seconds of their ranks.
struct Mean {
  double sum = 0;
  double ranks = 0;
  std::int64_t longest = 0;
};

}  // namespace

const PlanningTask& BatchPlanner::task() const { return planning().task(); }

BatchPlanner::Answer BatchPlanner::plan(const BatchSizes& batch) {
  if (planning().forget_what_is_out_of_date()) {
    plans_.clear();
  }
  const auto found = plans_.find(batch);
  cached_ = found != plans_.end();
  if (cached_) {
    return {.plan = found->second, .why_not = {}};
  }
  Answer answer = make(batch, Caps::held);
  if (!answer.plan && !planning().held_to().empty()) {
    answer = make(batch, Caps::passed);  // other documents of such lengths may still need more
  }
  if (answer.plan) {
    planning().prediction().expect(*answer.plan);
  }
  if (answer.plan && plans_.size() < kPlansKept) {
    plans_.emplace(batch, *answer.plan);
  }
  return answer;
}

std::optional<Plan> BatchPlanner::leaner(const Plan& plan) {
  std::int64_t most = 0;
  std::int64_t tokens = 0;
  for (const PlanMicroBatch& micro : plan.micro_batches) {
    for (const PlanGroup& group : micro.groups) {
      const std::int64_t sum = group.predicted.bytes.value_or(PredictedBytes{}).total();
      if (sum > most) {
        most = sum;
        tokens = fullest(plan, micro);
      }
    }
  }
  if (most == 0) {
    return std::nullopt;
  }
  Planning::HeldTo caps = planning().held_to();
  caps[log2_bucket(tokens)] = most - most / 20;
  planning().hold_to(std::move(caps));
  plans_.clear();
  Answer answer = make(sizes_of(plan), Caps::held);
  if (answer.plan) {
    planning().prediction().expect(*answer.plan);
  }
  return std::move(answer.plan);
}

BatchPlanner::Learned BatchPlanner::learned() const {
  const Correction& correction = planning().correction();
  return {
      .ratios = correction.ratios(),
      .machine = correction.machine(),
      .caps = planning().held_to(),
      .speeds = planning().speeds().ratios(),
      .slow_since = planning().speeds().slow_since()};
}

void BatchPlanner::learn(const Learned& learned) {
  planning().correction().learn(learned.ratios, learned.machine);
  planning().hold_to(learned.caps);
  if (learned.speeds.empty() || std::ssize(learned.speeds) == task().ranks) {
    // else they are of other ranks
    planning().speeds().learn(learned.speeds, learned.slow_since);
  }
  plans_.clear();
}

std::vector<double> BatchPlanner::work_of_ranks(const Plan& plan) {
  return planning().prediction().work_of_ranks(plan);
}

std::optional<std::string> BatchPlanner::observe(const Plan& plan, const RankSeconds& seconds) {
  Correction& correction = planning().correction();
  for (std::size_t m = 0; m < plan.micro_batches.size() && m < seconds.size(); ++m) {
    const PlanMicroBatch& micro = plan.micro_batches[m];
    double slowest = 0;
    for (const PlanGroup& group : micro.groups) {
      slowest = std::max(slowest, group.predicted.seconds.value_or(0));
    }
    if (!(slowest > 0)) {
      continue;
    }
    // The ratio is that of each strategy in the groups that set the micro-batch's time; one
    // observation of each, however many groups there are.
    std::map<Observed, Mean> measured;
    for (const PlanGroup& group : micro.groups) {
      if (group.predicted.seconds.value_or(0) < kSetsTheTime * slowest) {
        continue;
      }
      std::int64_t longest = 0;
      for (const std::int64_t d : group.documents) {
        longest = std::max(longest, plan.lengths[idx(d)]);
      }
      const auto size = static_cast<int>(group.ranks.size());
      std::set<std::string> strategies;
      for (const LayerRun& run : plan.programs.at(group.program)) {
        strategies.insert(learned_part(task().model, run.choice).strategy);
      }
      for (const std::string& strategy : strategies) {
        Observed which{.strategy = strategy, .ranks = size, .log2_length = log2_bucket(longest)};
        Mean& mean = measured[which];
        mean.longest = std::max(mean.longest, longest);
        std::vector<double> of_ranks;
        of_ranks.reserve(group.ranks.size());
        for (const int rank : group.ranks) {
          of_ranks.push_back(seconds[m].at(idx(rank)));
        }
        if (whole_weights(plan)) {  // the others waited for the last of them to come
          std::ranges::fill(of_ranks, std::ranges::min(of_ranks));
        }
        mean.sum += std::accumulate(of_ranks.begin(), of_ranks.end(), 0.0);
        mean.ranks += static_cast<double>(of_ranks.size());
      }
    }
    // Made with other factors than those of now: what it predicted is no help.
    const double predicted = planning().prediction().uncorrected_seconds(plan, micro);
    for (const auto& [which, mean] : measured) {
      correction.observe(
          which.strategy, which.ranks, mean.longest, predicted, mean.sum / mean.ranks);
    }
  }
  const std::optional<double> changed = correction.machine_changed();
  if (!changed) {
    return std::nullopt;
  }
  return fmt::format(
      "this machine has become {:.1f} times {} than before: other programs may be running; plans "
      "now "
      "use the new measurements",
      *changed > 1 ? *changed : 1 / *changed,
      *changed > 1 ? "slower" : "faster");
}

}  // namespace paradyse
