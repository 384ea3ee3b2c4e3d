// FlexSP's own method (arXiv 2412.01523, sections 4.1 and 4.2, with what its released solver adds):
//
//   * The blaster cuts the batch, longest first, into M contiguous micro-batches of about equal
//   tokens, for M
//     from the least with room and options.more_micro_batches further; the best M wins.
//   * The documents of a micro-batch are put in at most 16 buckets (more where rounding would fill
//   more than
//     half of the room that is left), and each is planned as if it were as long as its bucket's
//     longest.
//   * A *virtual* group p is one of the groups there may be: N / d of each power-of-two size d,
//   fewer of the
//     small ones where long documents take ranks for certain.  A MILP chooses which are used, m_p,
//     and how many documents of bucket q each has, A_qp, such that the slowest is done first:
//
//         minimise C    such that, for all p and q,
//         f m_p + sum_q t_qp A_qp <= C           sum_q s_q A_qp <= capacity_p m_p
//         sum_p A_qp = documents of q            sum_p d_p m_p <= N          m_p >= m_(p+1) if
//         alike
//
//     The second line is the publication's memory and "none on unused groups" in one.  HiGHS solves
//     it in place of SCIP, from a start made by heuristics, so that there always is an answer,
//     within options.solver_seconds.  Where that ends the search, the answer depends on the clock.
//     `published-as-written` has these as the publication writes them, two lines,
//
//         sum_q s_qp A_qp <= capacity_p      sum_q A_qp <= documents m_p
//
//     no order among groups that are alike, and no start: the heuristics' plan is taken only where
//     the solver finds none in time.
//   * A bucket's documents are dealt to its groups, longest first to the least busy; what the plan
//   takes is
//     added up with the lengths that documents have.
//
// A task with sizes that are no powers of two keeps only those that are, if they have room.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <map>
#include <numeric>
#include <utility>
#include <vector>

#include "lab/grouping/blaster.h"
#include "lab/grouping/milp.h"
#include "lab/grouping/rivals.h"
#include "lab/grouping/two_stage.h"
#include "src/plan/search/grouping/packing.h"

namespace paradyse {
namespace {

constexpr int kBuckets = 16;  // Q

bool powers_of_two_suffice(const GroupingTask& task) {
  bool suffice = false;
  for (int t = 0; t < std::ssize(task.types); ++t) {
    suffice = suffice || (std::has_single_bit(static_cast<unsigned>(task.types[idx(t)].ranks)) &&
                          task.fits(t, longest(task)));
  }
  return suffice;
}

// Tokens that find room in a micro-batch, at best.
std::int64_t room_of(const GroupingTask& task) {
  std::int64_t most = 0;
  for (int t = 0; t < std::ssize(task.types); ++t) {
    most = std::max(most, side_by_side(task, t) * task.types[idx(t)].capacity);
  }
  return most;
}

// Groups of one size, dealt longest first, and DHP's two stages: the best of what fits.
std::optional<OpenMicroBatch> start_of(const GroupingTask& task) {
  std::optional<OpenMicroBatch> best;
  double best_seconds = 0;
  const auto take = [&](std::optional<OpenMicroBatch> one) {
    if (one) {
      const double seconds = std::ranges::max(*one, {}, &OpenGroup::seconds).seconds;
      if (!best || seconds < best_seconds) {
        best = std::move(one);
        best_seconds = seconds;
      }
    }
  };
  const std::vector<int> order = longest_first(task);
  take(two_stages(task, order));
  for (int t = 0; t < std::ssize(task.types); ++t) {
    const std::size_t groups = std::min(idx(side_by_side(task, t)), order.size());
    take(dealt(task, OpenMicroBatch(groups, OpenGroup(task, t)), order));
  }
  return best;
}

// How the programme is put to the solver.
enum class Wording { tight, as_written };

// One micro-batch: some documents of a task.
class MicroBatchPlan {
 public:
  MicroBatchPlan(const GroupingTask& task, const std::vector<int>& documents, Wording wording)
      : task_(task), wording_(wording) {
    const std::int64_t tokens = tokens_of(task, documents);
    const std::int64_t most = (tokens + room_of(task)) / 2;
    for (int buckets = kBuckets;; ++buckets) {
      buckets_ = bucketed(task, documents, buckets);
      std::int64_t rounded = 0;
      for (const Bucket& bucket : buckets_) {
        rounded += bucket.length * std::ssize(bucket.documents);
      }
      if (rounded <= most || std::ssize(buckets_) < buckets) {
        break;
      }
    }
    exact_ = part_of(documents, documents);
    std::vector<int> by_bucket;
    std::vector<int> as_long_as;
    for (const Bucket& bucket : buckets_) {
      by_bucket.insert(by_bucket.end(), bucket.documents.begin(), bucket.documents.end());
      as_long_as.insert(as_long_as.end(), bucket.documents.size(), bucket.documents.back());
    }
    rounded_ = part_of(by_bucket, as_long_as);
    documents_ = documents;
    by_bucket_ = std::move(by_bucket);
    list_virtual_groups();
  }

