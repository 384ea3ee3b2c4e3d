// Turns queries and keys by their token's position t, in place.
//
// Columns i and i + D/2 of a head, or neighbours, are a pair (a, b): it becomes (a cos - b sin, a
// sin + b cos) of the angle t f_i, i < D/2.  The *table* has cosines and sines [positions, D/2] of
// a micro-batch's longest document, made once for all its ops.  Adjoint: the gradient turned back,
// in place.
#include "paradyse/plan/detail/index.h"
#include "src/run/device/host_copies.h"
#include "src/run/ops/frame.h"

namespace paradyse {

RopeTable rope_table(
    const Rope& rope,
    std::int64_t head_dim,
    std::int64_t positions,
    at::ScalarType type,
    const Kernels& kernels,
    c10::Device device) {
  const auto options = at::TensorOptions().dtype(type).device(device);
  const RopeTable table{
      .cosines = at::empty({positions, head_dim / 2}, options),
      .sines = at::empty({positions, head_dim / 2}, options)};
  std::vector<double> frequencies = rope_frequencies(rope, head_dim);
  const at::Tensor on_host = at::from_blob(frequencies.data(), {head_dim / 2}, at::kDouble);
  kernels.rotations(
      to_device(on_host, device), rope.scaling.attention_factor, table.cosines, table.sines);
  return table;
}

namespace ops {
namespace {

// Queries and keys stand side by side, so they turn as one run of heads; values stay.
void turn(Frame& frame, const Op& op, const at::Tensor& qkv, bool inverse) {
  const Heads& heads = op.heads[idx(frame.rank->seat.group_rank)];
  const Rope rope = frame.program().shape.rope.value_or(Rope{});
  frame.kernels().rotate(
      qkv,
      {.heads = heads.query.size() + heads.key.size(),
       .head_dim = frame.program().shape.head_dim,
       .cosines = frame.rope->cosines,
       .sines = frame.rope->sines,
       .positions = rope.along.empty() ? frame.of_rows(
                                             op.in[0],
                                             BatchNumbers::Kind::positions,
                                             frame.batch->positions,
                                             frame.batch->all_positions)
                                       : frame.places(op.in[0], rope.along),
       .inverse = inverse,
       .interleaved = rope.interleaved});
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
