// Which of its two forms an operation takes: loops of our own, or a sequence of ATen's operations,
// which runs wherever ATen does.
#pragma once

#include <ATen/ATen.h>

namespace paradyse {

// CPU tensors go through ATen as well: for tests, which cannot count on a GPU.  Set at the start by
// PARADYSE_ATEN_KERNELS in the environment.
bool aten_kernels();
void use_aten_kernels(bool on);

// Tensors of other devices always do.
inline bool through_aten(const at::Tensor& tensor) { return !tensor.is_cpu() || aten_kernels(); }

}  // namespace paradyse
