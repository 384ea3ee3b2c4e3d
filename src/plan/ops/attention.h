// What the attention kernel takes and holds: shared by the three cores.
#pragma once

#include <vector>

#include "paradyse/plan/detail/op_traits.h"

namespace paradyse {

// Of attention in these blocks, those of one hop (without a ring: all) after those of another;
// going back, a pair of a query and a key costs `adjoint_products` products of a head's width.
Work attention_work(
    const OpView& view, const std::vector<std::vector<AttentionBlock>>& hops, int adjoint_products);

// Bytes that src/run/kernels/cpu/tile_attention.cc holds for the largest of the blocks.  `rounds`:
// results of narrow types, too, before they are rounded.
std::int64_t attention_bytes(
    const OpView& view, const std::vector<AttentionBlock>& blocks, bool rounds);

}  // namespace paradyse
