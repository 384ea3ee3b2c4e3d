#include "paradyse/plan/schedule.h"

#include <algorithm>
#include <map>
#include <set>
#include <stdexcept>
#include <utility>

#include "paradyse/plan/index.h"
#include "paradyse/plan/op_traits.h"

namespace paradyse {
namespace {

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
    const int op = program_.values[idx(value)].maker;
    if (op < 0 || !program_.ops[idx(op)].recompute) {
      saved.insert(value);
      return;
    }
    if (rerun.insert(op).second) {
      for (const ValueId in : program_.ops[idx(op)].in) {
        keep(in);
      }
    }
  }
  const Program& program_;
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

// A move inside the group.
bool is_move(const Program& program, const ScheduledOp& step) {
  const OpTraits& of_kind = traits(program.ops[idx(step.op)].kind);
  return of_kind.only_moves && of_kind.meets == OpTraits::Meets::group;
}

bool is_work(const Program& program, const ScheduledOp& step) {
  const OpTraits& of_kind = traits(program.ops[idx(step.op)].kind);
  return of_kind.products || of_kind.core;
}

// What is moved again, from what takes no work to make, is asked for in front of the work before
// it.
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

// A product whose operand was moved hands that gradient to the move before it makes the weights'.
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

}  // namespace

std::vector<ValueId> ScheduledPart::through_host() const {
  std::vector<ValueId> values;
  if (schedule().offload) {
    values = waiting;
    if (schedule().with_layer()) {
      values.insert(values.end(), schedule().saved.begin(), schedule().saved.end());
    }
  }
  return values;
}

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
  Keeper keeper(program);
  if (!keeping.keep) {
    keeper.saved.clear();
    keeper.rerun.clear();
  }
  Schedule result;
  result.saved.assign(keeper.saved.begin(), keeper.saved.end());
  result.offload = keeping.keep && keeping.offload;
  result.overlap = keeping.overlap;
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
    result.backward.push_back({.op = i, .adjoint = true});
  }
  if (keeping.overlap) {
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

namespace {

// What travels over the weight domain in a pass: gathers of weights, each issued once the one
// before it is there; of a part that runs again, or has just run again, whose weights may be in
// use, once it is wanted.  Sums of their gradients end where they begin.
//
// With overlap gathers are two ahead, and a sum ends when the next begins.  Both keep out of the
// way of what parts move inside their groups, which is waited for sooner: they begin when the part
// that runs has moved all.  Whatever groups move, they come in one order: all that is wanted begins
// before a sum is asked for or an op meets the domain itself, the sum that waits always before
// gathers.
class OverDomain {
 public:
  OverDomain(const Timeline& timeline, Machine& machine)
      : timeline_(timeline),
        machine_(machine),
        overlap_(!timeline.empty() && timeline.front().schedule().overlap) {}

  void expect(std::size_t part, const std::vector<ScheduledOp>& steps) {
    ++turns_;
    for (const ScheduledOp& step : steps) {
      if (!step.adjoint && kind_of(part, step).prefetched) {
        expected_.push_back({.part = part, .op = step.op, .turn = turns_});
      }
    }
  }
  void begin() { go_on(); }
  // A part begins to run these steps.
  void enter(std::size_t part, const std::vector<ScheduledOp>& steps) {
    if (overlap_) {
      moves_ = std::ranges::count_if(
          steps, [&](const ScheduledOp& step) { return is_move(timeline_[part].program(), step); });
      go_on_after_moves();
    }
  }
  // Runs one of them.
  void run(std::size_t part, const ScheduledOp& step) {
    if (step.begin) {
      step.adjoint ? machine_.begin_adjoint(part, step.op) : machine_.prefetch(part, step.op);
    } else if (!step.adjoint) {
      forward(part, step);
    } else if (overlap_ && kind_of(part, step).prefetched) {
      go_on();
      asked_ = {{.part = part, .op = step.op}};
      return;
    } else {
      make_way(part, step);
      machine_.adjoint(part, step.op);
    }
    if (step.adjoint && !step.begin) {
      machine_.drop_gradients(part, step.op);
    }
  }
  // It is over, and what nobody reads after it is gone.
  void ran(std::size_t part, const ScheduledOp& step) {
    if (step.adjoint && kind_of(part, step).prefetched) {
      return;  // its sum is not in a hurry
    }
    if (overlap_ && is_move(timeline_[part].program(), step)) {
      --moves_;
    }
    go_on_after_moves();
  }
  void finish() {
    begin_sum();
    end_sum();
  }

 private:
  struct Place {
    std::size_t part = 0;
    int op = 0;
    int turn = 0;  // of its part: a part may run forward, then again, then back
  };

  [[nodiscard]] const OpTraits& kind_of(std::size_t part, const ScheduledOp& step) const {
    return traits(timeline_[part].program().ops[idx(step.op)].kind);
  }
  void forward(std::size_t part, const ScheduledOp& step) {
    if (!kind_of(part, step).prefetched) {
      make_way(part, step);
      machine_.forward(part, step.op);
      return;
    }
    if (issued_ == there_) {
      begin_sum();
      issue_next();
    }
    machine_.forward(part, step.op);
    now_ = there_++;
    wanted_ = there_ + ahead();
  }
  // For an op that meets the domain itself.
  void make_way(std::size_t part, const ScheduledOp& step) {
    if (overlap_ && kind_of(part, step).meets == OpTraits::Meets::domain) {
      go_on();
    }
  }
  void go_on_after_moves() {
    if (moves_ == 0) {
      go_on();
    }
  }
  void go_on() {
    begin_sum();
    while (issued_ < std::min(wanted_, expected_.size()) && !is_in_use()) {
      issue_next();
    }
  }
  // The next one's part has weights, or is to get some, of another turn.
  [[nodiscard]] bool is_in_use() const {
    const Place& next = expected_[issued_];
    return std::any_of(
        expected_.begin() + static_cast<std::ptrdiff_t>(now_),
        expected_.begin() + static_cast<std::ptrdiff_t>(issued_),
        [&](const Place& other) { return other.part == next.part && other.turn != next.turn; });
  }
  void issue_next() {
    const Place& next = expected_[issued_++];
    machine_.prefetch(next.part, next.op);
  }
  void begin_sum() {
    if (!asked_.empty()) {
      end_sum();
      machine_.begin_adjoint(asked_.front().part, asked_.front().op);
      under_way_.swap(asked_);
    }
  }
  void end_sum() {
    if (!under_way_.empty()) {
      const Place over = under_way_.front();
      under_way_.clear();
      machine_.adjoint(over.part, over.op);
      machine_.drop_gradients(over.part, over.op);
    }
  }
  [[nodiscard]] std::size_t ahead() const { return overlap_ ? 2 : 1; }

  const Timeline& timeline_;
  Machine& machine_;
  bool overlap_;
  std::ptrdiff_t moves_ = 0;  // of the part that runs, still to come
  int turns_ = 0;
  std::vector<Place> expected_;   // gathers, in the order of their use
  std::size_t wanted_ = ahead();  // so many are to be issued
  std::size_t issued_ = 0;
  std::size_t there_ = 0;
  std::size_t now_ = 0;           // the last that is there
  std::vector<Place> asked_;      // a sum that is yet to begin, if any
  std::vector<Place> under_way_;  // and one that is yet to end
};

// Neighbours in a layer that are made again as a whole.
void find_segments(Timeline& parts) {
  for (std::size_t begin = 0, end = 0; begin < parts.size(); begin = end) {
    end = begin + 1;
    if (!parts[begin].schedule().with_layer()) {
      continue;
    }
    while (end < parts.size() && parts[end].schedule().with_layer() &&
           parts[end].layer == parts[begin].layer) {
      ++end;
    }
    for (std::size_t part = begin; part < end; ++part) {
      parts[part].segment = {.begin = begin, .end = end};
    }
  }
}

// Every op of the part that reads the value can add to a gradient that is there.
bool adds_to(const Program& program, ValueId value) {
  for (const Op& op : program.ops) {
    for (std::size_t operand = 0; operand < op.in.size(); ++operand) {
      if (op.in[operand] == value && !traits(op.kind).adds(op, operand)) {
        return false;
      }
    }
  }
  return true;
}

}  // namespace

Timeline linked(Timeline parts) {
  struct Version {
    Place made_by;
    std::size_t port = 0;  // of its maker
    Place last;            // the last that reads it so far, or its maker
  };
  find_segments(parts);
  std::map<std::string, Version> now;
  for (std::size_t part = 0; part < parts.size(); ++part) {
    const Program& program = parts[part].program();
    const ScheduledPart::Segment segment = parts[part].segment;
    parts[part].waiting.clear();
    if (!parts[part].schedule().with_layer()) {
      parts[part].waiting = parts[part].schedule().saved;
    }
    parts[part].gradient_to.assign(program.reads.size(), {kNobody, -1});
    parts[part].readers.assign(program.writes.size(), {});
    for (std::size_t i = 0; i < program.reads.size(); ++i) {
      const auto found = now.find(program.reads[i].stream);
      const bool enters = found == now.end() || found->second.made_by.part < segment.begin;
      if (parts[part].schedule().with_layer() && enters) {
        parts[part].waiting.push_back(program.reads[i].value);
      }
      if (found == now.end()) {
        continue;
      }
      Version& version = found->second;
      if (version.last != version.made_by) {  // it will find the gradient of this reader
        const Program& before = parts[version.last.part].program();
        if (!adds_to(before, version.last.value)) {
          throw std::logic_error(
              "timeline: part " + before.part + " reads " + found->first + " before part " +
              program.part + " does, and cannot add to the gradient that comes back from there");
        }
      }
      const Place here{part, program.reads[i].value};
      parts[part].gradient_to[i] = version.last;
      parts[version.made_by.part].readers[version.port].push_back(here);
      version.last = here;
    }
    std::ranges::sort(parts[part].waiting);
    for (std::size_t i = 0; i < program.writes.size(); ++i) {
      const Place made{part, program.writes[i].value};
      now[program.writes[i].stream] = {.made_by = made, .port = i, .last = made};
    }
  }
  return parts;
}

namespace {

// Runs a part forward.  What is in `kept` outlives it, perhaps on the host; what it writes goes to
// readers before `end`.
void run_forward(
    const Timeline& timeline,
    std::size_t part,
    const std::vector<ScheduledOp>& steps,
    const std::vector<ValueId>& kept,
    std::size_t end,
    OverDomain& over_domain,
    Machine& machine) {
  const auto drop = [&](ValueId value) {
    if (!std::ranges::binary_search(kept, value)) {
      machine.drop_value(part, value);
    }
  };
  over_domain.enter(part, steps);
  for (const ScheduledOp& step : steps) {
    over_domain.run(part, step);
    std::ranges::for_each(step.dead_values, drop);
    over_domain.ran(part, step);
  }
  machine.hand_forward(part, end);
  for (const Port& port : timeline[part].program().writes) {
    drop(port.value);
  }
  if (timeline[part].schedule().offload) {
    for (const ValueId value : kept) {
      machine.offload(part, value);
    }
  }
}

// A part's turn in the backward pass.
struct Turn {
  std::size_t part = 0;
  bool again = false;  // it runs forward once more; else its adjoints
};

// Last part first; a segment's parts run forward again, first part first, before its last's
// adjoints.
std::vector<Turn> backward_turns(const Timeline& timeline) {
  std::vector<Turn> turns;
  for (std::size_t part = timeline.size(); part-- > 0;) {
    const auto [begin, end] = timeline[part].segment;
    if (part + 1 == end) {
      for (std::size_t again = begin; again < end; ++again) {
        turns.push_back({.part = again, .again = true});
      }
    }
    turns.push_back({.part = part});
  }
  return turns;
}

}  // namespace

void walk_forward(const Timeline& timeline, Machine& machine) {
  OverDomain over_domain(timeline, machine);
  for (std::size_t part = 0; part < timeline.size(); ++part) {
    over_domain.expect(part, timeline[part].schedule().forward);
  }
  over_domain.begin();
  for (std::size_t part = 0; part < timeline.size(); ++part) {
    const Schedule& schedule = timeline[part].schedule();
    run_forward(
        timeline,
        part,
        schedule.forward,
        timeline[part].waiting,
        timeline.size(),
        over_domain,
        machine);
  }
}

void walk_backward(const Timeline& timeline, Machine& machine) {
  const std::vector<Turn> turns = backward_turns(timeline);
  OverDomain over_domain(timeline, machine);
  for (const auto& [part, again] : turns) {
    const Schedule& schedule = timeline[part].schedule();
    over_domain.expect(part, again ? schedule.again : schedule.backward);
  }
  over_domain.begin();
  for (const auto& [part, again] : turns) {
    const Schedule& schedule = timeline[part].schedule();
    if (schedule.offload) {
      for (const ValueId value : again ? timeline[part].waiting : schedule.saved) {
        machine.fetch(part, value);
      }
    }
    if (again) {
      const std::size_t end = timeline[part].segment.end;
      run_forward(timeline, part, schedule.again, schedule.saved, end, over_domain, machine);
      continue;
    }
    over_domain.enter(part, schedule.backward);
    for (const ScheduledOp& step : schedule.backward) {
      over_domain.run(part, step);
      for (const ValueId value : step.dead_values) {
        machine.drop_value(part, value);
      }
      over_domain.ran(part, step);
    }
    machine.hand_backward(part);
  }
  over_domain.finish();
}

}  // namespace paradyse
