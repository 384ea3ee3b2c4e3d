#include "src/plan/search/grouping/packing.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

namespace paradyse {

OpenGroup::OpenGroup(const GroupingTask& task, int group_type)
    : type(group_type), seconds(task.types[idx(group_type)].fixed_seconds) {}

void OpenGroup::add(const GroupingTask& task, int document) {
  tokens += task.lengths[idx(document)];
  seconds += task.at(type, document);
  documents.push_back(document);
}

void OpenGroup::remove(const GroupingTask& task, int document) {
  tokens -= task.lengths[idx(document)];
  seconds -= task.at(type, document);
  std::erase(documents, document);
}

Dealer::Dealer(const GroupingTask& task, OpenMicroBatch groups)
    : task_(task), groups_(std::move(groups)) {
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    busy_.emplace(groups_[g].seconds, g);
  }
}

Dealer::Busy::const_iterator Dealer::least_busy(int document) const {
  return std::ranges::find_if(
      busy_, [&](const auto& entry) { return groups_[entry.second].takes(task_, document); });
}

bool Dealer::deal(int document) {
  const auto least = least_busy(document);
  if (least == busy_.end()) {
    return false;
  }
  const std::size_t group = least->second;
  busy_.erase(least);
  groups_[group].add(task_, document);
  busy_.emplace(groups_[group].seconds, group);
  slowest_ = std::max(slowest_, groups_[group].seconds);
  return true;
}

std::optional<OpenMicroBatch> dealt(
    const GroupingTask& task, OpenMicroBatch groups, const std::vector<int>& documents) {
  Dealer dealer(task, std::move(groups));
  const bool all =
      std::ranges::all_of(documents, [&](int document) { return dealer.deal(document); });
  return all ? std::optional(dealer.groups()) : std::nullopt;
}

Grouping closed(const GroupingTask& task, const std::vector<OpenMicroBatch>& micro_batches) {
  Grouping grouping;
  for (const OpenMicroBatch& open : micro_batches) {
    Grouping::MicroBatch micro_batch;
    for (const OpenGroup& group : open) {
      if (!group.documents.empty()) {
        micro_batch.push_back({.type = group.type, .documents = group.documents});
        std::ranges::sort(micro_batch.back().documents);
      }
    }
    if (!micro_batch.empty()) {
      grouping.micro_batches.push_back(std::move(micro_batch));
    }
  }
  grouping.seconds = seconds_of(task, grouping);
  return grouping;
}

std::vector<int> longest_first(const GroupingTask& task) {
  std::vector<int> order(task.lengths.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(
      order, [&](int a, int b) { return task.lengths[idx(a)] > task.lengths[idx(b)]; });
  return order;
}

std::int64_t longest(const GroupingTask& task) {
  return task.lengths.empty() ? 0 : *std::ranges::max_element(task.lengths);
}

std::int64_t tokens_of(const GroupingTask& task, const std::vector<int>& documents) {
  std::int64_t sum = 0;
  for (const int k : documents) {
    sum += task.lengths[idx(k)];
  }
  return sum;
}

double micro_batch_room(const GroupingTask& task) {
  double anywhere = 0;                              // of a rank
  std::vector<double> pools(task.pools.size(), 0);  // the same
  for (const GroupType& type : task.types) {
    double& most = type.pool < 0 ? anywhere : pools[idx(type.pool)];
    most = std::max(most, static_cast<double>(type.capacity) / type.ranks);
  }
  return std::max(
      anywhere * task.ranks,
      std::inner_product(pools.begin(), pools.end(), task.pools.begin(), 0.0));
}

int least_type(const GroupingTask& task, std::int64_t tokens, int document) {
  int least = -1;
  for (int t = 0; t < std::ssize(task.types); ++t) {
    if (least >= 0 && task.types[idx(t)].ranks > task.types[idx(least)].ranks) {
      break;  // ranks ascend
    }
    if (task.fits(t, tokens) && (least < 0 || task.at(t, document) < task.at(least, document))) {
      least = t;
    }
  }
  return least;
}

int side_by_side(const GroupingTask& task, int type) {
  const int ranks = task.types[idx(type)].ranks;
  if (task.node == 0 || ranks >= task.node) {
    return task.ranks / ranks;
  }
  return task.ranks / task.node * (task.node / ranks) + task.ranks % task.node / ranks;
}

std::string why_none_fits(const GroupingTask& task) {
  const std::vector<int> documents = too_long(task);
  if (documents.empty()) {
    return "";
  }
  const GroupType& largest = *std::ranges::max_element(task.types, {}, &GroupType::capacity);
  const int k = *std::ranges::max_element(
      documents, {}, [&](int document) { return task.lengths[idx(document)]; });
  const std::int64_t tokens = task.lengths[idx(k)];
  return "document " + std::to_string(k) + " has " + std::to_string(tokens) +
         " tokens, but the largest group, " + largest.name + ", holds " +
         std::to_string(largest.capacity) + ": too many by " +
         std::to_string(tokens - largest.capacity) +
         (documents.size() > 1
              ? "; " + std::to_string(documents.size() - 1) + " more documents are too long"
              : "");
}

GroupingAnswer best_of_types(
    const GroupingTask& task, const std::function<std::optional<Grouping>(int type)>& plan) {
  GroupingAnswer answer{.why_not = why_none_fits(task)};
  if (!answer.why_not.empty()) {
    return answer;
  }
  if (task.documents() == 0) {
    answer.grouping = Grouping{};
    return answer;
  }
  for (int t = 0; t < std::ssize(task.types); ++t) {
    if (!task.fits(t, longest(task))) {
      continue;
    }
    std::optional<Grouping> grouping = plan(t);
    ++answer.tried;
    if (grouping && (!answer.grouping || grouping->seconds < answer.grouping->seconds)) {
      answer.grouping = std::move(grouping);
    }
  }
  return answer;
}

}  // namespace paradyse
