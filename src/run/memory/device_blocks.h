// For the allocators of devices: what the accountant that is current on this thread says to a
// block.
#pragma once

#include <cstddef>
#include <functional>

#include <c10/core/DeviceType.h>

namespace paradyse {

// What allocate() gives, counted where the accountant counts memory of this kind of device.  Throws
// OutOfMemory over its budget, before it allocates.
void* device_allocate(
    c10::DeviceType device, std::size_t bytes, const std::function<void*()>& allocate);
// Credits a block, wherever it came from; before it is given back.
void device_free(const void* data);

// Puts such an allocator before torch's caching one (src/run/cuda/).
void install_cuda_accounting();

}  // namespace paradyse
