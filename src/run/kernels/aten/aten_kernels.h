// The table (kernels.h) as sequences of ATen's operations: what tensors of other devices go
// through, and CPU tensors where a test asks for it.
//
// Temporaries are taken for at most kScratch elements at once and are nobody's (HostScope), as a
// library's own memory is.
#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include <ATen/ATen.h>

#include "src/run/kernels/kernels.h"

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

void rms_norm(
    const at::Tensor& x, const at::Tensor& w, const kernels::RmsNorm& norm, const at::Tensor& y);
void rms_norm_adjoint(
    const at::Tensor& x,
    const at::Tensor& w,
    const kernels::RmsNorm& norm,
    const kernels::NormGradients& gradients);
void layer_norm(
    const at::Tensor& x, const at::Tensor& w, const at::Tensor& b, double eps, const at::Tensor& y);
void layer_norm_adjoint(
    const at::Tensor& x, const at::Tensor& w, double eps, const kernels::NormGradients& gradients);
void add_to_rows(const at::Tensor& y, const at::Tensor& b, double scale);
void add_sum_of_rows(const at::Tensor& y, const at::Tensor& sums, double scale);
void add_sum_of_products(const at::Tensor& a, const at::Tensor& b, const at::Tensor& sums);
void add_numbers(const at::Tensor& to, const at::Tensor& numbers);
void drop_probabilities(
    const kernels::AttentionDropout& dropout, const at::Tensor& from, const at::Tensor& to);
void dropout(
    const kernels::Dropout& dropout,
    const at::Tensor& tokens,
    const at::Tensor& from,
    const at::Tensor& to);
void rotations(
    const at::Tensor& frequencies,
    double factor,
    const at::Tensor& cosines,
    const at::Tensor& sines);
void rotate(const at::Tensor& x, const kernels::Rotation& rotation);
void swiglu(const at::Tensor& h, const at::Tensor& a);
void swiglu_adjoint(const at::Tensor& h, const at::Tensor& grad_a, const at::Tensor& grad_h);

// a b in the type of its sums.
at::Tensor wide_product(const at::Tensor& a, const at::Tensor& b);
// Where narrow factors meet in one call a GPU needs no room; `rows` is for the others.
void product(
    const at::Tensor& a,
    const at::Tensor& b,
    const at::Tensor& to,
    bool accumulate,
    std::int64_t rows = 0);
void scaled_product(
    double alpha, const at::Tensor& a, const at::Tensor& b, double beta, const at::Tensor& c);

void softmax(const at::Tensor& scores, const kernels::ScoreRows& rows);
void score_gradient(
    const at::Tensor& p,
    const at::Tensor& o,
    const at::Tensor& grad_o,
    const at::Tensor& d,
    const at::Tensor& narrow);

void look_up(
    const at::Tensor& x,
    const at::Tensor& table,
    const at::Tensor& tokens,
    const at::Tensor& rows,
    bool add);
void add_looked_up(
    const at::Tensor& grad_table,
    const at::Tensor& grad_x,
    const at::Tensor& tokens,
    const at::Tensor& rows);

void squared_error(
    const at::Tensor& y,
    const at::Tensor& v,
    double scale,
    const at::Tensor& d,
    const at::Tensor& sums);

void adamw(const kernels::AdamWTensors& tensors, const kernels::AdamWStep& step);

// The elements of contiguous memory as a tensor, a dim a loop: a view.
at::Tensor region_of(const at::Tensor& contiguous, const Region& region);
void copy_region(
    const at::Tensor& to, const Region& to_region, const at::Tensor& from, const Region& region);
void sum_regions(
    const at::Tensor& to,
    const Region& region,
    const std::vector<kernels::Summand>& sources,
    bool accumulate);

}  // namespace paradyse::aten
