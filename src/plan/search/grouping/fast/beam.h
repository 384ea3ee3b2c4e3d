// Where the fast planner begins: micro-batches one after the other, longest documents first.
#pragma once

#include <vector>

#include "src/plan/search/grouping/fast/packer.h"

namespace paradyse::fast {

struct BeamOptions {
  int width = 4;
  // What a second of work that is left costs, for it will not be packed perfectly, and how full
  // micro-batches will be.
  double price = 1.10;
  double fill = 0.9;
};

// A list of micro-batches that hold all items.  Of each partial list several next micro-batches are
// tried, by how long they may take; the `width` best partial lists go on, judged by their seconds
// and the price of what is left.  Empty: nothing found, or no items.
std::vector<Packed> beam(Packer& packer, const BeamOptions& options);

}  // namespace paradyse::fast
