#include "src/plan/program/early_messages.h"

#include <algorithm>
#include <utility>

#include "paradyse/plan/detail/index.h"
#include "paradyse/plan/detail/op_traits.h"

namespace paradyse {
namespace {

bool is_work(const Program& program, const ScheduledOp& step) {
  const OpTraits& of_kind = traits(program.ops[idx(step.op)].kind);
  return of_kind.products || of_kind.core;
}

}  // namespace

bool is_move(const Program& program, const ScheduledOp& step) {
  const OpTraits& of_kind = traits(program.ops[idx(step.op)].kind);
  return of_kind.only_moves && of_kind.meets == OpTraits::Meets::group;
}

void ask_early(const Program& program, std::vector<ScheduledOp>& steps) {
  for (std::size_t k = 0; k < steps.size(); ++k) {
    if (steps[k].adjoint || steps[k].begin || !is_move(program, steps[k])) {
      continue;
    }
    // From there back: what is made again for it goes with it.
    std::vector<ScheduledOp> early = {{.op = steps[k].op, .begin = true}};
    std::vector<ScheduledOp> passed;
    std::vector<ValueId> wanted = program.ops[idx(steps[k].op)].in;
    std::size_t to = k;
    bool found = false;
    while (to > 0 && !found) {
      const ScheduledOp& step = steps[--to];
      const Op& op = program.ops[idx(step.op)];
      const bool makes = !step.adjoint && std::ranges::any_of(op.out, [&](ValueId out) {
        return std::ranges::find(wanted, out) != wanted.end();
      });
      if (makes && (is_work(program, step) || traits(op.kind).meets != OpTraits::Meets::nobody)) {
        break;
      }
      (makes ? early : passed).insert((makes ? early : passed).begin(), step);
      if (makes) {
        wanted.insert(wanted.end(), op.in.begin(), op.in.end());
      }
      found = step.adjoint && (is_work(program, step) || is_move(program, step));
    }
    if (!found) {
      continue;
    }
    early.insert(early.end(), passed.begin(), passed.end());
    steps.erase(
        steps.begin() + static_cast<std::ptrdiff_t>(to),
        steps.begin() + static_cast<std::ptrdiff_t>(k));
    steps.insert(steps.begin() + static_cast<std::ptrdiff_t>(to), early.begin(), early.end());
    ++k;
  }
}

void send_early(const Program& program, std::vector<ScheduledOp>& steps) {
  std::vector<ScheduledOp> result;
  for (std::size_t k = 0; k < steps.size(); ++k) {
    const Op& product = program.ops[idx(steps[k].op)];
    std::size_t move = k + 1;
    while (move < steps.size() && steps[move].adjoint &&
           traits(program.ops[idx(steps[move].op)].kind).weights) {
      ++move;
    }
    if (steps[k].adjoint && traits(product.kind).operands_first &&
        !is_given(program, product.in[0]) && move < steps.size() && steps[move].adjoint &&
        is_move(program, steps[move]) && program.ops[idx(steps[move].op)].out[0] == product.in[0]) {
      result.push_back({.op = steps[k].op, .adjoint = true, .begin = true});
      result.push_back({.op = steps[move].op, .adjoint = true, .begin = true});
    }
    result.push_back(steps[k]);
  }
  steps = std::move(result);
}

}  // namespace paradyse
