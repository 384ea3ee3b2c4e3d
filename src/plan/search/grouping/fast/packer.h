// Fills one micro-batch: the inner loop of the fast planner.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "src/plan/search/grouping/fast/items.h"
#include "src/plan/search/grouping/fast/key_set.h"
#include "src/plan/search/grouping/fast/room.h"

namespace paradyse::fast {

// How items find their group.
struct Rule {
  // The number of the first size, of those that the micro-batch is made of: larger groups cost
  // more, and what is in them shares more room.
  std::size_t least = 0;
  // Every item goes into a new group while there are ranks, then into the group that could take
  // most beside it, so that all have short and long ones.  Else groups are filled one after
  // another.
  bool even = false;
};

// One micro-batch.
struct Packed {
  std::vector<int> types;   // [group] the fastest that has room for its items
  std::vector<int> items;   // in the order in which they were placed
  std::vector<int> groups;  // [place] the group of items[place]
  double slowest = 0;       // seconds
  Rule rule;                // that it was packed by
};

class Packer {
 public:
  explicit Packer(const Items& items);

  // Groups that take at most `seconds`, filled from `rest` (ascending items, so longest first): an
  // item goes into the smallest size with a group that it fits, there into the one that could take
  // least beside it; where there is none, into a new group of the smallest size in which it is done
  // in time; where no ranks are left for that, it is left over.  Or evenly: see Rule.
  void pack(
      double seconds,
      const Rule& rule,
      const std::vector<int>& rest,
      Packed& packed,
      std::vector<int>& left);

  // All of `rest` in one micro-batch of as few seconds as can be found, by halving between a bound
  // and `upper`, where all is known to fit (or unknown: infinite).  False: not found.
  bool solve(
      const std::vector<int>& rest, const Rule& rule, Packed& packed, double upper, int halvings);

  [[nodiscard]] double area(const std::vector<int>& items) const;
  [[nodiscard]] double tokens(const std::vector<int>& items) const;
  // What items need at least in one micro-batch.
  [[nodiscard]] double least_seconds(const std::vector<int>& items) const;

  // Calls of pack() so far, by items that they went through.
  [[nodiscard]] std::int64_t work() const { return work_; }

  [[nodiscard]] const Items& items() const { return items_; }

 private:
  // A group has room for items from its *key* on: the longest that it could take, by any of its
  // ways to run.
  struct Open {
    KeySet keys;              // of the size's groups
    std::vector<int> groups;  // [key] the first of those with this key; the others follow by next_
  };

  int into_open(int item, bool even, std::size_t& size);
  int into_new(int item, double seconds, Packed& packed, std::size_t& size);
  void add(int item, int group, std::size_t size);
  int take(std::size_t size, int key);
  void settle(double seconds, Packed& packed);

  const Items& items_;
  std::vector<Room> rooms_;  // anywhere, then those of the pools
  int free_ = 0;             // ranks of all of them
  Items::Sizes sizes_;       // that groups are made of, ...
  std::size_t least_ = 0;    // ... from this on
  std::vector<Open> open_;   // [size]
  // [group]; seconds are those of each way, of which a group has ways() places
  std::vector<double> seconds_left_;
  std::vector<double> tokens_;
  std::vector<int> next_;
  int last_ = 0;        // item of `rest`
  int still_open_ = 0;  // groups of all sizes
  std::vector<int> left_;
  Packed trial_;
  std::int64_t work_ = 0;
};

}  // namespace paradyse::fast
