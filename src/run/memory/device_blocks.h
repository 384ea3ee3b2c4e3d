// For the allocators of devices: what the accountant that is current on this thread says to a
// block, and to a device that has none left.
#pragma once

#include <cstddef>
#include <functional>

#include <c10/core/DeviceType.h>

namespace paradyse {

// Runs body().  Where the machine itself lacks memory, as torch (c10::OutOfMemoryError), CUDA
// (cudaErrorMemoryAllocation), a library on top of it (tells_lack() in device_memory.h) or the host
// (std::bad_alloc) say, throws OutOfMemory in its place.
// `bytes`: what body() asks for; 0: not known.
void naming_lack(const std::function<void()>& body, std::size_t bytes = 0);

// What allocate() gives, counted where the accountant counts memory of this kind of device.  Throws
// OutOfMemory over its budget, before it allocates, and where the device has none left.
void* device_allocate(
    c10::DeviceType device, std::size_t bytes, const std::function<void*()>& allocate);
// Credits a block, wherever it came from; before it is given back.
void device_free(const void* data);

// What this thread allocates for, as messages say it: the label of the MemoryScope it is in.
const char* allocation_label();

// Puts such an allocator before torch's caching one (src/run/cuda/).
void install_cuda_accounting();

}  // namespace paradyse
