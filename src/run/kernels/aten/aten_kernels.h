// The kernels of kernels.h and products.h as sequences of ATen's operations: what CUDA tensors go
// through, and CPU tensors where a test asks for it (through_aten.h).  The sentences are those of
// kernels.h and products.h.
//
// Temporaries are taken for at most kScratch elements at once and are nobody's (HostScope), as a
// library's own memory is.
#pragma once

#include <span>
#include <vector>

#include <ATen/ATen.h>

#include "src/run/kernels/cpu/kernels.h"

namespace paradyse::aten {

inline constexpr std::int64_t kScratch = std::int64_t{1} << 22;

// The type in which sums over elements of `type` are kept.
inline at::ScalarType sum_type(at::ScalarType type) {
  return type == at::kDouble ? at::kDouble : at::kFloat;
}

// Calls body(first, count) for stretches of `rows` rows whose temporaries stay small.
template <typename Body>
void for_rows(std::int64_t rows, std::int64_t cols, Body body) {
  const std::int64_t most = std::max<std::int64_t>(1, kScratch / std::max<std::int64_t>(1, cols));
  for (std::int64_t first = 0; first < rows; first += most) {
    body(first, std::min(most, rows - first));
  }
}

// Numbers of the host, on the device.
at::Tensor indices(std::span<const std::int64_t> numbers, c10::Device device);

void rms_norm(const at::Tensor& x, const at::Tensor& w, double eps, const at::Tensor& y);
void rms_norm_adjoint(
    const at::Tensor& x, const at::Tensor& w, double eps, const kernels::NormGradients& gradients);
void layer_norm(
    const at::Tensor& x, const at::Tensor& w, const at::Tensor& b, double eps, const at::Tensor& y);
void layer_norm_adjoint(
    const at::Tensor& x, const at::Tensor& w, double eps, const kernels::NormGradients& gradients);
void add_to_rows(const at::Tensor& y, const at::Tensor& b);
void add_sum_of_rows(const at::Tensor& y, const at::Tensor& sums);
void add_sum_of_products(const at::Tensor& a, const at::Tensor& b, const at::Tensor& sums);
void add_numbers(const at::Tensor& to, const at::Tensor& numbers);
void dropout(
    const kernels::Dropout& dropout,
    std::span<const std::int64_t> tokens,
    const at::Tensor& from,
    const at::Tensor& to);
void rotate(const at::Tensor& x, const kernels::Rotation& rotation);
void swiglu(const at::Tensor& h, const at::Tensor& a);
void swiglu_adjoint(const at::Tensor& h, const at::Tensor& grad_a, const at::Tensor& grad_h);

// a b in the type of its sums.
at::Tensor wide_product(const at::Tensor& a, const at::Tensor& b);
void product(const at::Tensor& a, const at::Tensor& b, const at::Tensor& to, bool accumulate);

// `to` = (accumulate ? to : 0) + sources[0] + sources[1] + ..., in this order, in the type of sums
// and rounded once (comm/sum_rows.h).
void sum_into(const at::Tensor& to, const std::vector<at::Tensor>& sources, bool accumulate);

}  // namespace paradyse::aten
