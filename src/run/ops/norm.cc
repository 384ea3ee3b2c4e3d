#include "src/run/ops/kernels.h"
#include "src/run/ops/ops.h"

namespace paradyse::ops {

void norm(Frame& frame, const Op& op) {
  const at::Tensor x_TH = frame.value(op.in[0]);
  kernels::rms_norm(
      x_TH, frame.parameters->vectors.at(0), frame.shape->norm_eps, frame.make(op.out[0]));
}

void norm_adjoint(Frame& frame, const Op& op) {
  const auto [grad_x_TH, accumulate] = frame.gradient_target(op.in[0]);
  kernels::rms_norm_adjoint(
      frame.value(op.in[0]),
      frame.parameters->vectors.at(0),
      frame.shape->norm_eps,
      frame.gradient(op.out[0]),
      grad_x_TH,
      accumulate,
      frame.parameters->vector_grads.at(0));
}

}  // namespace paradyse::ops
