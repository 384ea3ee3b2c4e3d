// Measures the few numbers that closed-form costs need.
#pragma once

#include "paradyse/cost.h"

namespace paradyse {

// Processors this process may use.
int usable_cores();

// Speeds of this machine for a model of width `hidden`, measured in about half a second: float32
// matrix products and causal attention by one thread, memory traffic, and the `local`
// communicator's latency and bandwidth with `ranks` ranks.
MachineNumbers measure_machine(std::int64_t hidden, std::int64_t head_dim, int ranks);

}  // namespace paradyse
