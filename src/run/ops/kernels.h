// Loops that torch has no fused CPU kernel for.  Rows are contiguous; one thread.
#pragma once

#include <cstdint>
#include <span>

#include <ATen/ATen.h>

#include "paradyse/cuts.h"

namespace paradyse::kernels {

// RMSNorm (Zhang & Sennrich 2019): y = x / rms(x) * w, rms = sqrt(mean(x^2) + eps).
//   x, y [t, H]; w [H]; sums in float32 (float64 for float64).
void rms_norm(const at::Tensor& x, const at::Tensor& w, double eps, const at::Tensor& y);

// grad_x = its adjoint, or added to grad_x; grad_w [H] (statistic type) is always added to.
void rms_norm_adjoint(
    const at::Tensor& x,
    const at::Tensor& w,
    double eps,
    const at::Tensor& grad_y,
    const at::Tensor& grad_x,
    bool accumulate,
    const at::Tensor& grad_w);

// Rotates the first `heads` heads of every row in place (Su et al. 2021, in Hugging Face's
// convention: dim i is paired with i + D/2).  `inverse` rotates back: the adjoint.
//   x [t, >= heads * D]; cosines, sines [positions, D/2] in the statistic type; positions [t].
void rotate(
    const at::Tensor& x,
    std::int64_t heads,
    std::int64_t head_dim,
    const at::Tensor& cosines,
    const at::Tensor& sines,
    std::span<const std::int64_t> positions,
    bool inverse);

}  // namespace paradyse::kernels
