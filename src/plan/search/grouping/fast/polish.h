// How the fast planner ends: documents change places inside a micro-batch.
#pragma once

#include "src/plan/search/grouping/fast/packer.h"

namespace paradyse::fast {

// Moves an item out of the slowest group, or swaps it for another, where that makes the slower of
// the two faster than the slowest was, until nothing does.  Groups keep their types.
void polish(const Items& items, Packed& packed);

}  // namespace paradyse::fast
