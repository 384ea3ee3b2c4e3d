// The documents of a task as the fast planner works on them: longest first, with what it asks of
// each again and again.
#pragma once

#include <vector>

#include "src/plan/search/grouping/grouping.h"

namespace paradyse::fast {

// An *item* is a document, by its place in the order of falling length.
class Items {
 public:
  // Of a task that check() takes and whose documents all fit somewhere.  It lives longer.
  explicit Items(const GroupingTask& task);

  [[nodiscard]] const GroupingTask& task() const { return task_; }
  [[nodiscard]] int size() const { return static_cast<int>(documents_.size()); }
  [[nodiscard]] int types() const { return static_cast<int>(task_.types.size()); }

  [[nodiscard]] int document(int item) const { return documents_[idx(item)]; }
  [[nodiscard]] double tokens(int item) const { return tokens_[idx(item)]; }
  // Seconds under a type, in which the item may have no room.
  [[nodiscard]] double seconds(int type, int item) const {
    return seconds_[idx(type) * documents_.size() + idx(item)];
  }
  // The first item from which on all take at most so many seconds and tokens under a type, where
  // shorter documents take less; size(): none.
  [[nodiscard]] int first_within(int type, double seconds, double tokens) const;
  // The first type with room for it.
  [[nodiscard]] int smallest(int item) const { return smallest_[idx(item)]; }
  // Rank seconds where it needs least of them, and seconds where it needs least of those.
  [[nodiscard]] double area(int item) const { return area_[idx(item)]; }
  [[nodiscard]] double fastest(int item) const { return fastest_[idx(item)]; }
  // Tokens that find room in a micro-batch at best.
  [[nodiscard]] double room() const { return room_; }

 private:
  const GroupingTask& task_;
  std::vector<int> documents_;
  std::vector<double> tokens_;
  std::vector<double> seconds_;  // [type][item]
  std::vector<int> smallest_;
  std::vector<double> area_;
  std::vector<double> fastest_;
  double room_ = 0;
};

}  // namespace paradyse::fast
