// The documents of a task as the fast planner works on them: longest first, with what it asks of
// each again and again.
#pragma once

#include <algorithm>
#include <cstddef>
#include <limits>
#include <vector>

#include "src/plan/search/grouping/grouping.h"

namespace paradyse::fast {

inline constexpr double kNever = std::numeric_limits<double>::infinity();  // seconds

// An *item* is a document, by its place in the order of falling length.
class Items {
 public:
  // Of a task that check() takes and whose documents all fit somewhere.  It lives longer.
  explicit Items(const GroupingTask& task);

  [[nodiscard]] const GroupingTask& task() const { return task_; }
  [[nodiscard]] int size() const { return static_cast<int>(documents_.size()); }
  // A *size* is a number of ranks, of a pool or anywhere, with the types that have it: the ways in
  // which such a group can run, of which it takes the fastest that has room for its items.
  struct Size {
    int ranks = 1;
    int pool = -1;
    std::vector<int> types;
  };
  // Those that lie anywhere, then those in pools; of both ranks ascend, of equal ranks the price.
  [[nodiscard]] const std::vector<Size>& sizes() const { return sizes_; }
  // A micro-batch that has the item as its longest is made of sizes [first, last): of those in
  // pools where it has room in one.
  struct Sizes {
    std::size_t first = 0;
    std::size_t last = 0;
  };
  [[nodiscard]] Sizes sizes_for(int longest) const {
    const std::size_t all = sizes_.size();
    return smallest_in_pools_[idx(longest)] < all ? Sizes{in_pools_, all} : Sizes{0, in_pools_};
  }
  // Types of the size that has most.
  [[nodiscard]] std::size_t ways() const { return ways_; }

  [[nodiscard]] int document(int item) const { return documents_[idx(item)]; }
  [[nodiscard]] double tokens(int item) const { return tokens_[idx(item)]; }
  // Seconds under a type, in which the item may have no room.
  [[nodiscard]] double seconds(int type, int item) const {
    return seconds_[idx(type) * documents_.size() + idx(item)];
  }
  // The first item from which on all take at most so many seconds and tokens under a type, where
  // shorter documents take less; size(): none.
  [[nodiscard]] int first_within(int type, double seconds, double tokens) const;
  // The first of these sizes with room for it; their last: none has.
  [[nodiscard]] std::size_t smallest(int item, const Sizes& of) const {
    return std::min(of.last, of.first == 0 ? smallest_[idx(item)] : smallest_in_pools_[idx(item)]);
  }
  // Seconds of a group of a size that has the item alone; infinite: no room.
  [[nodiscard]] double alone(std::size_t size, int item) const {
    return alone_[size * documents_.size() + idx(item)];
  }
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
  std::vector<Size> sizes_;
  std::size_t ways_ = 0;
  std::size_t in_pools_ = 0;  // the first size in a pool
  std::vector<std::size_t> smallest_;
  std::vector<std::size_t> smallest_in_pools_;
  std::vector<double> alone_;  // [size][item]
  std::vector<double> area_;
  std::vector<double> fastest_;
  double room_ = 0;
};

}  // namespace paradyse::fast
