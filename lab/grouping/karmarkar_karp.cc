// Groups of one size (balanced.h) by Karmarkar and Karp 1982, the differencing method for many
// sets: the two partial partitions that are most uneven become one, largest set with smallest.  It
// knows no capacities: what is too much for a group goes to the least busy one with room.
//
// verl does so with a weight of its own (calculate_workload in verl/utils/seqlen_balancing.py),
// that of a model of 4,096 columns, whatever the model.
#include <algorithm>
#include <functional>
#include <optional>
#include <queue>
#include <utility>
#include <vector>

#include "lab/grouping/rivals.h"
#include "src/plan/search/grouping/balanced.h"

namespace paradyse {
namespace {

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

// What a document counts in a group of the type.
using Weight = std::function<double(const GroupingTask& task, int type, int document)>;

Partial differenced(const GroupingTask& task, int type, std::size_t sets, const Weight& weight) {
  std::vector<Partial> partials;
  // The most uneven first, of equals the older.
  using Entry = std::pair<double, int>;
  std::priority_queue<Entry> queue;
  const auto push = [&](Partial partial) {
    queue.emplace(partial.uneven(sets), -static_cast<int>(partials.size()));
    partials.push_back(std::move(partial));
  };
  for (int k = 0; k < task.documents(); ++k) {
    push({.sets = {{.seconds = weight(task, type, k), .documents = {k}}}});
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

std::optional<OpenMicroBatch> differenced_balance(
    const GroupingTask& task, int type, int groups, const Weight& weight) {
  OpenMicroBatch open(idx(groups), OpenGroup(task, type));
  std::vector<int> without_room;
  const Partial whole = differenced(task, type, idx(groups), weight);
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

GroupingAnswer balanced_by(
    const GroupingTask& task, const GroupingOptions& options, const Weight& weight) {
  return balanced(task, options, [&](const GroupingTask& of, int type, int groups) {
    return differenced_balance(of, type, groups, weight);
  });
}

}  // namespace

GroupingPlannerRow karmarkar_karp_planner() {
  return {
      .name = "karmarkar-karp",
      .summary = "groups of one size, balanced by differencing (Karmarkar-Karp)",
      .plan = [](const GroupingTask& task, const GroupingOptions& options) {
        return balanced_by(
            task, options, [](const GroupingTask& of, int type, int k) { return of.at(type, k); });
      }};
}

GroupingPlannerRow verl_planner() {
  return {
      .name = "verl",
      .summary = "the same, where a document of s tokens counts 24,576 s + s^2 (verl)",
      .plan = [](const GroupingTask& task, const GroupingOptions& options) {
        return balanced_by(task, options, [](const GroupingTask& of, int, int k) {
          const auto s = static_cast<double>(of.lengths[idx(k)]);
          return 24576 * s + s * s;
        });
      }};
}

}  // namespace paradyse
