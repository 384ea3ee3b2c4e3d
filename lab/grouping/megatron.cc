// Megatron-LM's dynamic context parallelism as it schedules a batch (BalancedCPScheduler in
// megatron/core/pipeline_parallel/hybrid_cp_schedule.py, 2025): a document runs on the least power
// of two of ranks that has room for it, and costs s^2 / ranks.  A micro-batch is made thus:
//
//   1. The documents left, longest first, are cut into as many *buckets* of about equal cost as
//   there are
//      different sizes among them.
//   2. The first document of the first bucket that can be placed goes to the least busy group of
//   its size,
//      or, where ranks are free and that group is busy, to a new one.  That is done when none can
//      be placed, or when documents of a smaller size than the first one's were placed and no rank
//      is idle or more than 5 % below the busiest.
//   3. The busiest group gives its last documents back while that makes ranks less uneven; free
//   ranks are
//      given to the smallest groups, doubling them.
//
// Ours: a group takes a document only where it has room for it beside those that it has, since here
// they run together.
#include <algorithm>
#include <bit>
#include <deque>
#include <iterator>
#include <limits>
#include <set>
#include <vector>

#include "lab/grouping/rivals.h"
#include "src/plan/search/grouping/packing.h"

namespace paradyse {
namespace {

constexpr double kSlack = 0.05;       // of the busiest rank, that makes a micro-batch even
constexpr double kBucketSlack = 1.1;  // of a bucket's share of the costs

class Megatron {
 public:
  explicit Megatron(const GroupingTask& task) : task_(task) {
    for (int k = 0; k < task.documents(); ++k) {
      type_of_.push_back(type_for(k));
    }
  }

  std::vector<OpenMicroBatch> micro_batches() {
    std::vector<OpenMicroBatch> found;
    std::vector<int> left = longest_first(task_);
    while (!left.empty()) {
      left = next(left);
      OpenMicroBatch& micro_batch = found.emplace_back();
      for (const Group& group : groups_) {
        OpenGroup& open = micro_batch.emplace_back(task_, group.type);
        for (const int k : group.documents) {
          open.add(task_, k);
        }
      }
    }
    return found;
  }

 private:
  struct Group {
    int type = 0;
    std::int64_t tokens = 0;
    double cost = 0;  // s^2 / ranks of its documents
    std::vector<int> documents;
  };

  [[nodiscard]] int ranks(int type) const { return task_.types[idx(type)].ranks; }
  [[nodiscard]] bool power_of_two(int type) const {
    return std::has_single_bit(static_cast<unsigned>(ranks(type)));
  }
  [[nodiscard]] double cost(int k, int type) const {
    const auto s = static_cast<double>(task_.lengths[idx(k)]);
    return s * s / ranks(type);
  }

  // The first type of the least power of two that has room; of another size where none has.
  [[nodiscard]] int type_for(int k) const {
    int other = -1;
    for (int t = 0; t < std::ssize(task_.types); ++t) {
      if (task_.fits(t, task_.lengths[idx(k)])) {
        if (power_of_two(t)) {
          return t;
        }
        other = other < 0 ? t : other;
      }
    }
    return other;
  }

  [[nodiscard]] std::vector<std::deque<int>> buckets(const std::vector<int>& documents) const {
    std::set<int> types;
    double sum = 0;
    for (const int k : documents) {
      types.insert(type_of_[idx(k)]);
      sum += cost(k, type_of_[idx(k)]);
    }
    const double share = kBucketSlack * sum / static_cast<double>(types.size());
    std::vector<std::deque<int>> found(1);
    double filled = 0;
    for (const int k : documents) {
      const double more = cost(k, type_of_[idx(k)]);
      if (!found.back().empty() && filled + more > share) {
        found.emplace_back();
        filled = 0;
      }
      found.back().push_back(k);
      filled += more;
    }
    return found;
  }

  // The least busy group of the document's type with room, or null.
  Group* group_for(int k) {
    Group* best = nullptr;
    for (Group& group : groups_) {
      if (group.type == type_of_[idx(k)] &&
          task_.fits(group.type, group.tokens + task_.lengths[idx(k)]) &&
          (best == nullptr || group.cost < best->cost)) {
        best = &group;
      }
    }
    return best;
  }

