// The optimum of small cases, by dynamic programmes over subsets of the documents:
//
//     group(S, q)     seconds of S as one group of at most q ranks: its best type
//     beside(S, r)  = min over T in S, q of  max(group(T, q), beside(S \ T, r - q))
//     best(S)       = min over U in S of  seconds of beside(U, N) as a micro-batch + best(S \ U)
//
// where T and U have S's first document: 3^K / 2 pairs of a set and its part, each looked at for
// every size q and every r.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "src/plan/search/grouping/packing.h"

namespace paradyse {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
// Steps, as `steps_of` counts them: less than half a second.  14 documents on 8 ranks take 0.42 of
// it with groups of 1, 2, 4 and 8, and 0.72 with groups of any size.
constexpr double kMostSteps = 1.2e8;
constexpr int kMostDocuments = 14;

using Set = std::uint32_t;

// Calls body(part) for all parts of `set` that have its first document, the whole set first.
template <typename Body>
void for_parts(Set set, Body&& body) {
  const Set first = set & (~set + 1);
  const Set others = set ^ first;
  for (Set part = others;; part = (part - 1) & others) {
    body(part | first);
    if (part == 0) {
      return;
    }
  }
}

class Exact {
 public:
  explicit Exact(const GroupingTask& task) : task_(task), sets_(Set{1} << task.documents()) {
    for (const GroupType& type : task.types) {
      if (sizes_.empty() || type.ranks > sizes_.back()) {
        sizes_.push_back(type.ranks);
      }
    }
    ranks_ = idx(task.ranks);
  }

  static double steps_of(const GroupingTask& task) {
    double per_pair = 0;
    int before = 0;
    for (const GroupType& type : task.types) {
      per_pair += type.ranks > before ? task.ranks - type.ranks + 1 : 0;
      before = type.ranks;
    }
    return std::pow(3, task.documents()) / 2 * per_pair;
  }

  Grouping solve() {
    price_groups();
    pack_micro_batches();
    order_micro_batches();
    Grouping grouping;
    for (Set left = sets_ - 1; left != 0; left ^= part_of_[left]) {
      grouping.micro_batches.push_back(micro_batch(part_of_[left]));
    }
    grouping.seconds = seconds_of(task_, grouping);
    return grouping;
  }

 private:
  [[nodiscard]] std::vector<int> documents(Set set) const {
    std::vector<int> found;
    for (int k = 0; k < task_.documents(); ++k) {
      if ((set >> k & 1) != 0) {
        found.push_back(k);
      }
    }
    return found;
  }

  void price_groups() {
    group_.assign(sizes_.size() * sets_, kInfinity);
    type_of_.assign(sizes_.size() * sets_, -1);
    for (int t = 0; t < std::ssize(task_.types); ++t) {
      const GroupType& type = task_.types[idx(t)];
      const auto size = idx(std::ranges::find(sizes_, type.ranks) - sizes_.begin());
      for (Set set = 1; set < sets_; ++set) {
        const Grouping::Group group{.type = t, .documents = documents(set)};
        double& known = group_[size * sets_ + set];
        if (task_.fits(t, group_tokens(task_, group))) {
          if (const double seconds = group_seconds(task_, group); seconds < known) {
            known = seconds;
            type_of_[size * sets_ + set] = t;
          }
        }
      }
    }
  }

  // [ranks][set]; of no ranks only the empty set.
  double& beside(std::size_t ranks, Set set) { return beside_[ranks * sets_ + set]; }

  void pack_micro_batches() {
    beside_.assign((ranks_ + 1) * sets_, kInfinity);
    for (std::size_t r = 0; r <= ranks_; ++r) {
      beside(r, 0) = 0;
    }
    for (Set set = 1; set < sets_; ++set) {
      for (std::size_t s = 0; s < sizes_.size(); ++s) {
        const double* group = &group_[s * sets_];
        for (std::size_t r = idx(sizes_[s]); r <= ranks_; ++r) {
          const double* rest = &beside_[(r - idx(sizes_[s])) * sets_];
          double best = beside(r, set);
          for_parts(set, [&](Set part) {
            best = std::min(best, std::max(group[part], rest[set ^ part]));
          });
          beside(r, set) = best;
        }
      }
    }
  }

  void order_micro_batches() {
    std::vector<double> best(sets_, kInfinity);
    part_of_.assign(sets_, 0);
    best[0] = 0;
    for (Set set = 1; set < sets_; ++set) {
      for_parts(set, [&](Set part) {
        const double seconds = beside(ranks_, part);
        if (seconds < kInfinity && task_.micro_batch(seconds) + best[set ^ part] < best[set]) {
          best[set] = task_.micro_batch(seconds) + best[set ^ part];
          part_of_[set] = part;
        }
      });
    }
  }

  // The groups behind beside(N, set): the first choices that reach it.
  Grouping::MicroBatch micro_batch(Set set) {
    Grouping::MicroBatch groups;
    const double seconds = beside(ranks_, set);
    std::size_t ranks = ranks_;
    while (set != 0) {
      Set chosen = 0;
      std::size_t size = 0;
      for (std::size_t s = 0; s < sizes_.size() && idx(sizes_[s]) <= ranks; ++s) {
        for_parts(set, [&](Set part) {
          if (chosen == 0 && group_[s * sets_ + part] <= seconds &&
              beside(ranks - idx(sizes_[s]), set ^ part) <= seconds) {
            chosen = part;
            size = s;
          }
        });
      }
      groups.push_back({.type = type_of_[size * sets_ + chosen], .documents = documents(chosen)});
      ranks -= idx(sizes_[size]);
      set ^= chosen;
    }
    return groups;
  }

  const GroupingTask& task_;
  Set sets_;                    // how many there are
  std::size_t ranks_ = 0;       // N
  std::vector<int> sizes_;      // of groups, ascending
  std::vector<double> group_;   // [size][set]; infinite: has no room
  std::vector<int> type_of_;    // [size][set]
  std::vector<double> beside_;  // [ranks][set]
  std::vector<Set> part_of_;    // [set] its first micro-batch
};

GroupingAnswer plan_exact(const GroupingTask& task, const GroupingOptions&) {
  GroupingAnswer answer{.why_not = why_none_fits(task)};
  if (!answer.why_not.empty()) {
    return answer;
  }
  if (!task.pools.empty()) {
    answer.why_not = "exact works only for identical devices: take another planner";
    return answer;
  }
  if (exact_steps(task) > kMostSteps) {
    answer.why_not =
        "exact plans at most " + std::to_string(kMostDocuments) + " documents, and " +
        std::to_string(static_cast<std::int64_t>(kMostSteps / 1e6)) +
        " million steps (3^documents / 2 x ranks, added up over the sizes of groups); these are " +
        std::to_string(task.documents()) + " documents on " + std::to_string(task.ranks) +
        " ranks: give fewer of either, or take another planner";
    return answer;
  }
  answer.grouping = Exact(task).solve();
  answer.optimal = true;
  answer.tried = static_cast<std::int64_t>(Exact::steps_of(task));
  return answer;
}

}  // namespace

double exact_steps(const GroupingTask& task) {
  const bool across_nodes = task.node > 0 && task.ranks > task.node;
  return across_nodes || !task.pools.empty() || task.documents() > kMostDocuments
             ? kInfinity
             : Exact::steps_of(task);
}

GroupingPlannerRow exact_planner() {
  return {
      .name = "exact",
      .summary = "the proved optimum of small cases: at most 14 documents on 8 ranks",
      .plan = plan_exact,
      .knows_pools = true};  // and says so
}

}  // namespace paradyse
