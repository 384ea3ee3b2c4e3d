// y g: y [T, H], and of each run of rows (adaptive_norm.cc) g [H], columns of its row of c and the
// part's vector, added up.
//
// Adjoint: dy = do g; dg, the sum over a run's rows of do y, is added to the gradients of c and of
// the vector.
#include "src/run/ops/conditioned_rows.h"

namespace paradyse::ops {

void adaptive_gate(Frame& frame, const Op& op) {
  const at::Tensor y_TH = frame.value(op.in[0]);
  const at::Tensor c = frame.value(op.in[1]);
  const at::Tensor out_TH = frame.make(op.out[0]);
  const std::int64_t H = y_TH.size(1);
  at::Tensor g_H = frame.empty(1, H, frame.activation).view({H});
  for_conditioned_rows(
      frame, op.in[0], op.in[1], [&](std::int64_t first, std::int64_t rows, std::int64_t row) {
        conditioned(c, row, op.condition, frame.parameters->vectors.at(idx(op.vectors.begin)), g_H);
        at::Tensor out = out_TH.narrow(0, first, rows);
        at::mul_out(out, y_TH.narrow(0, first, rows), g_H);
      });
}

void adaptive_gate_adjoint(Frame& frame, const Op& op) {
  const at::Tensor y_TH = frame.value(op.in[0]);
  const at::Tensor c = frame.value(op.in[1]);
  const at::Tensor grad_out_TH = frame.gradient(op.out[0]);
  const at::Tensor grad_y_TH = frame.only_gradient_target(op.in[0]);
  const at::Tensor grad_c = condition_gradient(frame, op.in[1]);
  const std::int64_t H = y_TH.size(1);
  const auto v = idx(op.vectors.begin);
  at::Tensor g_H = frame.empty(1, H, frame.activation).view({H});
  const at::Tensor grad_g_H = frame.empty(1, H, frame.statistic).view({H});
  for_conditioned_rows(
      frame, op.in[0], op.in[1], [&](std::int64_t first, std::int64_t rows, std::int64_t row) {
        conditioned(c, row, op.condition, frame.parameters->vectors.at(v), g_H);
        const at::Tensor grad_out = grad_out_TH.narrow(0, first, rows);
        at::Tensor grad_y = grad_y_TH.narrow(0, first, rows);
        at::mul_out(grad_y, grad_out, g_H);
        grad_g_H.zero_();
        frame.kernels().add_sum_of_products(grad_out, y_TH.narrow(0, first, rows), grad_g_H);
        frame.parameters->vector_grads.at(v).add_(grad_g_H);
        add_to_condition(frame, grad_c, row, op.condition, grad_g_H);
      });
}

}  // namespace paradyse::ops
