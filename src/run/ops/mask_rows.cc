// y w in y's memory: y [T, C], w [T] 1 for rows that count and 0 for others.
//
// Adjoint: dy = (gradient of the result) w.
#include "paradyse/plan/detail/index.h"
#include "src/run/ops/masks.h"

namespace paradyse::ops {
namespace {

at::Tensor counted(const Frame& frame, const Op& op) {
  return counted_rows(frame, op.mask, frame.program().values[idx(op.in[0])].layout);
}

}  // namespace

void mask_rows(Frame& frame, const Op& op) {
  at::Tensor& y_TC = frame.value(op.in[0]);
  scale_rows(y_TC, counted(frame, op), y_TC);
  frame.values[idx(op.out[0])] = y_TC;
  frame.values[idx(op.in[0])] = at::Tensor();
}

void mask_rows_adjoint(Frame& frame, const Op& op) {
  const at::Tensor grad_TC = frame.gradient(op.out[0]);
  const at::Tensor target_TC = frame.only_gradient_target(op.in[0]);
  scale_rows(grad_TC, counted(frame, op), target_TC);
}

}  // namespace paradyse::ops
