// Memory of a GPU: how much each rank may hold, and what torch's caching allocator makes of it.
// The arithmetic and the decisions take numbers, so that they are the same where there is no GPU.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include <c10/core/Device.h>

namespace paradyse {

struct DeviceBytes {
  std::int64_t free = 0;
  std::int64_t total = 0;
};
// Of the device that is current; of one without an allocator that knows, as the CPU, nothing.
std::optional<DeviceBytes> bytes_of(c10::Device device);

// What the caching allocator of the current device has done since the start, by the names of
// torch.cuda.memory_stats(): the most bytes in use and reserved at once, and how often it gave back
// what waited for reuse to make room.  Of a device without one, as the CPU, nothing.
std::map<std::string, std::int64_t> allocator_numbers(c10::Device device);

// The budget of each of `ranks` that share a GPU with so many bytes: `asked`, or, where that is 0,
// its share of what is free but for what no accountant counts: 0.5 GiB a rank (workspaces of cuBLAS
// and cuDNN, what ATen's operations take for themselves, blocks that the streams of ranks cannot
// lend each other) and 1 GiB (rounding of blocks, kernels that are loaded later).  Throws
// std::invalid_argument where that cannot be had, saying what can.
std::int64_t device_budget(std::int64_t asked, int ranks, const DeviceBytes& bytes);

// What torch's CUDA allocator shall be told before it is there: segments that grow, so that blocks
// of ever new sizes leave no holes.  Nothing where the user has said something (`environment` gives
// a variable's value, or nullptr).
std::optional<std::string> allocator_settings(
    const std::function<const char*(const char* name)>& environment);

// Whether an error in these words is one of memory that a GPU lacks: libraries on top of CUDA have
// statuses of their own for it.
bool tells_lack(std::string_view error);

}  // namespace paradyse
