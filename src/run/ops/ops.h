// What runs an op: a forward and an adjoint for each kind, one file a kind, named in table.cc.
//
// A forward reads op.in and makes op.out; an adjoint reads the gradients of op.out and what the op
// needs, and makes or adds to the gradients of op.in.  What they hold meanwhile is declared by the
// kind's file in src/plan/ops/.
#pragma once

#include "src/run/ops/frame.h"

namespace paradyse {

struct OpImplementation {
  OpKind kind;
  void (*forward)(Frame&, const Op&);
  void (*adjoint)(Frame&, const Op&);
  // Of a kind that receives: begins the forward, which then waits for it.
  void (*issue)(Frame&, const Op&) = nullptr;
  // The adjoint in two steps, where the kind has them.
  void (*begin_adjoint)(Frame&, const Op&) = nullptr;
  void (*end_adjoint)(Frame&, const Op&) = nullptr;
};

const OpImplementation& implementation(OpKind kind);

}  // namespace paradyse
