#include "src/plan/search/grouping/fast/room.h"

#include <utility>

#include "paradyse/plan/index.h"

namespace paradyse::fast {

Room::Room(int ranks, int node) : ranks_(ranks), node_(node), free_(ranks) {
  taken_.resize(idx(ranks) + 1);
  reset();
}

std::vector<int> Room::empty_nodes() const {
  std::vector<int> nodes(idx(node_) + 1);
  nodes[idx(node_)] = ranks_ / node_;
  nodes[idx(ranks_ % node_)] += ranks_ % node_ > 0 ? 1 : 0;
  return nodes;
}

void Room::reset() {
  free_ = ranks_;
  if (node_ > 0) {
    taken_.assign(taken_.size(), 0);
    nodes_ = empty_nodes();
  }
}

// Whole nodes, or part of the one with least room for it.
bool Room::take(std::vector<int>& nodes, int ranks) {
  const int node = static_cast<int>(nodes.size()) - 1;
  if (ranks >= node) {
    if (nodes[idx(node)] < ranks / node) {
      return false;
    }
    nodes[idx(node)] -= ranks / node;
    return true;
  }
  for (int free = ranks; free <= node; ++free) {
    if (nodes[idx(free)] > 0) {
      --nodes[idx(free)];
      ++nodes[idx(free - ranks)];
      return true;
    }
  }
  return false;
}

bool Room::take(int ranks) {
  if (ranks > free_) {
    return false;
  }
  if (node_ > 0) {
    ++taken_[idx(ranks)];
    if (!take(nodes_, ranks)) {
      // largest first there may be room
      std::vector<int> nodes = empty_nodes();
      for (int size = ranks_; size > 0; --size) {
        for (int i = 0; i < taken_[idx(size)]; ++i) {
          if (!take(nodes, size)) {
            --taken_[idx(ranks)];
            return false;
          }
        }
      }
      nodes_ = std::move(nodes);
    }
  }
  free_ -= ranks;
  return true;
}

}  // namespace paradyse::fast
