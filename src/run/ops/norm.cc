// xn, like x [T, H]: every row by itself RMSNorm, or LayerNorm where there are two vectors or the
// part has no other norms; b may be missing.
//
//   xn = (w + offset) x / sqrt(mean(x^2) + eps), or xn = w (x - mean(x)) / sqrt(var(x) + eps) + b
//
// Adjoint: makes the statistics of each row again from x; adds to dx where other readers of x have
// left a gradient, and always to dw and db.
#include "paradyse/plan/detail/index.h"
#include "src/run/ops/frame.h"
#include "src/run/ops/rms_norm.h"

namespace paradyse::ops {
namespace {

bool is_layer_norm(const Frame& frame, const Op& op) {
  return op.vectors.size() == 2 || frame.program().shape.layer_norm;
}

}  // namespace

void norm(Frame& frame, const Op& op) {
  const at::Tensor x_TH = frame.value(op.in[0]);
  const auto& vectors = frame.parameters->vectors;
  const auto v = idx(op.vectors.begin);
  const double eps = frame.program().shape.norm_eps;
  const at::Tensor y_TH = frame.make(op.out[0]);
  if (is_layer_norm(frame, op)) {
    const at::Tensor b = op.vectors.size() == 2 ? vectors.at(v + 1) : at::Tensor();
    frame.kernels().layer_norm(x_TH, vectors.at(v), b, eps, y_TH);
  } else {
    frame.kernels().rms_norm(x_TH, vectors.at(v), rms_norm_of(frame.program().shape), y_TH);
  }
}

void norm_adjoint(Frame& frame, const Op& op) {
  const auto [grad_x_TH, accumulate] = frame.gradient_target(op.in[0]);
  const at::Tensor x_TH = frame.value(op.in[0]);
  const auto& weights = frame.parameters->vectors;
  const auto v = idx(op.vectors.begin);
  const double eps = frame.program().shape.norm_eps;
  kernels::NormGradients gradients{
      .y = frame.gradient(op.out[0]),
      .x = grad_x_TH,
      .accumulate = accumulate,
      .w = frame.vector_gradient(op.vectors.begin)};
  if (is_layer_norm(frame, op)) {
    if (op.vectors.size() == 2) {
      gradients.b = frame.vector_gradient(op.vectors.begin + 1);
    }
    frame.kernels().layer_norm_adjoint(x_TH, weights.at(v), eps, gradients);
  } else {
    frame.kernels().rms_norm_adjoint(
        x_TH, weights.at(v), rms_norm_of(frame.program().shape), gradients);
  }
}

}  // namespace paradyse::ops
