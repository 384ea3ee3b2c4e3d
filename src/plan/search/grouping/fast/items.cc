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
  tokens_.reserve(items);
  smallest_.assign(items, types());
  area_.assign(items, std::numeric_limits<double>::infinity());
  fastest_ = area_;
  for (const int k : documents_) {
    tokens_.push_back(static_cast<double>(task.lengths[idx(k)]));
  }
  seconds_.resize(task.seconds.size());
  for (int t = 0; t < types(); ++t) {
    const GroupType& type = task.types[idx(t)];
    room_ = std::max(room_, static_cast<double>(type.capacity) / type.ranks * task.ranks);
    for (std::size_t i = 0; i < items; ++i) {
      const double seconds = task.at(t, documents_[i]);
      seconds_[idx(t) * items + i] = seconds;
      if (task.fits(t, task.lengths[idx(documents_[i])])) {
        smallest_[i] = std::min(smallest_[i], t);
        area_[i] = std::min(area_[i], seconds * type.ranks);
        fastest_[i] = std::min(fastest_[i], seconds + type.fixed_seconds);
      }
    }
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
