// Groups of samples side by side: units of samples that run at once, one to a group, by the fast
// planner of groupings.  Many small units fill the ranks evenly; a few large ones gather weights
// less often: both, and what lies between, are tried.
#include <algorithm>
#include <numeric>
#include <ranges>
#include <stdexcept>
#include <utility>

#include "paradyse/plan/detail/index.h"
#include "src/plan/search/batch/micro_batches.h"
#include "src/plan/search/grouping/planners.h"
#include "src/plan/search/grouping/rank_pools.h"
#include "src/plan/search/grouping/space.h"
#include "src/plan/search/layouts/sample_plans.h"

namespace paradyse {
namespace {

// What a unit counts beside its rows: of two together there are more than any group has room for.
constexpr std::int64_t kUnitTokens = std::int64_t{1} << 45;

class UnitGroups {
 public:
  UnitGroups(
      SamplePlans& samples,
      const std::vector<SamplesOfASize>& sizes,
      std::int64_t at_once,
      const std::vector<int>& ranks,
      Caps caps)
      : samples_(samples),
        sizes_(sizes),
        units_(sample_units(sizes, std::vector<std::int64_t>(sizes.size(), at_once))),
        caps_(caps) {
    // what has fewer rows fits where more fit
    std::ranges::stable_sort(units_, {}, [&](const SampleUnit& unit) { return rows(unit); });
    grouping_.ranks = samples_.task().ranks;
    for (const SampleUnit& unit : units_) {
      grouping_.lengths.push_back(kUnitTokens + rows(unit));
    }
    std::vector<GroupsOfAKind> kinds;
    for (const int size : ranks) {
      add_kind(size, kinds);
    }
    const std::vector<double>& speeds = samples_.speeds().speeds();
    add_types(kinds, speeds, least_speed(speeds), grouping_);
  }

  [[nodiscard]] bool any() const { return !grouping_.types.empty(); }

  std::optional<Plan> plan(const std::vector<std::int64_t>& lengths) {
    const GroupingAnswer answer =
        grouping_planner("fast").plan(grouping_, {.moves = kMovesOfTraining});
    if (!answer.grouping) {
      return std::nullopt;
    }
    Plan plan = plan_of_samples(samples_.task(), lengths);
    plan.planner_space = "groups";
    for (const Grouping::MicroBatch& groups : answer.grouping->micro_batches) {
      if (!add(groups, plan)) {
        return std::nullopt;
      }
    }
    const PlanningTask& task = samples_.task();
    const bool sound = predicted_to_fit(samples_, plan, caps_) &&
                       problems(plan, {.model = task.model, .precision = task.precision}).empty();
    return sound ? std::optional(std::move(plan)) : std::nullopt;
  }

 private:
  [[nodiscard]] std::int64_t rows(const SampleUnit& unit) const {
    return sizes_[unit.size].rows * unit.count();
  }

  // None, too, where there is no way to run on so few ranks.
  std::optional<SamplePlans::Fitting> fitting(
      const SampleUnit& unit, std::int64_t count, int ranks) {
    const SamplesOfASize& size = sizes_[unit.size];
    try {
      return samples_
          .best(
              {.dims = size.dims, .rows = size.rows, .samples = count, .ranks = ranks},
              samples_.messages(),
              caps_)
          .fitting;
    } catch (const std::invalid_argument&) {
      return std::nullopt;
    }
  }

  void add_kind(int ranks, std::vector<GroupsOfAKind>& kinds) {
    std::vector<double> seconds(units_.size(), kNoRoomSeconds);
    std::int64_t capacity = 0;
    for (std::size_t u = 0; u < units_.size(); ++u) {
      const auto found = fitting(units_[u], units_[u].count(), ranks);
      if (!found) {
        break;
      }
      seconds[u] = found->seconds;
      capacity = grouping_.lengths[u];
    }
    if (capacity > 0) {
      GroupsOfAKind& kind = kinds.emplace_back();
      kind.type.name = std::to_string(ranks) + " ranks";
      kind.type.ranks = ranks;
      kind.type.capacity = capacity;
      kind.seconds = std::move(seconds);
    }
  }

  // A micro-batch; false: there is no program for its idle ranks, or the groups do not lie so.
  bool add(const Grouping::MicroBatch& groups, Plan& plan) {
    const auto named = [&](const std::optional<SamplePlans::Fitting>& found) {
      return found ? std::optional(name_in(plan, found->program)) : std::nullopt;
    };
    std::optional<PlanMicroBatch> micro = side_by_side(
        grouping_,
        groups,
        [&](const Grouping::Group& group) {
          const SampleUnit& unit = units_[idx(group.documents.front())];
          return named(fitting(unit, unit.count(), grouping_.types[idx(group.type)].ranks));
        },
        // idle ranks gather weights as the others do
        [&] { return named(fitting(units_.front(), 1, 1)); });
    if (!micro) {
      return false;
    }
    for (PlanGroup& group : micro->groups) {
      if (!group.documents.empty()) {
        const SampleUnit& unit = units_[idx(group.documents.front())];
        group.documents = unit.samples;
        group.dims = sizes_[unit.size].dims;
        if (std::ssize(group.ranks) == grouping_.ranks) {
          group.mesh = samples_.task().mesh;
        }
      }
    }
    plan.micro_batches.push_back(*std::move(micro));
    return true;
  }

  SamplePlans& samples_;
  const std::vector<SamplesOfASize>& sizes_;
  std::vector<SampleUnit> units_;
  Caps caps_;
  GroupingTask grouping_;
};

}  // namespace

std::optional<Plan> samples_in_groups(
    SamplePlans& samples,
    const BatchSizes& batch,
    const std::vector<SamplesOfASize>& sizes,
    const std::vector<int>& ranks,
    Caps caps) {
  std::int64_t most = 1;
  for (const SamplesOfASize& one : sizes) {
    most = samples.task().model.has_dim("batch") ? std::max(most, std::ssize(one.samples)) : 1;
  }
  std::optional<Plan> best;
  for (std::int64_t at_once = 1;; at_once = std::min(most, 2 * at_once)) {
    UnitGroups groups(samples, sizes, at_once, ranks, caps);
    if (!groups.any()) {
      break;  // there is no room for more at once
    }
    std::optional<Plan> plan = groups.plan(batch.lengths);
    if (plan && (!best || plan->predicted.seconds < best->predicted.seconds)) {
      best = std::move(plan);
    }
    if (at_once == most) {
      break;
    }
  }
  if (best) {
    say_dims_once(*best);
  }
  return best;
}

}  // namespace paradyse
