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
  [[nodiscard]] int free() const { return free_; }

 private:
  [[nodiscard]] std::vector<int> empty_nodes() const;
  static bool take(std::vector<int>& nodes, int ranks);

  int ranks_;
  int node_;
  int free_;
  std::vector<int> taken_;  // [ranks] groups
  std::vector<int> nodes_;  // [free ranks] nodes, as they were taken one by one
};

}  // namespace paradyse::fast
