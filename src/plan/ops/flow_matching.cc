// The end of a model that predicts a velocity (Lipman et al. 2023): (y, v) -> d, the gradient of
// the loss to y; without a backward pass nothing but the loss.
//
//   loss = sum over elements of (y - v)^2    d = 2 (y - v), times the scale of the loss
//
// A row may have columns without a target, where v is NaN: they add nothing.
//
// All are alike [rows, columns], and each rank scores its own rows: nothing is sent.  The adjoint
// hands d on; v is the batch's.
#include "paradyse/plan/detail/op_traits.h"

namespace paradyse {
namespace {

Work flow_matching_work(const OpView& view) {
  return view.forward() ? touches_operands(view) : Work{.calls = 1, .launches = 1};
}

std::vector<ValueId> flow_matching_needs(const Op& op) { return op.out; }

}  // namespace

extern const OpTraits kFlowMatching = {
    .name = "flow_matching",
    .loss = true,
    .needs = flow_matching_needs,
    .work = flow_matching_work};

}  // namespace paradyse
