#include "src/plan/search/grouping/fast/items.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace paradyse::fast {

Items::Items(const GroupingTask& task) : task_(task), documents_(task.lengths.size()) {
  std::iota(documents_.begin(), documents_.end(), 0);
  std::ranges::stable_sort(
      documents_, std::greater<>(), [&](int k) { return task.lengths[idx(k)]; });
  const std::size_t items = documents_.size();
  constexpr double kNever = std::numeric_limits<double>::infinity();
  for (const int k : documents_) {
    tokens_.push_back(static_cast<double>(task.lengths[idx(k)]));
  }
  area_.assign(items, kNever);
  fastest_.assign(items, kNever);
  seconds_.reserve(task.seconds.size());
  for (std::size_t t = 0; t < task.types.size(); ++t) {
    const GroupType& type = task.types[t];
    if (sizes_.empty() || sizes_.back().ranks != type.ranks) {
      sizes_.push_back({.ranks = type.ranks, .types = {}});
      alone_.resize(alone_.size() + items, kNever);
    }
    sizes_.back().types.push_back(static_cast<int>(t));
    ways_ = std::max(ways_, sizes_.back().types.size());
    room_ = std::max(room_, static_cast<double>(type.capacity) / type.ranks * task.ranks);
    double* alone = &alone_[(sizes_.size() - 1) * items];
    for (std::size_t i = 0; i < items; ++i) {
      const double seconds = task.at(static_cast<int>(t), documents_[i]);
      seconds_.push_back(seconds);
      if (task.fits(static_cast<int>(t), task.lengths[idx(documents_[i])])) {
        alone[i] = std::min(alone[i], seconds + type.fixed_seconds);
        area_[i] = std::min(area_[i], seconds * type.ranks);
        fastest_[i] = std::min(fastest_[i], alone[i]);
      }
    }
  }
  for (std::size_t i = 0; i < items; ++i) {
    std::size_t size = 0;
    while (size < sizes_.size() && alone_[size * items + i] == kNever) {
      ++size;
    }
    smallest_.push_back(size);
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
