#include "src/plan/search/grouping/fast/items.h"

#include <algorithm>
#include <numeric>
#include <tuple>

#include "src/plan/search/grouping/packing.h"

namespace paradyse::fast {

Items::Items(const GroupingTask& task)
    : task_(task), documents_(task.lengths.size()), room_(micro_batch_room(task)) {
  std::iota(documents_.begin(), documents_.end(), 0);
  std::ranges::stable_sort(
      documents_, std::greater<>(), [&](int k) { return task.lengths[idx(k)]; });
  const std::size_t items = documents_.size();
  for (const int k : documents_) {
    tokens_.push_back(static_cast<double>(task.lengths[idx(k)]));
  }
  for (std::size_t t = 0; t < task.types.size(); ++t) {
    const GroupType& type = task.types[t];
    if (sizes_.empty() || sizes_.back().ranks != type.ranks || sizes_.back().pool != type.pool) {
      sizes_.push_back({.ranks = type.ranks, .pool = type.pool, .types = {}});
    }
    sizes_.back().types.push_back(static_cast<int>(t));
    ways_ = std::max(ways_, sizes_.back().types.size());
  }
  std::ranges::stable_sort(sizes_, {}, [&](const Size& size) {
    return std::tuple(size.pool >= 0, size.ranks, task.types[idx(size.types.front())].price);
  });
  in_pools_ = idx(std::ranges::count(sizes_, -1, &Size::pool));
  alone_.assign(sizes_.size() * items, kNever);
  area_.assign(items, kNever);
  fastest_.assign(items, kNever);
  seconds_.reserve(task.seconds.size());
  for (std::size_t t = 0; t < task.types.size(); ++t) {
    for (const int k : documents_) {
      seconds_.push_back(task.at(static_cast<int>(t), k));
    }
  }
  for (std::size_t size = 0; size < sizes_.size(); ++size) {
    double* alone = &alone_[size * items];
    for (const int t : sizes_[size].types) {
      const GroupType& type = task.types[idx(t)];
      for (std::size_t i = 0; i < items; ++i) {
        if (const double seconds = seconds_[idx(t) * items + i];
            task.fits(t, task.lengths[idx(documents_[i])])) {
          alone[i] = std::min(alone[i], seconds + type.fixed_seconds);
          area_[i] = std::min(area_[i], seconds * type.worth());
          fastest_[i] = std::min(fastest_[i], alone[i]);
        }
      }
    }
  }
  const auto smallest = [&](std::size_t size, std::size_t item) {
    while (size < sizes_.size() && alone_[size * items + item] == kNever) {
      ++size;
    }
    return size;
  };
  for (std::size_t i = 0; i < items; ++i) {
    smallest_.push_back(smallest(0, i));
    smallest_in_pools_.push_back(smallest(in_pools_, i));
  }
}

int Items::first_within(int type, double seconds, double tokens) const {
  const double* of_type = &seconds_[idx(type) * documents_.size()];
  std::size_t first = 0;
  for (std::size_t count = documents_.size(); count > 0;) {
    const std::size_t half = count / 2;
    const bool too_much = of_type[first + half] > seconds || tokens_[first + half] > tokens;
    first = too_much ? first + half + 1 : first;
    count = too_much ? count - half - 1 : half;
  }
  return static_cast<int>(first);
}

}  // namespace paradyse::fast
