// y m / (1 - p) in y's memory, y [T, H]; m is 0 with probability p and else 1, for each element a
// function of the step's seed, the site (which dropout of the model), token and column; of a
// sample's row its number (Frame::numbered_rows), which rows along one dim may share (Jumper et al.
// 2021, supplement 1.11.6).
//
// Adjoint: dy = (gradient of the result) m / (1 - p), with m drawn again.
#include "paradyse/plan/detail/index.h"
#include "src/run/ops/frame.h"

namespace paradyse::ops {
namespace {

kernels::Dropout dropout_of(const Frame& frame, const Op& op) {
  return {
      .probability = op.probability, .seed = frame.batch->dropout_seed, .site = frame.part->site};
}

// Of the rows, in the global batch.
at::Tensor tokens_of(const Frame& frame, const Op& op) {
  if (!frame.batch->samples.empty()) {
    return frame.numbered_rows(op.in[0], frame.program().shape.dropout_shared);
  }
  return frame.of_rows(
      op.in[0], BatchNumbers::Kind::tokens, frame.batch->tokens_of, frame.batch->all_tokens_of);
}

}  // namespace

void dropout(Frame& frame, const Op& op) {
  at::Tensor& y_TH = frame.value(op.in[0]);
  frame.kernels().dropout(dropout_of(frame, op), tokens_of(frame, op), y_TH, y_TH);
  frame.values[idx(op.out[0])] = y_TH;
  frame.values[idx(op.in[0])] = at::Tensor();
}

void dropout_adjoint(Frame& frame, const Op& op) {
  frame.kernels().dropout(
      dropout_of(frame, op),
      tokens_of(frame, op),
      frame.gradient(op.out[0]),
      frame.only_gradient_target(op.in[0]));
}

}  // namespace paradyse::ops
