// This machine as a cluster that plans can be simulated on: `simulate --cluster measured`.
#pragma once

#include "paradyse/plan/cluster.h"
#include "paradyse/plan/model_shape.h"
#include "paradyse/run/backend.h"

namespace paradyse {

// So many ranks, which are processor threads of this machine on one node, with the speeds of
// measure_machine() for a model of this shape, in a few seconds.  Speeds are those of each rank
// while all are at it: where ranks share cores, a rank has its part of one.  Peaks of all types are
// what float32 reaches, which is all that is measured; the memory is divided evenly. Every process
// of the backend calls it; the numbers are whole in the one that leads.
Cluster measured_cluster(const ModelShape& model, int ranks, Backend& backend);

}  // namespace paradyse
