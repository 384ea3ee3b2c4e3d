// The memory of this machine.
#pragma once

#include <cstdint>

namespace paradyse {

// In bytes.
struct HostMemory {
  std::int64_t total = 0;
  std::int64_t available = 0;  // that this process can still take
  std::int64_t container = 0;  // limit of its container (cgroup); 0: none
};
HostMemory host_memory();

// host_memory().available
std::int64_t available_memory();

}  // namespace paradyse
