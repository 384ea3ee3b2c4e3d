// Softmax attention in each document, block (program.h) by block and head by head:
//
//   o = softmax(q k^T / sqrt(D)) v
//
// Columns of qkv [T, (N + 2K) D]: the rank's query heads, key heads, value heads, D each; or q
// [T, N D], and kv [T, 2K D].  o [T, N D]; l [T, N], the log-sum-exp of each row of scores.
// Adjoint: scores are made again from l, tile by tile; dq, dk and dv add up over blocks, from zero.
#include "src/run/ops/attention_blocks.h"

namespace paradyse::ops {

void attention(Frame& frame, const Op& op) {
  const at::Tensor o_TN = frame.make(op.out[0]);
  const at::Tensor l_TN = frame.make(op.out[1]);
  attend_blocks(
      frame,
      op,
      attention_blocks(frame.program(), op, frame.rank->seat.group_rank),
      {.q = frame.value(op.in.front()), .kv = frame.value(op.in.back()), .o = o_TN, .l = l_TN},
      /*merge=*/false);
}

void attention_adjoint(Frame& frame, const Op& op) {
  const at::Tensor grad_q_TN = frame.only_gradient_target(op.in.front()).zero_();
  const at::Tensor grad_kv =
      op.in.size() == 1 ? grad_q_TN : frame.only_gradient_target(op.in.back()).zero_();
  attend_blocks_adjoint(
      frame,
      op,
      attention_blocks(frame.program(), op, frame.rank->seat.group_rank),
      {.q = frame.value(op.in.front()),
       .kv = frame.value(op.in.back()),
       .o = frame.value(op.out[0]),
       .l = frame.value(op.out[1])},
      {.q = grad_q_TN, .kv = grad_kv, .o = frame.gradient(op.out[0])});
}

}  // namespace paradyse::ops
