#include "paradyse/plan/detail/schedule.h"

#include <algorithm>
#include <map>
#include <set>
#include <stdexcept>
#include <utility>

#include "paradyse/plan/detail/index.h"
#include "paradyse/plan/detail/op_traits.h"
#include "src/plan/program/early_messages.h"

namespace paradyse {
namespace {

// Finds what is kept and which ops run again, starting from what the adjoints need.
class Keeper {
 public:
  Keeper(const Program& program, Messages messages) : program_(program), messages_(messages) {
    for (const Op& op : program.ops) {
      for (const ValueId value : op.needs) {
        keep(value);
      }
    }
  }
  std::set<ValueId> saved;
  std::set<int> rerun;

 private:
  void keep(ValueId value) {
    const int op = program_.values[idx(value)].maker;
    if (op < 0 || !runs_again(program_.ops[idx(op)])) {
      saved.insert(value);
      return;
    }
    if (rerun.insert(op).second) {
      for (const ValueId in : program_.ops[idx(op)].in) {
        keep(in);
      }
    }
  }
  [[nodiscard]] bool runs_again(const Op& op) const {
    return op.recompute && (messages_.reshard_after_forward || !traits(op.kind).prefetched);
  }
  const Program& program_;
  Messages messages_;
};

// Adjoints run last op first: the last reader of a value makes its gradient, those before it add.
void expect_gradients_that_add_up(const Program& program) {
  std::set<ValueId> read_later;
  for (auto op = program.ops.rbegin(); op != program.ops.rend(); ++op) {
    for (std::size_t operand = 0; operand < op->in.size(); ++operand) {
      const ValueId in = op->in[operand];
      if (!read_later.insert(in).second && !traits(op->kind).adds(*op, operand)) {
        throw std::logic_error(
            "schedule: " + program.values[idx(in)].name + " is read after " + to_string(op->kind) +
            ", whose adjoint cannot add to its gradient");
      }
    }
  }
}

// Fills `dead_values` of every step of `steps`, given what each step touches: a value dies at the
// last step that touches it, unless it is in `kept`.
void mark_deaths(
    std::vector<ScheduledOp*> steps,
    const std::vector<std::vector<ValueId>>& touched,
    const std::set<ValueId>& kept) {
  std::map<ValueId, std::size_t> last;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    for (const ValueId value : touched[i]) {
      last[value] = i;
    }
  }
  for (const auto& [value, i] : last) {
    if (!kept.contains(value)) {
      steps[i]->dead_values.push_back(value);
    }
  }
}

// What the op reads and makes when it runs forward.  (What an in-place op took over is gone when it
// dies here; machines let that pass.)
std::vector<ValueId> touched_forward(const Op& op) {
  std::vector<ValueId> values = op.in;
  values.insert(values.end(), op.out.begin(), op.out.end());
  return values;
}

// All ops, and what dies when; what is saved, and what the program writes, outlives them.
std::vector<ScheduledOp> all_forward(const Program& program, std::set<ValueId> kept) {
  std::vector<ScheduledOp> forward(program.ops.size());
  std::vector<ScheduledOp*> steps;
  std::vector<std::vector<ValueId>> touched;
  for (std::size_t i = 0; i < program.ops.size(); ++i) {
    forward[i].op = static_cast<int>(i);
    steps.push_back(&forward[i]);
    touched.push_back(touched_forward(program.ops[i]));
  }
  for (const Port& port : program.writes) {
    kept.insert(port.value);
  }
  mark_deaths(steps, touched, kept);
  return forward;
}

}  // namespace

Schedule schedule(const Program& program, Keeping keeping) {
  for (std::size_t i = 0; i < program.ops.size(); ++i) {
    for (const ValueId made : program.ops[i].out) {
      if (program.values[idx(made)].maker != static_cast<int>(i)) {
        throw std::logic_error(
            "schedule: " + program.values[idx(made)].name +
            " does not know the op that makes it: "
            "add ops with append()");
      }
    }
  }
  Keeper keeper(program, keeping.messages);
  if (!keeping.keep) {
    keeper.saved.clear();
    keeper.rerun.clear();
  }
  Schedule result;
  result.saved.assign(keeper.saved.begin(), keeper.saved.end());
  result.offload = keeping.keep && keeping.offload;
  result.overlap = keeping.messages.overlap;
  for (const Op& op : program.ops) {
    if (op.in_place && keeper.saved.contains(op.in.back())) {
      throw std::logic_error(
          "schedule: " + to_string(op.kind) + " overwrites " +
          program.values[idx(op.in.back())].name + ", which is saved");
    }
  }

  if (keeping.keep && keeping.with_layer) {
    result.forward = all_forward(program, {});
    result.again = all_forward(program, keeper.saved);
  } else {
    result.forward = all_forward(program, keeper.saved);
  }
  if (!keeping.keep) {
    return result;
  }

  expect_gradients_that_add_up(program);
  // Adjoints, last op first, and before each what it needs and was not saved.
  std::set<int> waiting = keeper.rerun;
  for (int i = static_cast<int>(program.ops.size()) - 1; i >= 0; --i) {
    std::set<int> now;
    std::vector<ValueId> wanted = program.ops[idx(i)].needs;
    while (!wanted.empty()) {
      const int maker = program.values[idx(wanted.back())].maker;
      wanted.pop_back();
      if (waiting.erase(maker) != 0) {
        now.insert(maker);
        const Op& op = program.ops[idx(maker)];
        wanted.insert(wanted.end(), op.in.begin(), op.in.end());
      }
    }
    for (const int op : now) {
      result.backward.push_back({.op = op});
    }
    if (const Op& op = program.ops[idx(i)]; !(op.frozen && traits(op.kind).weights)) {
      result.backward.push_back({.op = i, .adjoint = true});
    }
  }
  if (keeping.messages.overlap) {
    ask_early(program, result.backward);
    send_early(program, result.backward);
  }
  std::vector<ScheduledOp*> steps;
  std::vector<std::vector<ValueId>> touched;
  for (ScheduledOp& step : result.backward) {
    const Op& op = program.ops[idx(step.op)];
    steps.push_back(&step);
    touched.push_back(step.adjoint ? op.needs : touched_forward(op));
  }
  mark_deaths(steps, touched, {});
  return result;
}

}  // namespace paradyse
