#include "paradyse/plan/batch_planner.h"

#include <algorithm>
#include <cstdio>
#include <set>
#include <utility>

#include "paradyse/plan/index.h"
#include "src/plan/search/batch/micro_batches.h"

namespace paradyse {
namespace {

// Plans remembered by their lengths.
constexpr std::size_t kPlansKept = 1024;
// Of the slowest group's predicted seconds: a faster group waits for it.
constexpr double kSetsTheTime = 0.8;

// What the groups that set the time of a micro-batch have in common.
struct Observed {
  std::string strategy = {};
  int ranks = 1;

  friend auto operator<=>(const Observed&, const Observed&) = default;
};

}  // namespace

BatchPlanner::Answer BatchPlanner::plan(const std::vector<std::int64_t>& lengths) {
  if (documents_.forget_what_is_out_of_date()) {
    plans_.clear();
  }
  const auto found = plans_.find(lengths);
  cached_ = found != plans_.end();
  if (cached_) {
    return {.plan = found->second, .why_not = {}};
  }
  Answer answer = make(lengths, Caps::held);
  if (!answer.plan && !documents_.held_to().empty()) {
    answer = make(lengths, Caps::passed);  // other documents of such lengths may still need more
  }
  if (answer.plan && plans_.size() < kPlansKept) {
    plans_.emplace(lengths, *answer.plan);
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
  DocumentPlans::HeldTo caps = documents_.held_to();
  caps[log2_bucket(tokens)] = most - most / 20;
  documents_.hold_to(std::move(caps));
  plans_.clear();
  return make(plan.lengths, Caps::held).plan;
}

BatchPlanner::Learned BatchPlanner::learned() const {
  return {.ratios = documents_.correction().ratios(), .caps = documents_.held_to()};
}

void BatchPlanner::learn(const Learned& learned) {
  documents_.correction().learn(learned.ratios);
  documents_.hold_to(learned.caps);
  plans_.clear();
}

std::optional<std::string> BatchPlanner::observe(const Plan& plan, const RankSeconds& seconds) {
  Correction& correction = documents_.correction();
  for (std::size_t m = 0; m < plan.micro_batches.size() && m < seconds.size(); ++m) {
    const PlanMicroBatch& micro = plan.micro_batches[m];
    if (!micro.predicted.seconds) {
      continue;
    }
    double slowest = 0;
    for (const PlanGroup& group : micro.groups) {
      slowest = std::max(slowest, group.predicted.seconds.value_or(0));
    }
    // The micro-batch's ratio is that of each strategy in the groups that set its time.
    const std::int64_t longest = longest_of(plan, micro);
    std::set<Observed> used;
    double factors = 0;
    double layers = 0;
    double measured = 0;  // of their ranks, the mean
    double ranks = 0;
    for (const PlanGroup& group : micro.groups) {
      if (group.predicted.seconds.value_or(0) < kSetsTheTime * slowest) {
        continue;
      }
      const auto size = static_cast<int>(group.ranks.size());
      for (const LayerRun& run : plan.programs.at(group.program)) {
        const std::string& attention = part_of(run.choice, "attention").strategy;
        used.insert({attention, size});
        const auto n = static_cast<double>(run.layers);
        factors += n * correction.factor(attention, size, longest);
        layers += n;
      }
      for (const int rank : group.ranks) {
        measured += seconds[m].at(idx(rank));
        ++ranks;
      }
    }
    if (layers == 0) {
      continue;
    }
    // predicted with the factors of then; those of now differ by little
    const double raw = *micro.predicted.seconds / (factors / layers);
    for (const Observed& one : used) {
      correction.observe(one.strategy, one.ranks, longest, raw, measured / ranks);
    }
  }
  const std::optional<double> changed = correction.machine_changed();
  if (!changed) {
    return std::nullopt;
  }
  char ratio[32];
  std::snprintf(ratio, sizeof(ratio), "%.1f", *changed > 1 ? *changed : 1 / *changed);
  return std::string("this machine has become ") + ratio + " times " +
         (*changed > 1 ? "slower" : "faster") +
         " than it was: other programs may run beside this one; plans go by what is measured now";
}

}  // namespace paradyse
