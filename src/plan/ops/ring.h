// What goes round a ring of ranks, and what that holds: shared by the two ring ops.
//
// Words.  A *block* is what one rank has of the op's keys and values (operand 1).  At *hop* s a
// rank has the block of the rank s places before it, and hands it on; in windowed attention what of
// it others see (ring_pass), packed.  Where the forward has two
// rings (OpTraits::rings), first the keys of the blocks go round, then their values; going back
// they go together, and behind them the sums of their gradients, which end at their owner.
#pragma once

#include <functional>
#include <vector>

#include "paradyse/plan/detail/op_traits.h"

namespace paradyse {

// Rings of this pass, one after the other.
int rings(const OpView& view);

// [hop] what a rank's queries meet.
std::vector<std::vector<AttentionBlock>> blocks_by_hop(const OpView& view);

std::vector<Exchange> ring_exchanges(const OpView& view);

// The blocks that src/run/ops/ring.h holds: at each hop the one that is here and the next one, at
// the first what of a rank's own goes round where that is several runs of rows;
// going back the sums of their gradients, two while one arrives.  Beside them whatever `tile` says
// of the hop.
std::int64_t ring_bytes(const OpView& view, const std::function<std::int64_t(int hop)>& tile);

// Results that are kept in the type of sums until they are rounded: a matrix like q, going back
// also one like kv.
std::int64_t unrounded_bytes(const OpView& view);

}  // namespace paradyse
