// What ops hold that read a mask (Op::mask): numbers of the statistic type for rows, as
// src/run/ops/masks.h makes them.
#pragma once

#include "paradyse/plan/detail/op_traits.h"

namespace paradyse {

// Of all rows that lie so on the rank; nothing where the op reads no mask.
std::int64_t mask_bytes(const OpView& view, const Layout& rows);
// The same where the rank has whole lines along the mask's dim, whatever it has of them.
std::int64_t mask_bytes_of_lines(const OpView& view, const Layout& rows);

// The size of the dim that a mask is summed over; 0 in a group without a sample.
std::int64_t summed_size(const Program& program, const Op& op);

}  // namespace paradyse
