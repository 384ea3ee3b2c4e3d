#include "src/plan/search/grouping/balanced.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "src/plan/search/grouping/table.h"

namespace paradyse {
namespace {

std::optional<OpenMicroBatch> longest_first_balance(
    const GroupingTask& task, int type, int groups) {
  return dealt(task, OpenMicroBatch(idx(groups), OpenGroup(task, type)), longest_first(task));
}

std::optional<Grouping> of_type(
    const GroupingTask& task, const GroupingOptions& options, int type, const Balance& balance) {
  const int beside = side_by_side(task, type);
  const std::int64_t room = beside * task.types[idx(type)].capacity;
  const std::int64_t tokens = tokens_of(task, longest_first(task));
  std::optional<Grouping> best;
  int more = options.more_micro_batches;
  // With a group for each document every balance works out.
  for (std::int64_t m = (tokens + room - 1) / room; !best || more > 0; ++m) {
    more -= best ? 1 : 0;
    std::optional<OpenMicroBatch> groups = balance(task, type, static_cast<int>(m) * beside);
    if (!groups) {
      continue;
    }
    std::ranges::stable_sort(*groups, std::greater(), &OpenGroup::seconds);
    std::vector<OpenMicroBatch> micro_batches;
    for (auto begin = groups->begin(); begin != groups->end(); begin += beside) {
      micro_batches.emplace_back(begin, begin + beside);
    }
    Grouping grouping = closed(task, micro_batches);
    if (!best || grouping.seconds < best->seconds) {
      best = std::move(grouping);
    }
  }
  return best;
}

}  // namespace

GroupingAnswer balanced(
    const GroupingTask& task, const GroupingOptions& options, const Balance& balance) {
  return best_of_types(task, [&](int type) { return of_type(task, options, type, balance); });
}

GroupingPlannerRow longest_first_planner() {
  return {
      .name = "longest-first",
      .summary =
          "groups of one size, longest document first to the group with the least time (LPT)",
      .plan = [](const GroupingTask& task, const GroupingOptions& options) {
        return balanced(task, options, longest_first_balance);
      }};
}

}  // namespace paradyse
