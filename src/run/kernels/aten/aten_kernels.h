// The table (kernels.h) as sequences of ATen's operations: what tensors of other devices go
// through, and CPU tensors where a test asks for it.
//
// Temporaries are taken for at most kScratch elements at once and are nobody's (HostScope), as a
// library's own memory is.
#pragma once

#include <span>

#include <ATen/ATen.h>

#include "src/run/kernels/kernels.h"

namespace paradyse::aten {

inline constexpr std::int64_t kScratch = std::int64_t{1} << 22;

// The type in which sums over elements of `type` are kept.
inline at::ScalarType sum_type(at::ScalarType type) {
  return type == at::kDouble ? at::kDouble : at::kFloat;
}

// Numbers of the host, on the device.
at::Tensor indices(std::span<const std::int64_t> numbers, c10::Device device);

// Those of the table, for the tiles of attention.
void scaled_product(
    double alpha, const at::Tensor& a, const at::Tensor& b, double beta, const at::Tensor& c);
void drop_probabilities(
    const kernels::AttentionDropout& dropout, const at::Tensor& from, const at::Tensor& to);

// The elements of contiguous memory as a tensor, a dim a loop: a view.
at::Tensor region_of(const at::Tensor& contiguous, const Region& region);

}  // namespace paradyse::aten
