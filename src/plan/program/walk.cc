#include <algorithm>
#include <map>
#include <stdexcept>

#include "paradyse/plan/detail/index.h"
#include "paradyse/plan/detail/op_traits.h"
#include "paradyse/plan/detail/schedule.h"
#include "src/plan/program/over_domain.h"

namespace paradyse {

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

namespace {

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
