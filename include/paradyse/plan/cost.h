// What a program costs, as folds over its ops: bytes held, bytes and messages sent, operations.
//
// Bytes and messages are counted, not modelled: the run's accountant and counters must equal them
// (tests/support/equality.h).  Seconds are a closed form of these counts and of a machine's few
// numbers.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "paradyse/plan/detail/op_traits.h"
#include "paradyse/plan/detail/schedule.h"

namespace paradyse {

struct Model;

// What `rank` of a sharding group of `domain` keeps of a model's weights, and the rank that keeps
// most.  Where `messages` leave weights whole while a step lasts, with those and their gradients.
std::int64_t static_bytes(
    const Model& model,
    int domain,
    int rank,
    Precision precision,
    Keeps keeps,
    Messages messages = {});
std::int64_t most_static_bytes(
    const Model& model, int domain, Precision precision, Keeps keeps, Messages messages = {});

// Memory that an op holds only while it runs, beyond its operands, results and their gradients.
std::int64_t workspace_bytes(const OpView& view);

struct Traffic {
  std::int64_t bytes = 0;     // sent by this rank
  std::int64_t messages = 0;  // to other ranks, by this rank
  std::int64_t collectives = 0;

  Traffic& operator+=(const Traffic& other);
  friend bool operator==(const Traffic&, const Traffic&) = default;
};

// What an op sends, in order: to whom OpTraits::meets says.
std::vector<Exchange> exchanges(const OpView& view);

// The sum of that.
Traffic traffic(const OpView& view);

// Elements that a rank sends inside its group in a part; backward with what is made again.
struct GroupElements {
  std::int64_t forward = 0;
  std::int64_t backward = 0;

  GroupElements& operator+=(const GroupElements& other);
};
GroupElements sent_in_group(const ScheduledPart& part, Seat seat);

Work work(const OpView& view);

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

// Rotary tables of a micro-batch: cosines and sines of every position of its longest document, or
// of every place in the dim that rows are turned by; a table for each way in which parts turn them.
bool turn_alike(const Program& a, const Program& b);
std::vector<const Program*> turning_programs(const Timeline& timeline);  // one for each way
std::int64_t rope_positions(const Program& program);
std::int64_t rope_table_bytes(const Timeline& timeline, Precision precision);

// The few numbers of a machine that closed-form seconds need; measured at start-up
// (src/run/measure/machine.h) or written in a configuration.  Per rank, as if alone on its core.
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

// Of what waits on the host: copied there and back, each byte read and written both times, until
// all of these ranks are done, which share the machine's cores.
double copying_seconds(
    std::span<const ScheduledPart> parts,
    std::span<const Seat> seats,
    Precision precision,
    const MachineNumbers& machine);

}  // namespace paradyse
