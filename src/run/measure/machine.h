// Measures the few numbers that closed-form costs need.
#pragma once

#include <string>
#include <vector>

#include <ATen/ATen.h>

#include "paradyse/plan/dtype.h"
#include "paradyse/plan/model.h"
#include "paradyse/plan/profile.h"
#include "paradyse/run/backend.h"
#include "src/run/device/cores.h"

namespace paradyse {

// Processors that so many ranks share, on all machines together; on GPUs these: one that threads
// share, or one for each process.  All processes ask at once.
int shared_cores(int ranks, Backend& backend, c10::Device device);

// What this machine is, for people: processor, processors in use, memory, device.
std::string machine_name(c10::Device device = c10::Device(c10::kCPU));

// Speeds of this machine for a run of this model and type, measured in about half a second (on a
// GPU some seconds, the first time): on a core, one thread's matrix products, causal attention of
// one head and element-wise operations; on a GPU a layer of the model (played_layer.h); and the
// backend's latency and bandwidth with `ranks` ranks.  Of a model of several dims, `hidden` and
// `head_dim` alone count.  Every process calls it; the numbers are whole in the one that leads,
// which alone computes while the others wait.
MachineNumbers measure_machine(
    const Model& model,
    Dtype dtype,
    int ranks,
    Backend& backend,
    c10::Device device = c10::Device(c10::kCPU));

// Matrix products and attention of the model's shapes and the run's type: by one thread, attention
// of one head, in about a second; on a GPU of all heads.
std::vector<KernelProbe> measure_kernels(
    const Model& model, Dtype dtype, c10::Device device = c10::Device(c10::kCPU));

}  // namespace paradyse
