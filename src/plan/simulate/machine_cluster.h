// A machine's few measured numbers as a cluster of ranks that are its processor threads, and back.
#pragma once

#include <cstdint>
#include <string>

#include "paradyse/plan/cluster.h"
#include "paradyse/plan/cost.h"

namespace paradyse {

// So many ranks on one node.  Speeds are those of each rank while all are at it: where ranks share
// cores, a rank has its part of one.  Peaks of all types are what float32 reaches, which is all
// that is measured; the memory of the machine is divided evenly.
Cluster machine_cluster(
    const MachineNumbers& machine, const std::string& name, int ranks, std::int64_t memory_bytes);

// The other way: what the first device of a cluster does, as the closed form knows it.  A rank has
// it to itself.
MachineNumbers machine_numbers(const Cluster& cluster, Precision precision);

// A meeting of so many ranks takes a latency for each doubling (docs/internals/simulate.md).
double doublings(int ranks);

}  // namespace paradyse
