#include "src/plan/search/grouping/fast/room.h"

#include <algorithm>

#include "paradyse/plan/detail/index.h"

namespace paradyse::fast {

Room::Room(int ranks, int node) : ranks_(ranks), node_(node), free_(ranks) {
  if (node_ > 0) {
    taken_.resize(idx(node_));
    nodes_.resize(idx(node_) + 1);
  }
}

void Room::reset() {
  free_ = ranks_;
  std::ranges::fill(taken_, 0);
}

// What first_ranks() does, all groups of a size at once: the node with least room for one is filled
// with as many as it takes before the next.
bool Room::all_find_room() {
  int inside = 0;
  for (int size = 1; size < node_; ++size) {
    inside += size * taken_[idx(size)];
  }
  const int whole = (ranks_ - free_ - inside) / node_;  // nodes of larger groups
  std::ranges::fill(nodes_, 0);
  nodes_[idx(node_)] = ranks_ / node_ - whole;
  nodes_[idx(ranks_ % node_)] += ranks_ % node_ > 0 ? 1 : 0;
  for (int size = node_ - 1; size > 0; --size) {
    int groups = taken_[idx(size)];
    for (int free = size; free <= node_ && groups > 0; ++free) {
      const int each = free / size;
      const int full = std::min(nodes_[idx(free)], groups / each);
      nodes_[idx(free)] -= full;
      nodes_[idx(free - each * size)] += full;
      groups -= full * each;
      if (groups > 0 && groups < each && nodes_[idx(free)] > 0) {
        --nodes_[idx(free)];
        ++nodes_[idx(free - groups * size)];
        groups = 0;
      }
    }
    if (groups > 0) {
      return false;
    }
  }
  return nodes_[idx(node_)] >= 0;
}

bool Room::take(int ranks) {
  if (ranks > free_) {
    return false;
  }
  free_ -= ranks;
  if (node_ == 0) {
    return true;
  }
  if (ranks < node_) {
    ++taken_[idx(ranks)];
  }
  if (all_find_room()) {
    return true;
  }
  free_ += ranks;
  if (ranks < node_) {
    --taken_[idx(ranks)];
  }
  return false;
}

}  // namespace paradyse::fast
