// The order in which the ops of a micro-batch run, forward and backward, and when each value dies.
//
// `walk_forward` and `walk_backward` drive a *machine*.  There are two: the executor, whose values
// are tensors, and the footprint fold, whose values are byte counts.  Both are driven by the same
// walk, so what the plan counts is what the run does.
#pragma once

#include <memory>
#include <vector>

#include "paradyse/plan/index.h"
#include "paradyse/plan/program.h"

namespace paradyse {

// One op or its adjoint, and what nobody reads after it.
struct ScheduledOp {
  int op = 0;
  bool adjoint = false;
  std::vector<ValueId> dead_values = {};
};

struct Schedule {
  std::vector<ValueId> saved;      // ascending: what adjoints need or recomputation starts from
  std::vector<ValueId> offloaded;  // those of them that wait in host memory
  std::vector<ScheduledOp> forward;
  std::vector<ScheduledOp>
      backward;  // adjoints, last op first; what is recomputed, just before its need

  [[nodiscard]] bool saves(ValueId value) const;
};

// Values that must live until the backward pass: what the adjoints need, or, where the producer is
// recomputed, what the producer needs to run again.  Weights are recomputed, hence never saved.
// Without `keep` (evaluation) nothing is saved and there is no backward pass.  With `offload` all
// that is saved goes to host memory once the part has run, and comes back before its backward pass.
// Throws std::logic_error for a program whose values do not know their makers, or whose ops
// overwrite what is saved, or a gradient that another reader's adjoint has left.
Schedule schedule(const Program& program, bool keep = true, bool offload = false);

// A value of a part of a timeline.
struct Place {
  std::size_t part = 0;
  ValueId value = -1;

  friend auto operator<=>(const Place&, const Place&) = default;
};
inline constexpr std::size_t kNobody = static_cast<std::size_t>(-1);

// A part of the model on its way through a micro-batch; layers that run alike share the program.
//
// What a part writes is a new *version* of a stream, made once and read by the parts after it, up
// to and including the first that writes the stream again.  Its gradient goes from the last of its
// readers to the one before, each adding its own, and from the first to the maker.
struct ScheduledPart {
  struct Body {
    Program program;
    Schedule schedule;
  };
  std::int64_t layer = -1;
  int weights = -1;        // its parameters: which of Model::parts; -1: it has none
  std::uint32_t site = 0;  // ModelPart::site
  std::shared_ptr<const Body> body;
  std::vector<Place> gradient_to = {};  // [read] the reader before, or the maker; of part kNobody:
                                        // it ends here
  std::vector<std::vector<Place>> readers = {};  // [write] in the order in which they run

  [[nodiscard]] const Program& program() const { return body->program; }
  [[nodiscard]] const Schedule& schedule() const { return body->schedule; }
};

// The parts of a micro-batch on one group, in the order in which they run: those of the model, and
// the moves between them.
using Timeline = std::vector<ScheduledPart>;

// Fills in who reads what.  Parts may read versions that none before them makes.
// Throws std::logic_error for a part that cannot add to the gradient that a later reader of the
// same version has left.
Timeline linked(Timeline parts);

class Machine {
 public:
  virtual ~Machine() = default;

  // What `op` gathers (OpTraits::prefetched) will be wanted soon.
  virtual void prefetch(std::size_t part, int op) = 0;
  virtual void forward(std::size_t part, int op) = 0;
  virtual void adjoint(std::size_t part, int op) = 0;
  virtual void drop_value(std::size_t part, ValueId value) = 0;
  // Moves a saved value to host memory, and back.
  virtual void offload(std::size_t part, ValueId value) = 0;
  virtual void fetch(std::size_t part, ValueId value) = 0;
  // The gradients of the op's outputs, consumed by its adjoint.
  virtual void drop_gradients(std::size_t part, int op) = 0;
  // What `part` writes goes to all its readers, which all hold the same tensor; the gradients of
  // what it reads go where they belong.  Handles are handed on, nothing is copied or added up.
  virtual void hand_forward(std::size_t part) = 0;
  virtual void hand_backward(std::size_t part) = 0;
};

// Weights are gathered one ahead: the next ones are prefetched once those of an op are there.
void walk_forward(const Timeline& timeline, Machine& machine);
void walk_backward(const Timeline& timeline, Machine& machine);

}  // namespace paradyse
