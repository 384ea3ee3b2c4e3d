// Measures from how many tokens on cuDNN takes less time for a document than flash.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <ATen/ATen.h>

#include "paradyse/plan/profile.h"
#include "src/run/kernels/aten/aten_attention.h"

namespace paradyse {

// Forward and adjoint of one causal document of each length by either kernel, from q | k | v to
// their gradients as ops have them: probes for attention_dense_from() (profile.h).  Lengths that do
// not fit into the device's memory, and those after them, are left out.  Nothing where torch has
// not both for heads of this type and width.
std::vector<KernelProbe> measure_attention_kernels(
    const aten::FlashHeads& heads,
    at::ScalarType type,
    c10::Device device,
    std::span<const std::int64_t> lengths);

}  // namespace paradyse
