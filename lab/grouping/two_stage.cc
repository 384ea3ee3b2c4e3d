// DHP's two stages ("Efficient Scaling of MLLM Training with Dynamic Hybrid Parallelism", arXiv
// 2602.21788), on micro-batches cut as FlexSP cuts them:
//
//   1. Best-fit decreasing on tokens into *atomic* groups, each of the least size that takes its
//   longest
//      document.
//   2. A dynamic programme gives each atomic group its ranks, any size there is from its least on,
//   such
//      that the slowest is fastest and all have N ranks together.
//
// The number of micro-batches goes from the least with room to the first that works out, and
// options.more_micro_batches further.
#include "lab/grouping/two_stage.h"

#include <algorithm>
#include <limits>
#include <set>
#include <utility>
#include <vector>

#include "lab/grouping/blaster.h"
#include "lab/grouping/rivals.h"
#include "src/plan/search/grouping/packing.h"

namespace paradyse {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// `documents` are longest first.
OpenMicroBatch atomic_groups(const GroupingTask& task, const std::vector<int>& documents) {
  OpenMicroBatch groups;
  std::set<std::pair<std::int64_t, std::size_t>> rooms;  // tokens, group
  for (const int k : documents) {
    const std::int64_t tokens = task.lengths[idx(k)];
    std::size_t group = groups.size();
    if (const auto room = rooms.lower_bound({tokens, 0}); room != rooms.end()) {
      group = room->second;
      rooms.erase(room);
    } else {
      groups.emplace_back(task, least_type(task, tokens, k));
    }
    groups[group].add(task, k);
    rooms.emplace(task.types[idx(groups[group].type)].capacity - groups[group].tokens, group);
  }
  return groups;
}

double seconds_in(const GroupingTask& task, const OpenGroup& group, int type) {
  return group_seconds(task, {.type = type, .documents = group.documents});
}

// The groups with the types that make the slowest fastest; none where ranks do not suffice.
std::optional<OpenMicroBatch> with_ranks(const GroupingTask& task, OpenMicroBatch groups) {
  const std::size_t ranks = idx(task.ranks);
  // slowest[g][r]: of the first g groups on r ranks or fewer.
  std::vector<std::vector<double>> slowest(
      groups.size() + 1, std::vector<double>(ranks + 1, kInfinity));
  std::vector<std::vector<int>> chosen(groups.size(), std::vector<int>(ranks + 1, -1));
  std::ranges::fill(slowest[0], 0);
  for (std::size_t g = 0; g < groups.size(); ++g) {
    for (int t = 0; t < std::ssize(task.types); ++t) {
      const std::size_t size = idx(task.types[idx(t)].ranks);
      if (!task.fits(t, groups[g].tokens)) {
        continue;
      }
      const double seconds = seconds_in(task, groups[g], t);
      for (std::size_t r = size; r <= ranks; ++r) {
        const double all = std::max(seconds, slowest[g][r - size]);
        if (all < slowest[g + 1][r]) {
          slowest[g + 1][r] = all;
          chosen[g][r] = t;
        }
      }
    }
  }
  if (slowest[groups.size()][ranks] == kInfinity) {
    return std::nullopt;
  }
  std::size_t left = ranks;
  for (std::size_t g = groups.size(); g-- > 0;) {
    OpenGroup& group = groups[g];
    group.type = chosen[g][left];
    group.seconds = seconds_in(task, group, group.type);
    left -= idx(task.types[idx(group.type)].ranks);
  }
  return groups;
}

GroupingAnswer plan_two_stage(const GroupingTask& task, const GroupingOptions& options) {
  GroupingAnswer answer{.why_not = why_none_fits(task)};
  if (!answer.why_not.empty()) {
    return answer;
  }
  if (task.documents() == 0) {
    answer.grouping = Grouping{};
    return answer;
  }
  int more = options.more_micro_batches;
  // With a micro-batch for each document ranks suffice.
  for (int m = 1; m <= task.documents() && (!answer.grouping || more > 0); ++m) {
    std::vector<OpenMicroBatch> micro_batches;
    for (const std::vector<int>& documents : blasted(task, m)) {
      std::optional<OpenMicroBatch> groups = two_stages(task, documents);
      if (!groups) {
        break;
      }
      micro_batches.push_back(std::move(*groups));
    }
    more -= answer.grouping ? 1 : 0;
    ++answer.tried;
    if (std::ssize(micro_batches) < m) {
      continue;
    }
    Grouping grouping = closed(task, micro_batches);
    if (!answer.grouping || grouping.seconds < answer.grouping->seconds) {
      answer.grouping = std::move(grouping);
    }
  }
  return answer;
}

}  // namespace

std::optional<OpenMicroBatch> two_stages(
    const GroupingTask& task, const std::vector<int>& documents) {
  return with_ranks(task, atomic_groups(task, documents));
}

GroupingPlannerRow two_stage_planner() {
  return {
      .name = "two-stage",
      .summary =
          "best-fit into atomic groups, then dynamic programming over their ranks: the DHP paper's "
          "method",
      .plan = plan_two_stage};
}

}  // namespace paradyse
