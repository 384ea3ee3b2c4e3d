#include "paradyse/schedule.h"

#include <algorithm>
#include <map>
#include <set>
#include <stdexcept>

namespace paradyse {
namespace {

bool weight_op(const Op& op) {
  return op.kind == OpKind::hold_weights || op.kind == OpKind::gather_weights;
}

// Finds what is kept and which ops run again, starting from what the adjoints need.
class Keeper {
 public:
  explicit Keeper(const Program& program) : program_(program) {
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
    const int op = producer(program_, value);
    if (op < 0 || !program_.ops[static_cast<std::size_t>(op)].recompute) {
      saved.insert(value);
      return;
    }
    if (rerun.insert(op).second) {
      for (const ValueId in : program_.ops[static_cast<std::size_t>(op)].in) {
        keep(in);
      }
    }
  }
  const Program& program_;
};

// Fills `dead_values` of every step of `steps`, given what each step touches: a value dies at the
// last step that touches it, unless it is in `kept`.
void mark_deaths(
    std::vector<Step*> steps,
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

}  // namespace

Schedule schedule(const Program& program, bool keep, bool offload) {
  Keeper keeper(program);
  if (!keep) {
    keeper.saved.clear();
    keeper.rerun.clear();
  }
  Schedule result;
  result.saved.assign(keeper.saved.begin(), keeper.saved.end());
  if (offload) {
    result.offloaded = result.saved;
  }
  for (const Op& op : program.ops) {
    if (op.in_place && keeper.saved.contains(op.in.back())) {
      throw std::logic_error(
          "schedule: " + to_string(op.kind) + " overwrites " +
          program.values[static_cast<std::size_t>(op.in.back())].name + ", which is saved");
    }
  }

  std::vector<Step*> steps;
  std::vector<std::vector<ValueId>> touched;
  result.forward.resize(program.ops.size());
  for (std::size_t i = 0; i < program.ops.size(); ++i) {
    result.forward[i].op = static_cast<int>(i);
    steps.push_back(&result.forward[i]);
    touched.push_back(touched_forward(program.ops[i]));
  }
  std::set<ValueId> kept = keeper.saved;
  kept.insert(program.output);
  mark_deaths(steps, touched, kept);
  if (!keep) {
    return result;
  }

  for (const int op : keeper.rerun) {
    result.recompute.push_back({.op = op, .dead_values = {}});
  }
  for (int i = static_cast<int>(program.ops.size()) - 1; i >= 0; --i) {
    result.backward.push_back({.op = i, .dead_values = {}});
  }
  steps.clear();
  touched.clear();
  for (Step& step : result.recompute) {
    steps.push_back(&step);
    touched.push_back(touched_forward(program.ops[static_cast<std::size_t>(step.op)]));
  }
  for (Step& step : result.backward) {
    steps.push_back(&step);
    touched.push_back(program.ops[static_cast<std::size_t>(step.op)].needs);
  }
  mark_deaths(steps, touched, {});
  return result;
}

namespace {

void prefetch(const Timeline& timeline, std::size_t part, Machine& machine) {
  const Program& program = timeline[part].program();
  for (std::size_t i = 0; i < program.ops.size(); ++i) {
    if (program.ops[i].kind == OpKind::gather_weights) {
      machine.prefetch(part, static_cast<int>(i));
    }
  }
}

// Runs `steps`; `next` is called once, as soon as the part's own weights are there.
template <typename Next>
void run_forward(
    const Timeline& timeline,
    std::size_t part,
    const std::vector<Step>& steps,
    Machine& machine,
    Next next) {
  bool called = false;
  for (const Step& step : steps) {
    const auto op = static_cast<std::size_t>(step.op);
    if (!called && !weight_op(timeline[part].program().ops[op])) {
      next();
      called = true;
    }
    machine.forward(part, step.op);
    for (const ValueId value : step.dead_values) {
      machine.drop_value(part, value);
    }
  }
  if (!called) {
    next();
  }
}

}  // namespace

void walk_forward(const Timeline& timeline, Machine& machine) {
  if (!timeline.empty()) {
    prefetch(timeline, 0, machine);
  }
  for (std::size_t part = 0; part < timeline.size(); ++part) {
    run_forward(timeline, part, timeline[part].schedule().forward, machine, [&] {
      if (part + 1 < timeline.size()) {
        prefetch(timeline, part + 1, machine);
      }
    });
    for (const ValueId value : timeline[part].schedule().offloaded) {
      machine.offload(part, value);
    }
    if (part + 1 < timeline.size()) {
      machine.hand_forward(part);
    }
  }
}

void walk_backward(const Timeline& timeline, Machine& machine) {
  if (!timeline.empty()) {
    prefetch(timeline, timeline.size() - 1, machine);
  }
  for (std::size_t part = timeline.size(); part-- > 0;) {
    const ScheduledPart& p = timeline[part];
    for (const ValueId value : p.schedule().offloaded) {
      machine.fetch(part, value);
    }
    run_forward(timeline, part, p.schedule().recompute, machine, [&] {
      if (part > 0) {
        prefetch(timeline, part - 1, machine);
      }
    });
    for (const Step& step : p.schedule().backward) {
      machine.adjoint(part, step.op);
      for (const ValueId value : step.dead_values) {
        machine.drop_value(part, value);
      }
      machine.drop_gradients(part, step.op);
    }
    if (part > 0) {
      machine.hand_backward(part - 1);
    }
  }
}

}  // namespace paradyse
