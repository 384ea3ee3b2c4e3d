#include "paradyse/plan/batch_planner.h"

#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "paradyse/plan/detail/index.h"
#include "src/plan/search/batch/micro_batches.h"
#include "src/plan/search/batch/planning.h"

namespace paradyse {
namespace {

// Plans remembered by their lengths.
constexpr std::size_t kPlansKept = 1024;
// Of the slowest group's predicted seconds: a faster group waits for it.
constexpr double kSetsTheTime = 0.8;

// The rank whose seconds are less than those of all others of the group.
int first_to_go_on(const PlanGroup& group, const std::vector<std::vector<double>>& seconds) {
  return *std::ranges::min_element(group.ranks, {}, [&](int rank) {
    const std::vector<double>& parts = seconds.at(idx(rank));
    return std::accumulate(parts.begin(), parts.end(), 0.0);
  });
}

}  // namespace

BatchPlanner::BatchPlanner(PlanningTask task)
    : BatchPlanner(std::make_unique<Planning>(std::move(task))) {}
BatchPlanner::BatchPlanner(std::unique_ptr<Planning> planning) : planning_(std::move(planning)) {}
BatchPlanner::~BatchPlanner() = default;

const PlanningTask& BatchPlanner::task() const { return planning().task(); }

void BatchPlanner::expect(Plan& plan) { planning().prediction().expect(plan); }

bool BatchPlanner::predicted_to_fit(Plan& plan, Caps caps) {
  return paradyse::predicted_to_fit(planning(), plan, caps);
}

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
    expect(*answer.plan);
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
    expect(*answer.plan);
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

std::optional<std::string> BatchPlanner::observe(const Plan& plan, const PartSeconds& seconds) {
  Correction& correction = planning().correction();
  PlanPrediction& prediction = planning().prediction();
  for (std::size_t m = 0; m < plan.micro_batches.size() && m < seconds.size(); ++m) {
    const PlanMicroBatch& micro = plan.micro_batches[m];
    double slowest = 0;
    for (const PlanGroup& group : micro.groups) {
      slowest = std::max(slowest, group.predicted.seconds.value_or(0));
    }
    if (!(slowest > 0)) {
      continue;
    }
    // Groups that set the micro-batch's time tell of their parts; one observation of each, however
    // many groups there are.  Seconds are predicted without the factors of now: those that the plan
    // was made with are no help.
    std::map<Correction::Key, Correction::Observed> parts;
    const std::vector<std::vector<double>> predicted = prediction.uncorrected_parts(plan, micro);
    for (std::size_t g = 0; g < micro.groups.size(); ++g) {
      const PlanGroup& group = micro.groups[g];
      if (group.predicted.seconds.value_or(0) < kSetsTheTime * slowest) {
        continue;
      }
      std::int64_t longest = 0;
      for (const std::int64_t d : group.documents) {
        longest = std::max(longest, plan.lengths[idx(d)]);
      }
      const std::vector<CostedPart> costed = costed_parts(plan.programs.at(group.program));
      // where weights are whole the others waited for the last of them to come
      const std::vector<int> ranks =
          whole_weights(plan) ? std::vector<int>{first_to_go_on(group, seconds[m])} : group.ranks;
      for (std::size_t p = 0; p < costed.size(); ++p) {
        const Correction::Key key{
            .what = costed[p],
            .ranks = static_cast<int>(group.ranks.size()),
            .log2_length = log2_bucket(longest)};
        Correction::Observed& its = parts.try_emplace(key, Correction::Observed{key}).first->second;
        for (const int rank : ranks) {
          its.predicted += predicted[g][p];
          its.measured += seconds[m].at(idx(rank)).at(p);
        }
      }
    }
    std::vector<Correction::Observed> all;
    all.reserve(parts.size());
    for (const auto& [key, part] : parts) {
      all.push_back(part);
    }
    correction.observe(all);
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
