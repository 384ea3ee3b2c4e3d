// The ranks of a micro-batch that no group has yet.
#pragma once

#include <vector>

namespace paradyse::fast {

class Room {
 public:
  // As GroupingTask has them.
  Room(int ranks, int node);

  void reset();
  // For a group of so many ranks, if first_ranks() finds room for it and all that were taken.
  bool take(int ranks);

 private:
  [[nodiscard]] bool all_find_room();

  int ranks_;
  int node_;
  int free_;
  std::vector<int> taken_;  // [ranks] groups
  std::vector<int> nodes_;  // [free ranks] nodes
};

}  // namespace paradyse::fast
