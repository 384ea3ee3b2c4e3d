// Groups of one size: `static`, the largest for every batch; `homogeneous`, the best for each.
//
// These are DeepSpeed-Ulysses and "FlexSP-BatchAda" as FlexSP compares itself with them (arXiv
// 2412.01523, section 6.1), by the rule of its released solver
// (homo_sp_baseline_ffd_bfd_globalbatch):
//   * best-fit decreasing on tokens into groups filled to nine tenths, or the longest document
//   where
//     that is more; every so many groups, in the order in which they were opened, are a
//     micro-batch;
//   * each group that the last micro-batch has left gets one document of the last group with more
//     than one;
//   * then, for sizes from 16, documents of the last micro-batch move from groups above the average
//     of tokens to groups below it.
#include <algorithm>
#include <iterator>
#include <set>
#include <utility>
#include <vector>

#include "src/plan/search/grouping/packing.h"
#include "src/plan/search/grouping/table.h"

namespace paradyse {
namespace {

constexpr int kEvenFrom = 16;  // ranks

// Best-fit decreasing: each document into the fullest group that has room.
std::vector<OpenGroup> packed(const GroupingTask& task, int type, std::int64_t capacity) {
  std::vector<OpenGroup> groups;
  std::set<std::pair<std::int64_t, std::size_t>> rooms;  // tokens that still find room, group
  for (const int k : longest_first(task)) {
    const std::int64_t tokens = task.lengths[idx(k)];
    std::size_t group = groups.size();
    if (const auto room = rooms.lower_bound({tokens, 0}); room != rooms.end()) {
      group = room->second;
      rooms.erase(room);
    } else {
      groups.emplace_back(task, type);
    }
    groups[group].add(task, k);
    rooms.emplace(capacity - groups[group].tokens, group);
  }
  return groups;
}

// Groups from `used` on are empty.
void fill_empty(const GroupingTask& task, std::vector<OpenGroup>& groups, std::size_t used) {
  for (std::size_t empty = used; empty < groups.size(); ++empty) {
    std::size_t giver = used;
    while (giver > 0 && groups[giver - 1].documents.size() < 2) {
      --giver;
    }
    if (giver == 0) {
      return;  // fewer documents than groups
    }
    const int k = *std::ranges::min_element(groups[giver - 1].documents);
    groups[giver - 1].remove(task, k);
    groups[empty].add(task, k);
  }
}

void even_out(
    const GroupingTask& task,
    std::vector<OpenGroup>& groups,
    std::size_t first,
    std::int64_t capacity) {
  std::int64_t average = 0;
  for (std::size_t i = first; i < groups.size(); ++i) {
    average += groups[i].tokens;
  }
  average /= std::ssize(groups) - static_cast<std::ptrdiff_t>(first);
  for (std::size_t to = first + 1; to < groups.size(); ++to) {
    for (std::size_t from = first; from < to; ++from) {
      std::vector<int> documents = groups[from].documents;
      std::ranges::sort(documents);
      for (const int k : documents) {
        if (groups[to].tokens >= average || groups[from].tokens <= average ||
            groups[from].documents.size() < 2) {
          break;
        }
        if (groups[to].tokens + task.lengths[idx(k)] <= capacity) {
          groups[from].remove(task, k);
          groups[to].add(task, k);
        }
      }
    }
  }
}

std::optional<Grouping> of_type(const GroupingTask& task, int type) {
  const std::int64_t capacity = std::max(task.types[idx(type)].capacity * 9 / 10, longest(task));
  std::vector<OpenGroup> groups = packed(task, type, capacity);
  const std::size_t used = groups.size();
  const std::size_t beside = idx(side_by_side(task, type));
  while (groups.size() % beside != 0) {
    groups.emplace_back(task, type);
  }
  if (used < groups.size()) {
    fill_empty(task, groups, used);
    if (task.types[idx(type)].ranks >= kEvenFrom) {
      even_out(task, groups, groups.size() - beside, capacity);
    }
  }
  std::vector<OpenMicroBatch> micro_batches;
  for (std::size_t g = 0; g < groups.size(); g += beside) {
    const auto begin = groups.begin() + static_cast<std::ptrdiff_t>(g);
    micro_batches.emplace_back(begin, begin + static_cast<std::ptrdiff_t>(beside));
  }
  return closed(task, micro_batches);
}

GroupingAnswer plan_static(const GroupingTask& task, const GroupingOptions&) {
  int most = 0;  // ranks of the largest type with room for every document
  for (int t = 0; t < std::ssize(task.types); ++t) {
    if (task.fits(t, longest(task))) {
      most = std::max(most, task.types[idx(t)].ranks);
    }
  }
  return best_of_types(task, [&](int type) -> std::optional<Grouping> {
    return task.types[idx(type)].ranks == most ? of_type(task, type) : std::nullopt;
  });
}

GroupingAnswer plan_homogeneous(const GroupingTask& task, const GroupingOptions&) {
  return best_of_types(task, [&](int type) { return of_type(task, type); });
}

}  // namespace

GroupingPlannerRow static_planner() {
  return {
      .name = "static",
      .summary =
          "groups of the largest size, packed best-fit: DeepSpeed-Ulysses in the FlexSP paper",
      .plan = plan_static};
}

GroupingPlannerRow homogeneous_planner() {
  return {
      .name = "homogeneous",
      .summary =
          "groups of one size, packed best-fit, the best size for the batch: FlexSP-BatchAda",
      .plan = plan_homogeneous};
}

}  // namespace paradyse
