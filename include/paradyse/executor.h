// Plays the timeline of a micro-batch on tensors: the second machine that the walk drives (the
// first is the footprint fold), so what is saved, when it dies and which collectives run is the
// plan's.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include "paradyse/accountant.h"
#include "paradyse/breakdown.h"
#include "paradyse/communicator.h"
#include "paradyse/parameters.h"
#include "paradyse/part_times.h"
#include "paradyse/schedule.h"
#include "paradyse/trace.h"

namespace paradyse {

// The tokens of one rank in a micro-batch, in the order in which the rank stores them.
struct MicroBatch {
  TokenLayout tokens;
  std::vector<std::int32_t> ids;            // [t]
  std::vector<std::int32_t> labels;         // [t] the id to predict; -1: none
  std::vector<std::int32_t> document_of;    // [t] index into the layout's documents
  std::vector<std::int64_t> positions;      // [t] inside the document
  std::vector<std::int64_t> all_positions;  // [T] of the packed tokens in natural order
  std::vector<std::int64_t> tokens_of;      // [t] index of the token in the global batch
  std::uint64_t dropout_seed = 0;
};

// `documents`: those of the layout, in its order.  A token's label is the next id of its document,
// or, where there are `labels` (a list as long for every document), its own: negative for none.
// Labels are made before tokens are cut.  `first_tokens`: the index of every document's first token
// in the global batch; empty: as they come.
MicroBatch micro_batch(
    const TokenLayout& tokens,
    std::span<const std::vector<std::int32_t>* const> documents,
    int group_rank,
    std::span<const std::vector<std::int32_t>* const> labels = {},
    std::span<const std::int64_t> first_tokens = {});

// What a rank is while it runs: who it talks to and where its memory is counted.
struct RankContext {
  Seat seat;
  Communicator* group = nullptr;   // of the micro-batch's group
  Communicator* domain = nullptr;  // of the weight domain
  Accountant* memory = nullptr;
  Trace* trace = nullptr;           // may be absent
  int world_rank = 0;               // names the rank in the trace
  Breakdown* breakdown = nullptr;   // may be absent
  PartTimes* part_times = nullptr;  // may be absent
};

struct MicroBatchResult {
  std::vector<double> loss_sums;     // [document of the layout] of this rank's tokens
  std::vector<std::int64_t> counts;  // [document] predicted tokens on this rank
  std::int64_t saved_bytes = 0;      // at the end of the forward pass, as the accountant saw it
};

// Runs forward and, when the timeline keeps (and `loss_scale` is given), backward: adds the
// gradient of loss_scale * (sum of this group's token losses) to the parameters' gradients.
// Vectors' gradients stay partial over the ranks of the domain until finish_gradients(). Post:
// nothing but `parameters` is held.
MicroBatchResult run_micro_batch(
    const Timeline& timeline,
    const MicroBatch& batch,
    const RankContext& rank,
    Parameters& parameters,
    double loss_scale,
    bool backward = true);

// Sums what is partial: gradients of vectors over the world, those of matrices over the replicas of
// this rank's piece (the ranks with its place in other weight domains).  Once a step.
void finish_gradients(Parameters& parameters, Communicator& world, Communicator& replicas);

}  // namespace paradyse
