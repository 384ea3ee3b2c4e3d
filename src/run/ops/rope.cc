// Turns queries and keys by their token's position t, in place.
//
// Columns i and i + D/2 of a head are a pair (a, b): it becomes (a cos - b sin, a sin + b cos) of
// the angle t f_i, i < D/2.  The *table* has cosines and sines [positions, D/2] of a micro-batch's
// longest document, made once for all its ops.  Adjoint: the gradient turned back, in place.
#include <cmath>

#include "paradyse/plan/index.h"
#include "src/run/kernels/cpu/kernels.h"
#include "src/run/ops/frame.h"

namespace paradyse {

// Angles in float64 whatever the run's type: in float32 they are off by 1e-3 at a position of 16 K.
RopeTable rope_table(
    const Rope& rope,
    std::int64_t head_dim,
    std::int64_t positions,
    at::ScalarType type,
    c10::Device device) {
  const std::int64_t half = head_dim / 2;
  RopeTable table;
  table.cosines = at::empty({positions, half}, at::TensorOptions().dtype(type));
  table.sines = at::empty({positions, half}, at::TensorOptions().dtype(type));
  const std::vector<double> frequency = rope_frequencies(rope, head_dim);
  const double factor = rope.scaling.attention_factor;
  const auto fill = [&](auto* cosines, auto* sines) {
    using T = std::remove_pointer_t<decltype(cosines)>;
    for (std::int64_t t = 0; t < positions; ++t) {
      for (std::int64_t i = 0; i < half; ++i) {
        const double angle = static_cast<double>(t) * frequency[idx(i)];
        cosines[t * half + i] = static_cast<T>(factor * std::cos(angle));
        sines[t * half + i] = static_cast<T>(factor * std::sin(angle));
      }
    }
  };
  if (type == at::kDouble) {
    fill(table.cosines.mutable_data_ptr<double>(), table.sines.mutable_data_ptr<double>());
  } else {
    fill(table.cosines.mutable_data_ptr<float>(), table.sines.mutable_data_ptr<float>());
  }
  return {table.cosines.to(device), table.sines.to(device)};
}

namespace ops {
namespace {

// Queries and keys stand side by side, so they turn as one run of heads; values stay.
void turn(Frame& frame, const Op& op, const at::Tensor& qkv, bool inverse) {
  const Heads& heads = op.heads[idx(frame.rank->seat.group_rank)];
  std::vector<std::int64_t> store;
  kernels::rotate(
      qkv,
      {.heads = heads.query.size() + heads.key.size(),
       .head_dim = frame.program().shape.head_dim,
       .cosines = frame.rope->cosines,
       .sines = frame.rope->sines,
       .positions =
           frame.of_rows(op.in[0], frame.batch->positions, frame.batch->all_positions, store),
       .inverse = inverse});
}

}  // namespace

void rope(Frame& frame, const Op& op) {
  at::Tensor& qkv = frame.value(op.in[0]);
  turn(frame, op, qkv, false);
  frame.values[idx(op.out[0])] = std::move(qkv);
  frame.values[idx(op.in[0])] = at::Tensor();
}

void rope_adjoint(Frame& frame, const Op& op) {
  const at::Tensor grad = frame.gradient(op.out[0]);
  turn(frame, op, grad, true);
  frame.gradients[idx(op.in[0])] = grad;
}

}  // namespace ops
}  // namespace paradyse