  void add(Group& group, int k) const {
    group.tokens += task_.lengths[idx(k)];
    group.cost += cost(k, group.type);
    group.documents.push_back(k);
  }

  // Makes groups_ and returns the documents that they have not.
  std::vector<int> next(const std::vector<int>& documents) {
    groups_.clear();
    free_ = task_.ranks;
    std::vector<std::deque<int>> waiting = buckets(documents);
    int first_ranks = 0;
    bool smaller = false;
    for (;;) {
      const auto bucket = std::ranges::find_if(waiting, [&](const std::deque<int>& queue) {
        return !queue.empty() && (group_for(queue.front()) != nullptr ||
                                  free_ >= ranks(type_of_[idx(queue.front())]));
      });
      if (bucket == waiting.end()) {
        break;
      }
      const int k = bucket->front();
      bucket->pop_front();
      const int type = type_of_[idx(k)];
      Group* group = group_for(k);
      if (group == nullptr || free_ >= ranks(type)) {
        free_ -= ranks(type);
        group = &groups_.emplace_back();
        group->type = type;
      }
      add(*group, k);
      first_ranks = first_ranks == 0 ? ranks(type) : first_ranks;
      smaller = smaller || ranks(type) < first_ranks;
      if (smaller && uneven() <= kSlack * busiest()->cost) {
        break;
      }
    }
    std::vector<int> left;
    for (const std::deque<int>& queue : waiting) {
      left.insert(left.end(), queue.begin(), queue.end());
    }
    give_back(left);
    spend_free_ranks();
    std::ranges::stable_sort(
        left, [&](int a, int b) { return task_.lengths[idx(a)] > task_.lengths[idx(b)]; });
    return left;
  }

  std::vector<Group>::iterator busiest() {
    return std::ranges::max_element(groups_, {}, &Group::cost);
  }
  double uneven() {
    return busiest()->cost -
           (free_ > 0 ? 0 : std::ranges::min_element(groups_, {}, &Group::cost)->cost);
  }

  void give_back(std::vector<int>& left) {
    while (free_ == 0 && uneven() > kSlack * busiest()->cost && busiest()->documents.size() > 1) {
      const Group before = *busiest();
      const double uneven_before = uneven();
      const auto group = busiest();
      const int k = group->documents.back();
      group->documents.pop_back();
      group->tokens -= task_.lengths[idx(k)];
      group->cost -= cost(k, group->type);
      if (uneven() >= uneven_before) {
        *group = before;
        return;
      }
      left.push_back(k);
    }
  }

  void spend_free_ranks() {
    while (free_ > 0) {
      const auto smallest = std::ranges::min_element(
          groups_, {}, [&](const Group& group) { return ranks(group.type); });
      int doubled = -1;
      for (int t = 0; t < std::ssize(task_.types) && doubled < 0; ++t) {
        if (ranks(t) == 2 * ranks(smallest->type) && task_.fits(t, smallest->tokens)) {
          doubled = t;
        }
      }
      if (doubled < 0 || ranks(smallest->type) > free_) {
        return;
      }
      free_ -= ranks(smallest->type);
      smallest->type = doubled;
    }
  }

  const GroupingTask& task_;
  std::vector<int> type_of_;   // [document]
  std::vector<Group> groups_;  // of the micro-batch under way
  int free_ = 0;               // ranks
};

GroupingAnswer plan_megatron(const GroupingTask& task, const GroupingOptions&) {
  GroupingAnswer answer{.why_not = why_none_fits(task)};
  if (answer.why_not.empty()) {
    answer.grouping = closed(task, Megatron(task).micro_batches());
    answer.tried = 1;
  }
  return answer;
}

}  // namespace

GroupingPlannerRow megatron_planner() {
  return {
      .name = "megatron",
      .summary = "Megatron-LM's dynamic rule: the smallest power of two that fits, cost s^2",
      .plan = plan_megatron};
}

}  // namespace paradyse
