// Groups of one size, balanced on time over the whole batch as machines in scheduling are: the
// groups of all M micro-batches together are the machines; done, they are sorted by time, and the
// slowest of them are one micro-batch, the next slowest the next.  M goes from the least with room
// for all tokens to the first that works out, and options.more_micro_batches further; the best M
// and the best size win.
//
//   longest-first    Graham 1969 (LPT): longest first, each to the least busy group with room
//   karmarkar-karp   Karmarkar and Karp 1982, the differencing method for many sets: the two
//   partial
//                    partitions that are most uneven become one, largest set with smallest.  It
//                    knows no capacities: what is too much for a group goes to the least busy one
//                    with room.
#include <algorithm>
#include <functional>
#include <queue>
#include <utility>
#include <vector>

#include "src/plan/search/grouping/packing.h"
#include "src/plan/search/grouping/table.h"

namespace paradyse {
namespace {

// So many groups of the type with all documents, or none.
using Balance =
    std::function<std::optional<OpenMicroBatch>(const GroupingTask&, int type, int groups)>;

std::optional<OpenMicroBatch> longest_first_balance(
    const GroupingTask& task, int type, int groups) {
  return dealt(task, OpenMicroBatch(idx(groups), OpenGroup(task, type)), longest_first(task));
}

// Some of the documents in sets, the most seconds first; sets that are not there are empty.
struct Partial {
  struct Part {
    double seconds = 0;
    std::vector<int> documents;
  };
  std::vector<Part> sets;

  [[nodiscard]] double uneven(std::size_t sets_in_all) const {
    return sets.front().seconds - (sets.size() < sets_in_all ? 0 : sets.back().seconds);
  }
};

// The largest set of one with the smallest of the other, and so on.
Partial united(Partial a, Partial b, std::size_t sets_in_all) {
  a.sets.resize(
      sets_in_all < a.sets.size() + b.sets.size() ? sets_in_all : a.sets.size() + b.sets.size());
  for (std::size_t i = 0; i < b.sets.size(); ++i) {
    Partial::Part& to = a.sets[a.sets.size() - 1 - i];
    to.seconds += b.sets[i].seconds;
    to.documents.insert(to.documents.end(), b.sets[i].documents.begin(), b.sets[i].documents.end());
  }
  std::ranges::stable_sort(a.sets, std::greater(), &Partial::Part::seconds);
  return a;
}

Partial differenced(const GroupingTask& task, int type, std::size_t sets) {
  std::vector<Partial> partials;
  // The most uneven first, of equals the older.
  using Entry = std::pair<double, int>;
  std::priority_queue<Entry> queue;
  const auto push = [&](Partial partial) {
    queue.emplace(partial.uneven(sets), -static_cast<int>(partials.size()));
    partials.push_back(std::move(partial));
  };
  for (int k = 0; k < task.documents(); ++k) {
    push({.sets = {{.seconds = task.at(type, k), .documents = {k}}}});
  }
  const auto pop = [&] {
    const int at = -queue.top().second;
    queue.pop();
    return std::exchange(partials[idx(at)], {});
  };
  while (queue.size() > 1) {
    Partial a = pop();
    Partial b = pop();
    push(united(std::move(a), std::move(b), sets));
  }
  return queue.empty() ? Partial{} : pop();
}

std::optional<OpenMicroBatch> karmarkar_karp_balance(
    const GroupingTask& task, int type, int groups) {
  OpenMicroBatch open(idx(groups), OpenGroup(task, type));
  std::vector<int> without_room;
  const Partial whole = differenced(task, type, idx(groups));
  for (std::size_t g = 0; g < whole.sets.size(); ++g) {
    std::vector<int> documents = whole.sets[g].documents;
    std::ranges::sort(documents, [&](int a, int b) {
      return std::pair(-task.lengths[idx(a)], a) < std::pair(-task.lengths[idx(b)], b);
    });
    for (const int k : documents) {
      if (open[g].takes(task, k)) {
        open[g].add(task, k);
      } else {
        without_room.push_back(k);
      }
    }
  }
  std::ranges::sort(without_room);
  std::ranges::stable_sort(
      without_room, [&](int a, int b) { return task.lengths[idx(a)] > task.lengths[idx(b)]; });
  return dealt(task, std::move(open), without_room);
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

template <auto& balance>
GroupingAnswer plan(const GroupingTask& task, const GroupingOptions& options) {
  return best_of_types(task, [&](int type) { return of_type(task, options, type, balance); });
}

}  // namespace

GroupingPlannerRow longest_first_planner() {
  return {
      .name = "longest-first",
      .summary =
          "groups of one size, longest document first to the group with the least time (LPT)",
      .plan = plan<longest_first_balance>};
}

GroupingPlannerRow karmarkar_karp_planner() {
  return {
      .name = "karmarkar-karp",
      .summary = "groups of one size, balanced by differencing (Karmarkar-Karp)",
      .plan = plan<karmarkar_karp_balance>};
}

}  // namespace paradyse
