// Softmax attention, block (program.h: a document's, or a line's) by block and head by head:
//
//   o = softmax(q k^T / sqrt(D) + bias + mask) v
//
// Columns of qkv [T, (N + 2K) D]: the rank's query heads, key heads, value heads, D each; or q
// [T, N D], and kv [T, 2K D].  o [T, N D]; l [T, N], the log-sum-exp of each row of scores.
// The bias [Tq Tk, N], of each pair of a line's query and key, is the same for all lines.  The mask
// [T], of each key, is the same for all queries of its line and all heads (KeyMask).
// Adjoint: scores are made again from l, tile by tile; dq, dk, dv and the bias's gradient add up
// over blocks, the last in the type of sums and onto what other lines' has left.
#include <tuple>

#include "src/run/ops/attention_blocks.h"
#include "src/run/ops/masks.h"

namespace paradyse::ops {

void attention(Frame& frame, const Op& op) {
  const at::Tensor o_TN = frame.make(op.out[0]);
  const at::Tensor l_TN = frame.make(op.out[1]);
  const KeyMask mask(frame, op);
  frame.kernels().attend(
      over_blocks(frame, op, attention_blocks(frame.program(), op, frame.rank->seat.group_rank)),
      {.q = frame.value(op.in.front()),
       .kv = frame.value(keys_of(op)),
       .o = o_TN,
       .l = l_TN,
       .bias = op.biased ? frame.value(bias_of(op)) : at::Tensor(),
       .mask = mask.all()},
      /*merge=*/false);
}

void attention_adjoint(Frame& frame, const Op& op) {
  const at::Tensor grad_q_TN = frame.only_gradient_target(op.in.front());
  const at::Tensor grad_kv =
      keys_of(op) == op.in.front() ? grad_q_TN : frame.only_gradient_target(keys_of(op));
  at::Tensor grad_bias;  // [pairs, N]
  at::Tensor sums;
  bool there = false;  // of other lines
  if (op.biased) {
    std::tie(grad_bias, there) = frame.gradient_target(bias_of(op));
    const bool rounds = frame.activation != frame.statistic;
    sums = rounds ? frame.empty(grad_bias.size(0), grad_bias.size(1), frame.statistic) : grad_bias;
    if (rounds || !there) {
      sums.zero_();
    }
  }
  const KeyMask mask(frame, op);
  frame.kernels().attend_adjoint(
      over_blocks(frame, op, attention_blocks(frame.program(), op, frame.rank->seat.group_rank)),
      {.q = frame.value(op.in.front()),
       .kv = frame.value(keys_of(op)),
       .o = frame.value(op.out[0]),
       .l = frame.value(op.out[1]),
       .bias = op.biased ? frame.value(bias_of(op)) : at::Tensor(),
       .mask = mask.all()},
      {.q = grad_q_TN, .kv = grad_kv, .o = frame.gradient(op.out[0]), .bias = sums},
      /*fresh=*/true);
  if (op.biased && !sums.is_same(grad_bias)) {
    if (there) {
      frame.kernels().add_numbers(grad_bias.view({-1}), sums.view({-1}));
    } else {
      grad_bias.copy_(sums);
    }
  }
}

}  // namespace paradyse::ops
