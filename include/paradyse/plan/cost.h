// What a program costs, as folds over its ops: bytes held, bytes and messages sent, operations.
//
// Bytes and messages are counted, not modelled: the run's accountant and counters must equal them
// (tests/run/fold_test.cc).  Seconds are a closed form of these counts and of a machine's few
// numbers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "paradyse/plan/schedule.h"

namespace paradyse {

// Bytes of an element.  Statistics, accumulators, gradients and optimizer state are never narrower
// than float32.
struct Precision {
  std::int64_t activation = 4;  // and the weights that ops read
  std::int64_t statistic = 4;

  // Of an element that is trained: weight, gradient, two moments and, of a narrow weight, the
  // master that the optimizer updates.
  [[nodiscard]] constexpr std::int64_t trained() const {
    return activation + 3 * statistic + (activation < statistic ? statistic : 0);
  }
  // Of an element of a parameter that stays from step to step; evaluation has the weight alone.
  [[nodiscard]] constexpr std::int64_t static_bytes(bool training) const {
    return training ? trained() : activation;
  }

  friend bool operator==(const Precision&, const Precision&) = default;
};

// "float64", "float32", "bfloat16", "float16".  Throws std::invalid_argument for another name.
Precision precision_of(const std::string& dtype);

enum class Phase { forward, adjoint };

std::int64_t bytes(const Program& program, ValueId value, Seat seat, Precision precision);

// Memory that an op holds only while it runs, beyond its operands, results and their gradients.
std::int64_t workspace_bytes(
    const Program& program, const Op& op, Seat seat, Phase phase, Precision precision);

struct Traffic {
  std::int64_t bytes = 0;     // sent by this rank
  std::int64_t messages = 0;  // to other ranks, by this rank
  std::int64_t collectives = 0;

  Traffic& operator+=(const Traffic& other);
  friend bool operator==(const Traffic&, const Traffic&) = default;
};

// A copy table that an op runs, or (`transposed`) runs backwards, adding up.
struct Move {
  const Transfer* table = nullptr;  // the op's own
  bool transposed = false;
  std::int64_t element_bytes = 0;
};

// What an op that is no ring sends, in order: over the weight domain where over_domain(op), else
// over the group.
std::vector<Move> moves(const Program& program, const Op& op, Phase phase, Precision precision);

Traffic traffic(const Program& program, const Op& op, Seat seat, Phase phase, Precision precision);

// Arithmetic and memory traffic of an op.
struct Work {
  double matmul_flops = 0;
  double attention_flops = 0;  // causal pairs only; the adjoint counts what it recomputes
  double touched_bytes = 0;    // read and written by element-wise ops
  std::int64_t calls = 0;      // of kernels

  Work& operator+=(const Work& other);
};

Work work(const Program& program, const Op& op, Seat seat, Phase phase, Precision precision);

// Forward, adjoints and recomputation of a whole timeline.
struct Totals {
  Traffic traffic;
  Work forward;
  Work backward;  // adjoints
  Work recompute;
};
Totals totals(const Timeline& timeline, Seat seat, Precision precision);

// What a rank holds in a micro-batch.  Found by walking the timeline as the executor does.
struct Footprint {
  std::int64_t saved_bytes = 0;      // at the end of the forward pass
  std::int64_t offloaded_bytes = 0;  // then in host memory
  std::int64_t peak_bytes = 0;       // at any time, `base_bytes` included
};

// `base_bytes`: what is there all the time (parameters, gradients, optimizer state).
Footprint footprint(
    const Timeline& timeline, Seat seat, Precision precision, std::int64_t base_bytes);

// What one part adds to a rank: kept from its forward to its backward, and on top of that while it
// runs forward or backward (its input, its output and their gradients included).  Weights that are
// prefetched for the part after it are not.
struct PartFootprint {
  std::int64_t saved_bytes = 0;
  std::int64_t transient_bytes = 0;
};
PartFootprint part_footprint(const ScheduledPart& part, Seat seat, Precision precision);

// Rotary tables of a micro-batch: cosines and sines of every position of its longest document.
std::int64_t rope_table_bytes(const Timeline& timeline, Precision precision);

// The few numbers of a machine that closed-form seconds need; measured at start-up
// (run/train/measure_machine.h) or written in a configuration.  Per rank, as if alone on its core.
struct MachineNumbers {
  double matmul_flops_per_second = 5e10;
  double attention_flops_per_second = 2.5e10;
  double touched_bytes_per_second = 5e9;
  double sent_bytes_per_second = 3e9;
  double collective_seconds = 3e-5;  // latency of one
  double call_seconds = 3e-6;        // of one kernel
  int cores = 1;                     // shared by all ranks of this machine
};

// Seconds of forward, backward and recomputation of `seat`, alone on a core.
double seconds(const Totals& totals, const MachineNumbers& machine);

}  // namespace paradyse
