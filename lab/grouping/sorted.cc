// Groups of one size, documents sorted: a micro-batch has neighbours in length, dealt longest first
// to the group that is done first and has room.  Of all ways to cut the sorted batch into
// micro-batches the best one, by a dynamic programme:
//
//     best[j] = min over i < j of  best[i] + seconds of documents i, ..., j - 1 as one micro-batch
//
// From j to j + 1 one more document is dealt.  The best size wins.  Ours, not published: the
// strongest plan we know without groups of different sizes.
#include <algorithm>
#include <limits>
#include <vector>

#include "lab/grouping/rivals.h"
#include "src/plan/search/grouping/packing.h"

namespace paradyse {
namespace {

// The sorted batch is cut at so many places at most, evenly, and where a micro-batch is full.
constexpr std::ptrdiff_t kCuts = 1024;

std::optional<Grouping> of_type(const GroupingTask& task, int type) {
  const std::vector<int> order = longest_first(task);
  const OpenMicroBatch empty(idx(side_by_side(task, type)), OpenGroup(task, type));
  const std::ptrdiff_t documents = std::ssize(order);
  const std::ptrdiff_t stride = (documents + kCuts - 1) / kCuts;
  std::vector<double> best(idx(documents + 1), std::numeric_limits<double>::infinity());
  std::vector<std::ptrdiff_t> before(idx(documents + 1));  // where the last micro-batch begins
  best[0] = 0;
  for (std::ptrdiff_t i = 0; i < documents; ++i) {
    if (best[idx(i)] == std::numeric_limits<double>::infinity()) {
      continue;
    }
    Dealer dealer(task, empty);
    for (std::ptrdiff_t j = i; j < documents && dealer.deal(order[idx(j)]);) {
      ++j;
      const bool full = j == documents || !dealer.has_room(order[idx(j)]);
      const double seconds = best[idx(i)] + task.micro_batch(dealer.slowest());
      if ((full || j % stride == 0) && seconds < best[idx(j)]) {
        best[idx(j)] = seconds;
        before[idx(j)] = i;
      }
    }
  }
  std::vector<OpenMicroBatch> micro_batches;
  for (std::ptrdiff_t j = documents; j > 0; j = before[idx(j)]) {
    Dealer dealer(task, empty);
    for (std::ptrdiff_t i = before[idx(j)]; i < j; ++i) {
      dealer.deal(order[idx(i)]);
    }
    micro_batches.push_back(dealer.groups());
  }
  std::ranges::reverse(micro_batches);
  return closed(task, micro_batches);
}

GroupingAnswer plan_sorted(const GroupingTask& task, const GroupingOptions&) {
  return best_of_types(task, [&](int type) { return of_type(task, type); });
}

}  // namespace

GroupingPlannerRow sorted_planner() {
  return {
      .name = "sorted",
      .summary =
          "groups of one size, documents sorted by length and divided by dynamic programming",
      .plan = plan_sorted};
}

}  // namespace paradyse
