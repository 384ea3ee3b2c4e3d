// xn = (x - mean(x)) / sqrt(var(x) + eps) (1 + s) + b: x and xn [T, H], c [rows, ..].
//
// Words.  A *run* is rows of x that one row of c goes with; b | s [2H], its *shift* and *scale*,
// are 2H columns of that row (or twice the same H) and the part's vector, added up.  So a run is a
// LayerNorm with weights of its own, 1 + s, and bias b.  Adjoint: adds to dx where other readers
// have left a gradient, and always to dc and the vector's; x's statistics are made again.
#include "paradyse/run/accountant.h"
#include "src/run/ops/conditioned_rows.h"

namespace paradyse::ops {
namespace {

void add_one(const at::Tensor& scale) {
  const HostScope library_memory;  // torch makes a tensor of the number
  at::Tensor(scale).add_(1);
}

}  // namespace

void adaptive_norm(Frame& frame, const Op& op) {
  const at::Tensor x_TH = frame.value(op.in[0]);
  const at::Tensor c = frame.value(op.in[1]);
  const at::Tensor y_TH = frame.make(op.out[0]);
  const std::int64_t H = x_TH.size(1);
  const at::Tensor vector = frame.parameters->vectors.at(idx(op.vectors.begin));
  at::Tensor modulation = frame.empty(1, 2 * H, frame.activation).view({2 * H});
  const at::Tensor scale = modulation.narrow(0, H, H);
  for_conditioned_rows(
      frame, op.in[0], op.in[1], [&](std::int64_t first, std::int64_t rows, std::int64_t row) {
        conditioned(c, row, op.condition, vector, modulation);
        add_one(scale);
        frame.kernels().layer_norm(
            x_TH.narrow(0, first, rows),
            scale,
            modulation.narrow(0, 0, H),
            frame.program().shape.norm_eps,
            y_TH.narrow(0, first, rows));
      });
}

void adaptive_norm_adjoint(Frame& frame, const Op& op) {
  const at::Tensor x_TH = frame.value(op.in[0]);
  const at::Tensor c = frame.value(op.in[1]);
  const at::Tensor grad_y_TH = frame.gradient(op.out[0]);
  const auto [grad_x_TH, accumulate] = frame.gradient_target(op.in[0]);
  const at::Tensor grad_c = condition_gradient(frame, op.in[1]);
  const std::int64_t H = x_TH.size(1);
  const auto v = idx(op.vectors.begin);
  at::Tensor modulation = frame.empty(1, 2 * H, frame.activation).view({2 * H});
  const at::Tensor scale = modulation.narrow(0, H, H);
  const at::Tensor grad_modulation = frame.empty(1, 2 * H, frame.statistic).view({2 * H});
  for_conditioned_rows(
      frame,
      op.in[0],
      op.in[1],
      [&, grad_x = grad_x_TH, onto = accumulate](
          std::int64_t first, std::int64_t rows, std::int64_t row) {
        conditioned(c, row, op.condition, frame.parameters->vectors.at(v), modulation);
        add_one(scale);
        grad_modulation.zero_();
        frame.kernels().layer_norm_adjoint(
            x_TH.narrow(0, first, rows),
            scale,
            frame.program().shape.norm_eps,
            {.y = grad_y_TH.narrow(0, first, rows),
             .x = grad_x.narrow(0, first, rows),
             .accumulate = onto,
             .w = grad_modulation.narrow(0, H, H),
             .b = grad_modulation.narrow(0, 0, H)});
        frame.parameters->vector_grads.at(v).add_(grad_modulation);
        add_to_condition(frame, grad_c, row, op.condition, grad_modulation);
      });
}

}  // namespace paradyse::ops
