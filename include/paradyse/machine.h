// Measures the few numbers that closed-form costs need.
#pragma once

#include <ATen/ATen.h>

#include "paradyse/backend.h"
#include "paradyse/cost.h"

namespace paradyse {

// Processors this process may use.
int usable_cores();

// Speeds of this machine for a model of width `hidden`, measured in about half a second: float32
// matrix products and causal attention by one thread, memory traffic, and the backend's latency and
// bandwidth with `ranks` ranks.  Every process calls it; the numbers are whole in the one that
// leads, which alone computes while the others wait.  On GPUs `cores` counts these: one that
// threads share, or one for each process.
MachineNumbers measure_machine(
    std::int64_t hidden,
    std::int64_t head_dim,
    int ranks,
    Backend& backend,
    c10::Device device = c10::Device(c10::kCPU));

}  // namespace paradyse
