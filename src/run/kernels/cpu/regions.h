// Elements of contiguous memory by the loops of a region (transfer.h).
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/ATen.h>

#include "src/run/kernels/kernels.h"

namespace paradyse::kernels {

// Of memory; `item`: bytes of an element.
void copy_region(
    char* to,
    const Region& to_region,
    const char* from,
    const Region& from_region,
    std::int64_t item);
// Those of the table.
void copy_region(
    const at::Tensor& to, const Region& to_region, const at::Tensor& from, const Region& region);
void sum_regions(
    const at::Tensor& to,
    const Region& region,
    const std::vector<Summand>& sources,
    bool accumulate);

}  // namespace paradyse::kernels
