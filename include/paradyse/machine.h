// Measures the few numbers that closed-form costs need.
#pragma once

#include "paradyse/backend.h"
#include "paradyse/cost.h"

namespace paradyse {

// Processors this process may use.
int usable_cores();

// Speeds of this machine for a model of width `hidden`, measured in about half a second: float32
// matrix products and causal attention by one thread, memory traffic, and the backend's latency and
// bandwidth with `ranks` ranks.  Every process calls it; the numbers are whole in the one that
// leads, which alone computes while the others wait.
MachineNumbers measure_machine(
    std::int64_t hidden, std::int64_t head_dim, int ranks, Backend& backend);

}  // namespace paradyse
