// What planning knows of an op kind: one row of a table, one file a kind (src/plan/ops/).  The
// folds (cost.h), the walk (schedule.h), the writer of programs and the simulator ask the row and
// never which kind it is; so a new kind is a new row.
//
// Words.  A *view* is one op on one rank, forward or backward, in one precision.  An *exchange* is
// what a rank sends in one collective, or in one hop of a ring.  What an op *needs*, and *seat*:
// program.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "paradyse/plan/detail/index.h"
#include "paradyse/plan/dtype.h"
#include "paradyse/plan/program.h"

namespace paradyse {

// What a rank keeps of a weight from step to step: in evaluation the weight alone, for one backward
// pass its gradient, too, in training also what the optimizer needs.
enum class Keeps { weights, gradients, optimizer };

// Bytes of an element.  Statistics, accumulators, gradients and optimizer state are never narrower
// than float32.
struct Precision {
  std::int64_t activation = 4;  // and the weights that ops read
  std::int64_t statistic = 4;
  bool optimizer_on_host = false;  // its state, which takes no device memory then
  bool snapshot = false;  // beside its state, a copy of what a checkpoint holds (async_save)

  // Activations are rounded: sums are made in a wider type.
  [[nodiscard]] constexpr bool narrow() const { return activation < statistic; }
  // Of an element of a weight.  The optimizer's state, unless it waits on the host, is two moments
  // and, of a narrow weight, the master that it updates.  A snapshot lies where that state does: of
  // the master, whatever the weight, and the moments.
  [[nodiscard]] constexpr std::int64_t of_weight(Keeps keeps) const {
    const std::int64_t gradient = keeps == Keeps::weights ? 0 : statistic;
    const int states = optimizer_on_host ? 0 : (narrow() ? 3 : 2) + (snapshot ? 3 : 0);
    return activation + gradient + (keeps == Keeps::optimizer ? states * statistic : 0);
  }

  friend bool operator==(const Precision&, const Precision&) = default;
};

constexpr Precision precision_of(Dtype dtype) {
  if (narrow(dtype)) {
    return {.activation = 2, .statistic = 4};
  }
  return dtype == Dtype::float64 ? Precision{8, 8} : Precision{4, 4};
}

std::int64_t bytes(const Program& program, ValueId value, Seat seat, Precision precision);

enum class Phase { forward, adjoint };

// Of an adjoint in two steps (OpTraits::operands_first): the operands' gradients, then the
// weights'.
enum class Half { both, operands, weights };

struct OpView {
  const Program& program;
  const Op& op;
  Seat seat;
  Phase phase = Phase::forward;
  Precision precision;
  Half half = Half::both;

  [[nodiscard]] bool forward() const { return phase == Phase::forward; }
  [[nodiscard]] const Value& value(ValueId id) const { return program.values[idx(id)]; }
  // What the rank holds of a value.
  [[nodiscard]] Extent extent(ValueId id) const { return local_extent(program, id, seat); }
  [[nodiscard]] std::int64_t bytes(ValueId id) const {
    return paradyse::bytes(program, id, seat, precision);
  }
};

// A copy that an op makes, or (`transposed`) the sum that is its transpose.  Without one: a hop of
// a ring, and what the rank hands on at it.
struct Exchange {
  const Redistribution* copy = nullptr;  // the op's own
  bool transposed = false;
  std::int64_t element_bytes = 0;
  Sent sent = {};
};

// Arithmetic and memory traffic of an op.
struct Work {
  double matmul_flops = 0;
  double attention_flops = 0;  // causal pairs only; the adjoint counts what it recomputes
  double touched_bytes = 0;    // read and written by element-wise ops
  double operand_bytes = 0;    // read and written by products and attention
  std::int64_t calls = 0;      // of kernels
  std::int64_t launches = 0;   // of kernels on a GPU: of attention all heads and documents at once

  Work& operator+=(const Work& other);
};

// What most kinds answer.
bool adds_to_none(const Op& op, std::size_t operand);
std::vector<ValueId> needs_nothing(const Op& op);
std::vector<Exchange> sends_nothing(const OpView& view);
// One call that reads the operands and writes the results; going back twice as much.
Work touches_operands(const OpView& view);
std::int64_t no_workspace(const OpView& view);

struct OpTraits {
  const char* name = nullptr;  // in logs, traces, explain()

  // Whose ranks its exchanges join.
  enum class Meets { nobody, group, domain } meets = Meets::nobody;
  int rings = 0;                // a ring op: so many rings, one after the other, in its forward
  bool only_moves = false;      // traced as communication
  bool receives_first = false;  // forward: what is exchanged is there before it computes
  bool prefetched = false;      // its forward is issued ahead (Machine::prefetch)
  bool operands_first = false;  // its adjoint may make operands' gradients in a step of their own

  bool weights = false;   // makes weights: recomputed at every level
  bool loss = false;      // its forward makes its first operand's gradient; its adjoint hands it on
  bool given = false;     // its results are the batch's: nobody makes a gradient of them
  bool light = false;     // made again by Recompute::light
  bool core = false;      // of an attention part: kept by Recompute::attention_output
  bool products = false;  // its time is that of matrix products with weights
  bool rotary = false;    // reads the rotary tables of the micro-batch

  // In place: the operands whose gradient is that of the result, in its memory.
  enum class Shares { nothing, last, all } shares = Shares::nothing;
  // Its adjoint can add to the gradient of an operand that another reader's has left; others
  // overwrite it, and only the last of a value's readers may.
  bool (*adds)(const Op&, std::size_t operand) = adds_to_none;
  // What its adjoint reads, of its operands and results.
  std::vector<ValueId> (*needs)(const Op&) = needs_nothing;
  // In order; copies are the same for all seats.
  std::vector<Exchange> (*exchanges)(const OpView&) = sends_nothing;
  Work (*work)(const OpView&) = touches_operands;
  // Bytes that it holds only while it runs, beyond operands, results and their gradients, as
  // src/run/ops/ allocates them.
  std::int64_t (*workspace)(const OpView&) = no_workspace;
};

const OpTraits& traits(OpKind kind);

// The value is what the batch brings, or weights that are not trained: adjoints make no gradient
// of it.
bool is_given(const Program& program, ValueId value);

// A table has a row for every kind, each in its place.
template <typename Row, std::size_t rows>
constexpr bool complete(const Row (&table)[rows]) {
  for (std::size_t i = 0; i < rows; ++i) {
    if (table[i].kind != static_cast<OpKind>(i)) {
      return false;
    }
  }
  return rows == idx(OpKind::count);
}

}  // namespace paradyse