  // None: nothing fits that is found.
  std::optional<OpenMicroBatch> solve(const GroupingOptions& options, std::int64_t& nodes) {
    std::optional<OpenMicroBatch> start = start_of(rounded_);
    const Milp problem = model();
    const std::optional<MilpAnswer> answer = paradyse::solve(
        problem,
        start && wording_ == Wording::tight ? values_of(problem, *start) : std::vector<double>{},
        options.solver_seconds,
        options.seed);
    if (answer) {
      nodes += answer->nodes;
      if (std::optional<OpenMicroBatch> groups = groups_of(answer->values)) {
        return groups;
      }
    }
    if (start) {
      return renamed(*start, by_bucket_);
    }
    start = start_of(exact_);
    return start ? std::optional(renamed(*start, documents_)) : std::nullopt;
  }

 private:
  // The documents as a task of their own, each as long as another one.
  [[nodiscard]] GroupingTask part_of(
      const std::vector<int>& documents, const std::vector<int>& as_long_as) const {
    GroupingTask part = task_;
    part.lengths.clear();
    part.seconds.clear();
    for (std::size_t i = 0; i < documents.size(); ++i) {
      part.lengths.push_back(task_.lengths[idx(as_long_as[i])]);
    }
    for (int t = 0; t < std::ssize(task_.types); ++t) {
      for (const int k : as_long_as) {
        part.seconds.push_back(task_.at(t, k));
      }
    }
    return part;
  }

  // Groups of documents of a part, as groups of the task's.
  [[nodiscard]] OpenMicroBatch renamed(
      const OpenMicroBatch& groups, const std::vector<int>& names) const {
    OpenMicroBatch found;
    for (const OpenGroup& group : groups) {
      OpenGroup& same = found.emplace_back(task_, group.type);
      for (const int k : group.documents) {
        same.add(task_, names[idx(k)]);
      }
    }
    return found;
  }

  void list_virtual_groups() {
    // Ranks of the least group for the longest documents, and how many need as many.
    int most_needed = 0;
    std::int64_t need_most = 0;
    for (const Bucket& bucket : buckets_) {
      const int type = least_type(task_, bucket.length, bucket.documents.back());
      const int needed = task_.types[idx(type)].ranks;
      need_most = needed == most_needed ? need_most : 0;
      most_needed = needed;
      need_most += std::ssize(bucket.documents);
    }
    const bool powers = powers_of_two_suffice(task_);
    for (int t = 0; t < std::ssize(task_.types); ++t) {
      const int ranks = task_.types[idx(t)].ranks;
      if (powers && !std::has_single_bit(static_cast<unsigned>(ranks))) {
        continue;
      }
      const std::int64_t left =
          powers && ranks < most_needed
              ? std::max<std::int64_t>(0, task_.ranks - most_needed * need_most)
              : task_.ranks;
      virtual_types_.insert(virtual_types_.end(), idx(left / ranks), t);
    }
  }

