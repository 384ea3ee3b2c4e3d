// Plays the timeline of a micro-batch on tensors: the second machine that the walk drives (the
// first is the footprint fold), so what is saved, when it dies and which collectives run is the
// plan's.
#pragma once

#include <cstdint>
#include <vector>

#include "paradyse/plan/detail/schedule.h"
#include "paradyse/run/weights.h"
#include "src/run/data/micro_batch.h"
#include "src/run/ops/rank_context.h"

namespace paradyse {

// What micro-batches read and add gradients to.
struct UsedWeights {
  std::vector<PartParameters>& parts;  // in the order of Model::parts
  ParameterTypes types;
  c10::Device device;
};

// Runs forward and, when the timeline keeps (and `loss_scale` is given), backward: adds the
// gradient of loss_scale * (sum of this group's token losses) to the parameters' gradients.
// Vectors' gradients stay partial over the ranks of the domain until finish_gradients(). Post:
// nothing but the weights is held.
MicroBatchResult run_micro_batch(
    const Timeline& timeline,
    const MicroBatch& batch,
    const RankContext& rank,
    UsedWeights weights,
    double loss_scale,
    bool backward = true);

// Sums what is partial: gradients of vectors over the world, those of matrices over the replicas of
// this rank's piece (the ranks with its place in other weight domains).  Once a step.
void finish_gradients(Parameters& parameters, Communicator& world, Communicator& replicas);

}  // namespace paradyse
