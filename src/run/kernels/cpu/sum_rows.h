// Sums of several buffers, in a fixed order.
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/ATen.h>

namespace paradyse {

// to[i] = (accumulate ? to[i] : 0) + sources[0][i] + sources[1][i] + ...  Sums of bfloat16 are made
// in float32 and rounded once.  Throws std::invalid_argument for a pair of types it has no loop
// for.
void sum_into(
    void* to,
    at::ScalarType to_type,
    const std::vector<const void*>& sources,
    at::ScalarType source_type,
    std::int64_t count,
    bool accumulate);

}  // namespace paradyse