  // Columns: C, then each m_p, then A_qp by p.
  [[nodiscard]] int used(std::size_t p) const { return 1 + static_cast<int>(p); }
  [[nodiscard]] int assigned(std::size_t p, std::size_t q) const {
    return 1 + static_cast<int>(virtual_types_.size() + p * buckets_.size() + q);
  }
  [[nodiscard]] double seconds(std::size_t p, std::size_t q) const {
    return task_.at(virtual_types_[p], buckets_[q].documents.back());
  }

  [[nodiscard]] Milp model() const {
    Milp problem;
    problem.column(1, 0, Milp::kInfinity, false);
    for (std::size_t p = 0; p < virtual_types_.size(); ++p) {
      problem.column(0, 0, 1, true);
    }
    for (const int t : virtual_types_) {
      for (const Bucket& bucket : buckets_) {
        const std::int64_t fit =
            std::max<std::int64_t>(task_.types[idx(t)].capacity, 0) / bucket.length;
        const std::int64_t most = std::min(fit, std::int64_t{std::ssize(bucket.documents)});
        problem.column(0, 0, static_cast<double>(most), true);
      }
    }
    const bool tight = wording_ == Wording::tight;
    const auto all_documents = static_cast<double>(documents_.size());
    std::vector<Milp::Term> ranks;
    for (std::size_t p = 0; p < virtual_types_.size(); ++p) {
      const GroupType& type = task_.types[idx(virtual_types_[p])];
      std::vector<Milp::Term> time = {{0, -1}, {used(p), type.fixed_seconds}};
      // By its share of the capacity: coefficients of about 1.
      std::vector<Milp::Term> memory = {{used(p), tight ? -1.0 : 0.0}};
      std::vector<Milp::Term> none_if_unused = {{used(p), -all_documents}};
      for (std::size_t q = 0; q < buckets_.size(); ++q) {
        time.push_back({assigned(p, q), seconds(p, q)});
        memory.push_back(
            {assigned(p, q),
             static_cast<double>(buckets_[q].length) / static_cast<double>(type.capacity)});
        none_if_unused.push_back({assigned(p, q), 1});
      }
      problem.row(-Milp::kInfinity, time, 0);
      if (type.capacity > 0) {
        problem.row(-Milp::kInfinity, memory, tight ? 0 : 1);
      }
      if (!tight) {
        problem.row(-Milp::kInfinity, none_if_unused, 0);
      }
      if (tight && p > 0 && virtual_types_[p - 1] == virtual_types_[p]) {
        problem.row(0, {{used(p - 1), 1}, {used(p), -1}}, Milp::kInfinity);
      }
      ranks.push_back({used(p), static_cast<double>(type.ranks)});
    }
    problem.row(-Milp::kInfinity, ranks, task_.ranks);
    for (std::size_t q = 0; q < buckets_.size(); ++q) {
      std::vector<Milp::Term> all;
      all.reserve(virtual_types_.size());
      for (std::size_t p = 0; p < virtual_types_.size(); ++p) {
        all.push_back({assigned(p, q), 1});
      }
      const auto documents = static_cast<double>(buckets_[q].documents.size());
      problem.row(documents, all, documents);
    }
    return problem;
  }

  // Groups of the rounded part as values of the columns; none where there are more of a type than
  // virtual ones.
  [[nodiscard]] std::vector<double> values_of(
      const Milp& problem, const OpenMicroBatch& groups) const {
    std::vector<std::size_t> bucket_of;  // [document of the part]
    for (std::size_t q = 0; q < buckets_.size(); ++q) {
      bucket_of.insert(bucket_of.end(), buckets_[q].documents.size(), q);
    }
    std::vector<double> values(problem.cost.size());
    for (const OpenGroup& group : groups) {
      if (group.documents.empty()) {
        continue;
      }
      std::size_t p = 0;
      while (p < virtual_types_.size() &&
             (virtual_types_[p] != group.type || values[idx(used(p))] > 0)) {
        ++p;
      }
      if (p == virtual_types_.size()) {
        return {};
      }
      values[idx(used(p))] = 1;
      for (const int k : group.documents) {
        values[idx(assigned(p, bucket_of[idx(k)]))] += 1;
      }
      values[0] = std::max(values[0], group.seconds);
    }
    return values;
  }

