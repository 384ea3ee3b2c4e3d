// Where streams lie, part after part, as numbers alone: no model, no programs.
//
// A *place* is one of several ways in which a stream may lie.  A layer is parts in a row; a *way*
// to run a part needs some streams at places and leaves them there; a stream that lies otherwise is
// moved first, in one move (Zhao et al. 2024, whose switch is one of them).  Costs are any numbers
// from 0 that add up.
#pragma once

#include <cstddef>
#include <vector>

namespace paradyse {

struct LayoutGraph {
  struct Way {
    std::vector<int> at;  // [stream] the place it needs; -1: it does not look
    double cost = 0;
  };
  std::vector<int> places;                              // [stream] how many
  std::vector<std::vector<std::vector<double>>> moves;  // [stream][from][to]
  std::vector<std::vector<Way>> parts;                  // of a layer, each with at least one way
};

// Layers in a row: of each the way of each part.
struct LayoutPath {
  std::vector<std::vector<std::size_t>> layers;  // [layer][part] index of a way
  double cost = 0;                               // of a layer, the mean
};

// The layers that cost least a layer when they follow one another for ever, so the move from the
// last to the first is one of theirs; of those the fewest.  The least mean cycle over placements at
// a layer's border (Karp 1978), by min-plus powers of what a layer costs from border to border.
LayoutPath cheapest_cycle(const LayoutGraph& graph);

// Layers that are alike, before or behind others.
struct LayoutStack {
  LayoutGraph graph;
  std::size_t layers = 1;
  // [stream of the graph] Its number: a stream that several stacks have lies, where one ends, as
  // the next finds it.
  std::vector<std::size_t> streams;
};

// The layers of all stacks in a row, begun and ended at any places: `begin` and `end` [place of all
// streams of the first and of the last stack, the last stream's fastest] are added; empty: nothing.
// Of paths that cost the same the one that keeps to the same layer longest.
LayoutPath cheapest_path(
    const std::vector<LayoutStack>& stacks,
    const std::vector<double>& begin = {},
    const std::vector<double>& end = {});
// Of one stack.
LayoutPath cheapest_path(
    const LayoutGraph& graph,
    std::size_t layers,
    const std::vector<double>& begin = {},
    const std::vector<double>& end = {});

}  // namespace paradyse
