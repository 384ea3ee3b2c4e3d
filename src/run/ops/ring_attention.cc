// Ring attention (Liu et al. 2023): at hop s a rank attends with its own queries to the keys and
// values of rank - s, which it hands on meanwhile.
//
// Going back the blocks go round once more, and the sums of their gradients one hop behind them, so
// that these end at their owner.  With the log-sum-exp of all keys each block's adjoint is exact.
// Results are kept in the type of sums until all blocks are in.
#include "src/run/ops/attention_blocks.h"
#include "src/run/ops/masks.h"
#include "src/run/ops/ring.h"

namespace paradyse::ops {

namespace {

// Of the keys that are here at a hop.
at::Tensor mask_at(const KeyMask& mask, const Frame& frame, const Op& op, int hop) {
  return mask.of(ring_source(frame.program(), op, frame.rank->seat.group_rank, hop));
}

}  // namespace

void ring_attention(Frame& frame, const Op& op) {
  const at::Tensor o_TN = frame.make(op.out[0]);
  const at::Tensor l_TN = frame.make(op.out[1]);
  const at::Tensor o_sums = in_sums(frame, o_TN);
  const at::Tensor q_TN = frame.value(op.in[0]);
  const KeyMask mask(frame, op);
  Ring ring(frame, op, frame.value(op.in[1]));
  for (int hop = 0; hop < ring.hops(); ++hop) {
    ring.issue();
    // at hop 0 a rank's queries meet their own keys: every one sees some
    frame.kernels().attend(
        over_blocks(frame, op, ring_blocks(frame.program(), op, frame.rank->seat.group_rank, hop)),
        {.q = q_TN,
         .kv = ring.block(),
         .o = o_sums,
         .l = l_TN,
         .mask = mask_at(mask, frame, op, hop)},
        /*merge=*/hop > 0);
    ring.advance();
  }
  finish(o_sums, o_TN);
}

void ring_attention_adjoint(Frame& frame, const Op& op) {
  const at::Tensor q_TN = frame.value(op.in[0]);
  const at::Tensor o_TN = frame.value(op.out[0]);
  const at::Tensor l_TN = frame.value(op.out[1]);
  const at::Tensor grad_o_TN = frame.gradient(op.out[0]);
  const at::Tensor grad_q_TN = frame.only_gradient_target(op.in[0]);
  const at::Tensor grad_kv = frame.only_gradient_target(op.in[1]);
  const at::Tensor grad_q_sums = in_sums(frame, grad_q_TN);
  const at::Tensor own_sums = in_sums(frame, grad_kv);
  const KeyMask mask(frame, op);
  Ring ring(frame, op, frame.value(op.in[1]));
  RingSums sums(ring, own_sums);
  for (int hop = 0; hop < ring.hops(); ++hop) {
    const at::Tensor to = sums.target(hop, [&] { ring.issue(); });
    frame.kernels().attend_adjoint(
        over_blocks(frame, op, ring_blocks(frame.program(), op, frame.rank->seat.group_rank, hop)),
        {.q = q_TN,
         .kv = ring.block(),
         .o = o_TN,
         .l = l_TN,
         .mask = mask_at(mask, frame, op, hop)},
        {.q = grad_q_sums, .kv = to, .o = grad_o_TN},
        /*fresh=*/hop == 0);
    ring.advance();
  }
  sums.come_home();
  finish(grad_q_sums, grad_q_TN);
  finish(own_sums, grad_kv);
}

}  // namespace paradyse::ops