  // The groups that the columns say; none where they say too much for one, which the solver's
  // tolerances allow.
  [[nodiscard]] std::optional<OpenMicroBatch> groups_of(const std::vector<double>& values) const {
    OpenMicroBatch groups;
    for (const int t : virtual_types_) {
      groups.emplace_back(task_, t);
    }
    for (std::size_t q = buckets_.size(); q-- > 0;) {
      std::vector<std::int64_t> places;
      places.reserve(groups.size());
      for (std::size_t p = 0; p < groups.size(); ++p) {
        places.push_back(std::llround(values[idx(assigned(p, q))]));
      }
      if (std::accumulate(places.begin(), places.end(), std::int64_t{0}) !=
          std::ssize(buckets_[q].documents)) {
        return std::nullopt;
      }
      for (std::size_t i = buckets_[q].documents.size(); i-- > 0;) {
        std::size_t least = groups.size();
        for (std::size_t p = 0; p < groups.size(); ++p) {
          if (places[p] > 0 &&
              (least == groups.size() || groups[p].seconds < groups[least].seconds)) {
            least = p;
          }
        }
        --places[least];
        groups[least].add(task_, buckets_[q].documents[i]);
      }
    }
    int ranks = 0;
    for (const OpenGroup& group : groups) {
      ranks += group.documents.empty() ? 0 : task_.types[idx(group.type)].ranks;
      if (!task_.fits(group.type, group.tokens)) {
        return std::nullopt;
      }
    }
    return ranks <= task_.ranks ? std::optional(std::move(groups)) : std::nullopt;
  }

  const GroupingTask& task_;
  Wording wording_;
  std::vector<Bucket> buckets_;
  std::vector<int> documents_;  // of exact_, in its order
  std::vector<int> by_bucket_;  // of rounded_
  GroupingTask exact_;
  GroupingTask rounded_;
  std::vector<int> virtual_types_;  // [p]
};

GroupingAnswer plan(const GroupingTask& task, const GroupingOptions& options, Wording wording) {
  GroupingAnswer answer{.why_not = why_none_fits(task)};
  if (!answer.why_not.empty()) {
    return answer;
  }
  if (!has_milp_solver()) {
    answer.why_not =
        "this program was built without HiGHS, which flexsp-milp needs: run scripts/install.sh and "
        "build with -DPARADYSE_HIGHS=ON, or take another planner";
    return answer;
  }
  if (task.documents() == 0) {
    answer.grouping = Grouping{};
    return answer;
  }
  const std::int64_t room = room_of(task);
  int more = options.more_micro_batches;
  // A micro-batch for each document always fits.
  for (int m = 1; m <= task.documents() && (!answer.grouping || more > 0); ++m) {
    const std::vector<std::vector<int>> cut = blasted(task, m);
    if (std::ranges::any_of(
            cut, [&](const auto& documents) { return tokens_of(task, documents) > room; })) {
      continue;
    }
    more -= answer.grouping ? 1 : 0;
    std::vector<OpenMicroBatch> micro_batches;
    for (const std::vector<int>& documents : cut) {
      std::optional<OpenMicroBatch> groups =
          MicroBatchPlan(task, documents, wording).solve(options, answer.tried);
      if (!groups) {
        break;
      }
      micro_batches.push_back(std::move(*groups));
    }
    if (micro_batches.size() < cut.size()) {
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

GroupingPlannerRow published_planner() {
  return {
      .name = "flexsp-milp",
      .old_name = "published",
      .summary =
          "the FlexSP paper's method: buckets, blaster, and a MILP for each micro-batch, solved by "
          "HiGHS",
      .plan = [](const GroupingTask& task, const GroupingOptions& options) {
        return plan(task, options, Wording::tight);
      }};
}

GroupingPlannerRow published_as_written_planner() {
  return {
      .name = "flexsp-milp-as-written",
      .old_name = "published-as-written",
      .summary = "the same with the MILP formulated as in the paper, without a starting solution",
      .plan = [](const GroupingTask& task, const GroupingOptions& options) {
        return plan(task, options, Wording::as_written);
      }};
}

}  // namespace paradyse
