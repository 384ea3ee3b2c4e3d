// The order in which the ops of a micro-batch run, forward and backward, and when each value dies.
//
// `walk_forward` and `walk_backward` drive a *machine*: the executor, whose values are tensors, the
// footprint fold, whose values are byte counts, and the simulator, whose values are times.  All are
// driven by the same walk, so what the plan counts is what the run does.
#pragma once

#include <array>
#include <memory>
#include <ranges>
#include <vector>

#include "paradyse/plan/detail/index.h"
#include "paradyse/plan/program.h"

namespace paradyse {

// One op or its adjoint, and what nobody reads after it.  `begin`: only its beginning, so that what
// is sent travels beside the ops that follow; the rest is a step of its own.
struct ScheduledOp {
  int op = 0;
  bool adjoint = false;
  bool begin = false;
  std::vector<ValueId> dead_values = {};
};

// The ops of a pass once each: without beginnings.
inline auto whole(const std::vector<ScheduledOp>& steps) {
  return steps | std::views::filter([](const ScheduledOp& step) { return !step.begin; });
}

struct Schedule {
  std::vector<ValueId> saved;  // ascending: what adjoints need or recomputation starts from
  bool offload = false;        // what waits for the part's adjoints waits in host memory
  bool overlap = false;        // messages travel beside work (Messages)
  std::vector<ScheduledOp> forward;
  // Of a part made again with its layer all ops once more, which save; `forward` saves nothing.
  std::vector<ScheduledOp> again = {};
  std::vector<ScheduledOp>
      backward;  // adjoints, last op first; what is recomputed, just before its need

  [[nodiscard]] bool with_layer() const { return !again.empty(); }
  // In the order in which they run.
  [[nodiscard]] std::array<const std::vector<ScheduledOp>*, 3> passes() const {
    return {&forward, &again, &backward};
  }
};

// How messages travel: the same for all parts and ranks, which meet in one order.
struct Messages {
  // Beside work that does not need them, which takes memory for longer: weights are gathered two
  // ahead; sums of their gradients are waited for when the next begin; what a product's adjoint
  // sends on is sent before the weights' gradient is made; and what is gathered again is asked for
  // a product ahead.  The same numbers, bit by bit.
  bool overlap = false;
  // Gathered weights are freed when a part has run forward, and gathered again for its adjoints, as
  // by FSDP2's option of this name.  Else they are kept with what a part saves: at the end of the
  // forward pass every rank has all that parts gathered which are not made again with their layer.
  // The same numbers, too.
  bool reshard_after_forward = true;
  // Else weights are gathered once, before the first micro-batch of a step, and gradients summed
  // once, after its last, as FSDP2 does where neither this nor `reshard_after_forward` is set and
  // gradients are synchronized with the last micro-batch alone.  Every rank then holds all matrices
  // and their gradients while the step lasts (static_bytes()), and its groups wait for no others.
  // Sums of gradients round otherwise.
  bool reshard_after_backward = true;

  friend auto operator<=>(const Messages&, const Messages&) = default;
};
// Whether each rank of a sharding group of `domain` holds all weights while a step lasts.
inline bool whole_weights(Messages messages, int domain) {
  return domain > 1 && !messages.reshard_after_backward;
}

// How a part runs.
struct Keeping {
  bool keep = true;      // else evaluation: nothing is saved and there is no backward pass
  bool offload = false;  // what the part keeps goes to host memory each time it has run, and comes
                         // back for its next turn
  bool with_layer = false;  // the part is made again with its layer
  Messages messages = {};
};

// Values that must live until the backward pass: what the adjoints need, or, where the producer is
// recomputed, what the producer needs to run again.  Weights are recomputed, hence saved only where
// they are not resharded.
// Throws std::logic_error for a program whose values do not know their makers, or whose ops
// overwrite what is saved, or a gradient that another reader's adjoint has left.
Schedule schedule(const Program& program, Keeping keeping = {});

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

  // Neighbours in a layer that are made again as a whole, by index; none: made again, if at all,
  // part by part.  Of such a *segment* only what enters it waits for the backward pass: then all
  // its parts run once more, and then their adjoints.
  struct Segment {
    std::size_t begin = 0;
    std::size_t end = 0;
  };
  Segment segment = {};
  // Ascending: what waits from the forward pass to the backward pass.
  std::vector<ValueId> waiting = {};
  // What goes to host memory and comes back: what waits, and what is saved while a layer is made
  // again.
  [[nodiscard]] std::vector<ValueId> through_host() const;

  [[nodiscard]] const Program& program() const { return body->program; }
  [[nodiscard]] const Schedule& schedule() const { return body->schedule; }
};

// The parts of a micro-batch on one group, in the order in which they run: those of the model, and
// the moves between them.
using Timeline = std::vector<ScheduledPart>;

// Fills in who reads what, what is made again together, and what waits.  Parts may read versions
// that none before them makes.
// Throws std::logic_error for a part that cannot add to the gradient that a later reader of the
// same version has left.
Timeline linked(Timeline parts);

class Machine {
 public:
  virtual ~Machine() = default;

  // What `op` receives will be wanted soon: forward() waits for it.
  virtual void prefetch(std::size_t part, int op) = 0;
  virtual void forward(std::size_t part, int op) = 0;
  // The adjoint's beginning: gradients of a product's operands (OpTraits::operands_first), or what
  // a move sends; adjoint() does the rest.
  virtual void begin_adjoint(std::size_t part, int op) = 0;
  virtual void adjoint(std::size_t part, int op) = 0;
  virtual void drop_value(std::size_t part, ValueId value) = 0;
  // Moves a saved value to host memory, and back.
  virtual void offload(std::size_t part, ValueId value) = 0;
  virtual void fetch(std::size_t part, ValueId value) = 0;
  // The gradients of the op's outputs, consumed by its adjoint.
  virtual void drop_gradients(std::size_t part, int op) = 0;
  // What `part` writes goes to its readers before part `end`, which all hold the same tensor; the
  // gradients of what it reads go where they belong.  Handles are handed on, nothing is copied or
  // added up.
  virtual void hand_forward(std::size_t part, std::size_t end) = 0;
  virtual void hand_backward(std::size_t part) = 0;
};

// Weights are gathered one ahead: the next ones are prefetched once those of an op are there.  With
// `overlap` two ahead, and the sum of a weight gradient over the domain ends when the next begins.
void walk_forward(const Timeline& timeline, Machine& machine);
void walk_backward(const Timeline& timeline, Machine& machine);

}  // namespace paradyse
