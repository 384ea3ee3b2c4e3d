// Cores that the ranks of a node share.
#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "paradyse/plan/detail/index.h"

namespace paradyse {

struct NodeCores {
  int cores = 1;           // of all nodes, which have as many each
  int ranks = 1;           // of all nodes
  int ranks_per_node = 1;  // one after the other

  // One for each rank; `node`: ranks of one, 0: all.
  [[nodiscard]] static NodeCores of_their_own(int ranks, int node = 0) {
    return {ranks, ranks, node == 0 ? ranks : node};
  }

  [[nodiscard]] int nodes() const { return (ranks + ranks_per_node - 1) / ranks_per_node; }
  [[nodiscard]] int node(int rank) const { return rank / ranks_per_node; }
  [[nodiscard]] int on_a_node() const { return std::max(1, cores / nodes()); }
  [[nodiscard]] bool shared() const { return on_a_node() < ranks_per_node; }
  // Those of the nodes that a group of so many neighbouring ranks lies on.
  [[nodiscard]] int of_group(int size, bool across_nodes) const {
    const int lies_on = (size + ranks_per_node - 1) / ranks_per_node;
    return std::min(std::max(lies_on, across_nodes ? 2 : 1) * on_a_node(), std::max(1, cores));
  }
};

// Seconds in which the cores of each node do what groups ask of them.
class BusyCores {
 public:
  explicit BusyCores(const NodeCores& cores) : cores_(cores), of_nodes_(idx(cores.nodes())) {}

  // A group that takes so many seconds with the cores of its nodes to itself: its ranks on a node
  // keep as many of the cores busy.
  void add(std::span<const int> ranks, double seconds) {
    for (auto rank = ranks.begin(); rank != ranks.end();) {
      const int node = cores_.node(*rank);
      int here = 0;
      for (; rank != ranks.end() && cores_.node(*rank) == node; ++rank) {
        ++here;
      }
      of_nodes_[idx(node)] += seconds * std::min(here, cores_.on_a_node());
    }
  }
  // Of the busiest node of these ranks, of all where there are none.
  [[nodiscard]] double seconds(std::span<const int> ranks = {}) const {
    double most = 0;
    for (const int rank : ranks) {
      most = std::max(most, of_nodes_[idx(cores_.node(rank))]);
    }
    return (ranks.empty() ? std::ranges::max(of_nodes_) : most) / cores_.on_a_node();
  }

 private:
  NodeCores cores_;
  std::vector<double> of_nodes_;
};

}  // namespace paradyse
