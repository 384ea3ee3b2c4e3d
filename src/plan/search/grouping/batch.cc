#include "src/plan/search/grouping/batch.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <map>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>

#include "src/plan/base/number_text.h"

namespace paradyse {
namespace {

std::string percent(double share) { return percent_text(share); }

std::string text(double number) { return fmt::format("{:.4g}", number); }

}  // namespace

PlannedBatch plan_batch(
    const std::vector<GroupSpace>& spaces,
    const GroupingPlannerRow& planner,
    const GroupingOptions& options) {
  if (!(options.moves >= 0 && options.moves <= kMostMoves) || options.threads < 1 ||
      options.threads > kMostThreads) {
    throw std::invalid_argument(fmt::format(
        "moves {}, threads {}: accepted are 0 to {} times the planner's moves, and 1 to {} threads",
        options.moves,
        options.threads,
        kMostMoves,
        kMostThreads));
  }
  PlannedBatch best;
  best.seconds = std::numeric_limits<double>::infinity();
  bool proved = true;  // of every space that has plans
  const auto begin = std::chrono::steady_clock::now();
  for (std::size_t s = 0; s < spaces.size(); ++s) {
    GroupingAnswer answer = planner.plan_on(spaces[s].task, options);
    proved = proved && (answer.optimal || !too_long(spaces[s].task).empty());
    if (!answer.grouping) {
      best.why_not = best.why_not.empty() ? answer.why_not : best.why_not;
      continue;
    }
    const double seconds = answer.grouping->seconds + spaces[s].batch_seconds;
    if (seconds < best.seconds) {
      best.seconds = seconds;
      best.space = s;
      best.grouping = *std::move(answer.grouping);
      best.plan.emplace();
    }
  }
  best.search_seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  if (!best.plan) {
    return best;
  }
  best.why_not.clear();
  best.bound = least_bound(spaces);
  best.optimal = proved;
  if (best.optimal) {
    best.bound = {.seconds = best.seconds, .name = "optimum, proved"};
  }
  best.plan = plan_of(spaces[best.space], best.grouping);
  best.plan->planner_name = planner.name;
  best.plan->planner_seconds = best.search_seconds;
  best.plan->predicted.lower_bound_seconds = std::min(best.bound.seconds, best.seconds);
  return best;
}

LowerBound least_bound(const std::vector<GroupSpace>& spaces) {
  LowerBound least{.seconds = std::numeric_limits<double>::infinity(), .name = "no plan"};
  for (const GroupSpace& space : spaces) {
    if (too_long(space.task).empty()) {
      LowerBound bound = lower_bound(space.task);
      bound.seconds += space.batch_seconds;
      if (bound.seconds < least.seconds) {
        least = std::move(bound);
      }
    }
  }
  return least;
}

std::string explained(const GroupSpace& space, const Grouping& grouping) {
  const GroupingTask& task = space.task;
  const std::string what = space.of_samples() ? "sample" : "document";
  std::string said;
  double all = 0;     // rank seconds
  double wasted = 0;  // more than where documents need least
  double waiting = 0;
  double idle = 0;
  for (std::size_t m = 0; m < grouping.micro_batches.size(); ++m) {
    const Grouping::MicroBatch& micro_batch = grouping.micro_batches[m];
    const double slowest = slowest_group(task, micro_batch);
    struct Kind {
      int groups = 0;
      std::int64_t documents = 0;
      std::int64_t tokens = 0;
      double seconds = 0;
    };
    std::map<int, Kind, std::greater<>> kinds;
    double busy = 0;  // ranks, as areas count them
    int fullest = 0;  // groups that have no room for as much as a hundredth more
    for (const Grouping::Group& group : micro_batch) {
      const GroupType& type = task.types[idx(group.type)];
      Kind& kind = kinds[group.type];
      const double seconds = group_seconds(task, group);
      const std::int64_t tokens = group_tokens(task, group);
      ++kind.groups;
      kind.documents += space.of_samples()
                            ? std::ssize(space.items[idx(group.documents[0])].samples)
                            : std::ssize(group.documents);
      kind.tokens += tokens;
      kind.seconds += seconds;
      busy += type.worth();
      fullest += tokens * 100 >= type.capacity * 99 ? 1 : 0;
      waiting += type.worth() * (slowest - seconds);
      for (const int k : group.documents) {
        double least = std::numeric_limits<double>::infinity();
        for (int t = 0; idx(t) < task.types.size(); ++t) {
          if (task.fits(t, task.lengths[idx(k)])) {
            least = std::min(least, task.types[idx(t)].worth() * task.at(t, k));
          }
        }
        wasted += type.worth() * task.at(group.type, k) - least;
      }
    }
    idle += (task.ranks - busy) * slowest;
    all += task.ranks * slowest;
    said += "micro-batch " + std::to_string(m) + ": " + text(task.micro_batch(slowest)) +
            " s, slowest group " + text(slowest) + " s; ";
    const std::string groups = counted(std::ssize(micro_batch), "group");
    said += space.of_samples() ? groups + "\n"  // each has room for what it has, and for no other
                               : std::to_string(fullest) + " of " + groups +
                                     (fullest == 1 ? " is full\n" : " are full\n");
    for (const auto& [t, kind] : kinds) {
      const GroupType& type = task.types[idx(t)];
      const std::string filled =
          space.of_samples()
              ? ""
              : ", filled " + percent(
                                  static_cast<double>(kind.tokens) /
                                  (kind.groups * static_cast<double>(type.capacity)));
      said += "  " + counted(kind.groups, "group") + " of " + type.name + ": " +
              counted(kind.documents, what) + filled + ", computing " +
              percent(kind.seconds / (kind.groups * slowest)) + "\n";
    }
  }
  const double beside = grouping.seconds * task.ranks - all;
  const double total = grouping.seconds * task.ranks;
  if (total > 0) {
    said += "share of rank time: " + percent(beside / total) +
            " per-micro-batch overhead (weights, gradients; micro-batches: " +
            std::to_string(grouping.micro_batches.size()) + "), " + percent(wasted / total) +
            " for " + what + "s in larger groups than they need, " + percent(waiting / total) +
            " waiting for the slowest group, " + percent(idle / total) + " on ranks without " +
            what + "s\n";
  }
  return said;
}

}  // namespace paradyse
