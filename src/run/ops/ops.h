// The table of op implementations: one forward and one adjoint for each kind, one file a kind.
//
// A forward reads op.in and makes op.out; an adjoint reads the gradients of op.out and what the op
// needs, and makes or adds to the gradients of op.in.  Their temporaries are declared in
// src/plan/cost/workspace.cc.
#pragma once

#include "src/run/ops/frame.h"

namespace paradyse {

struct OpImplementation {
  void (*forward)(Frame&, const Op&);
  void (*adjoint)(Frame&, const Op&);
};

const OpImplementation& implementation(OpKind kind);

namespace ops {
void embed(Frame& frame, const Op& op);
void embed_adjoint(Frame& frame, const Op& op);
void norm(Frame& frame, const Op& op);
void norm_adjoint(Frame& frame, const Op& op);
void hold_weights(Frame& frame, const Op& op);
void hold_weights_adjoint(Frame& frame, const Op& op);
void issue_gather(Frame& frame, const Op& op);  // what a prefetch does
void gather_weights(Frame& frame, const Op& op);
void gather_weights_adjoint(Frame& frame, const Op& op);
void linear(Frame& frame, const Op& op);
void linear_adjoint(Frame& frame, const Op& op);
void bias(Frame& frame, const Op& op);
void bias_adjoint(Frame& frame, const Op& op);
void qk_norm(Frame& frame, const Op& op);
void qk_norm_adjoint(Frame& frame, const Op& op);
void rope(Frame& frame, const Op& op);
void rope_adjoint(Frame& frame, const Op& op);
void redistribute(Frame& frame, const Op& op);
void redistribute_adjoint(Frame& frame, const Op& op);
void attention(Frame& frame, const Op& op);
void attention_adjoint(Frame& frame, const Op& op);
void ring_attention(Frame& frame, const Op& op);
void ring_attention_adjoint(Frame& frame, const Op& op);
void score_attention(Frame& frame, const Op& op);
void score_attention_adjoint(Frame& frame, const Op& op);
void swiglu(Frame& frame, const Op& op);
void swiglu_adjoint(Frame& frame, const Op& op);
void activation(Frame& frame, const Op& op);
void activation_adjoint(Frame& frame, const Op& op);
void dropout(Frame& frame, const Op& op);
void dropout_adjoint(Frame& frame, const Op& op);
void add(Frame& frame, const Op& op);
void add_adjoint(Frame& frame, const Op& op);
void cross_entropy(Frame& frame, const Op& op);
void cross_entropy_adjoint(Frame& frame, const Op& op);
}  // namespace ops

}  // namespace paradyse
