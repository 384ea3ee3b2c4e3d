// Best-fit decreasing (Johnson 1973) with bins of several sizes: longest first, a document goes
// into the group with the least room that still takes it, of whatever size and micro-batch; where
// there is none, into a new group of the least size that takes it, in the first micro-batch with
// ranks for that.  Looks at tokens alone.
#include <algorithm>
#include <set>
#include <tuple>
#include <vector>

#include "lab/grouping/rivals.h"
#include "src/plan/search/grouping/packing.h"

namespace paradyse {
namespace {

GroupingAnswer plan_best_fit(const GroupingTask& task, const GroupingOptions&) {
  GroupingAnswer answer{.why_not = why_none_fits(task)};
  if (!answer.why_not.empty()) {
    return answer;
  }
  std::vector<OpenMicroBatch> micro_batches;
  std::vector<int> free;                                               // [micro-batch] ranks
  std::set<std::tuple<std::int64_t, std::size_t, std::size_t>> rooms;  // tokens, micro-batch, group
  for (const int k : longest_first(task)) {
    const std::int64_t tokens = task.lengths[idx(k)];
    std::size_t m = 0;
    std::size_t g = 0;
    if (const auto room = rooms.lower_bound({tokens, 0, 0}); room != rooms.end()) {
      m = std::get<1>(*room);
      g = std::get<2>(*room);
      rooms.erase(room);
    } else {
      const int type = least_type(task, tokens, k);
      const int ranks = task.types[idx(type)].ranks;
      m = idx(std::ranges::find_if(free, [&](int left) { return left >= ranks; }) - free.begin());
      if (m == free.size()) {
        free.push_back(task.ranks);
        micro_batches.emplace_back();
      }
      free[m] -= ranks;
      g = micro_batches[m].size();
      micro_batches[m].emplace_back(task, type);
    }
    OpenGroup& group = micro_batches[m][g];
    group.add(task, k);
    rooms.emplace(task.types[idx(group.type)].capacity - group.tokens, m, g);
  }
  answer.grouping = closed(task, micro_batches);
  answer.tried = 1;
  return answer;
}

}  // namespace

GroupingPlannerRow best_fit_planner() {
  return {
      .name = "best-fit",
      .summary = "best-fit decreasing on tokens into the smallest groups that fit",
      .plan = plan_best_fit};
}

}  // namespace paradyse
