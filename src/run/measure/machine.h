// Measures the few numbers that closed-form costs need.
#pragma once

#include <string>
#include <vector>

#include <ATen/ATen.h>

#include "paradyse/plan/model_shape.h"
#include "paradyse/plan/profile.h"
#include "paradyse/run/backend.h"
#include "src/run/device/cores.h"

namespace paradyse {

// Processors that so many ranks share, those of this machine; on GPUs these: one that threads
// share, or one for each process.
int shared_cores(int ranks, const Backend& backend, c10::Device device);

// What this machine is, for people: processor, processors in use, memory, device.
std::string machine_name(c10::Device device = c10::Device(c10::kCPU));

// Speeds of this machine for a model of width `hidden`, measured in about half a second: float32
// matrix products and causal attention by one thread, memory traffic, and the backend's latency and
// bandwidth with `ranks` ranks.  Every process calls it; the numbers are whole in the one that
// leads, which alone computes while the others wait.
MachineNumbers measure_machine(
    std::int64_t hidden,
    std::int64_t head_dim,
    int ranks,
    Backend& backend,
    c10::Device device = c10::Device(c10::kCPU));

// Matrix products and attention of the model's shapes by one thread, in about a second.
std::vector<KernelProbe> measure_kernels(
    const ModelShape& model, c10::Device device = c10::Device(c10::kCPU));

}  // namespace paradyse
