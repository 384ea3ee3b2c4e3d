// How much each rank may hold.
#pragma once

#include <cstdint>

#include <c10/core/Device.h>

#include "paradyse/run/backend.h"

namespace paradyse {

// Bytes of each of `ranks`; 0: no limit.  On CPUs what was `asked` for; on GPUs that, or, where it
// is 0, the share of what is free there (device_budget() in device_memory.h), the least of all
// ranks. Every process calls it, before tensors are made.  Throws std::invalid_argument where a GPU
// cannot give what was asked for.
std::int64_t memory_budget(std::int64_t asked, int ranks, Backend& backend, c10::Device device);

}  // namespace paradyse
