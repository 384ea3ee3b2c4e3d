#include "src/run/device/host_memory.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>

#include <sys/resource.h>
#include <unistd.h>

namespace paradyse {
namespace {

// A number from a file of the kernel; 0 where there is none ("max", no such file).
std::int64_t number_in(const std::string& file, const std::string& key = "") {
  std::ifstream stream(file);
  std::string word;
  while (!key.empty() && stream >> word && word != key) {
  }
  std::int64_t number = 0;
  return stream >> number ? number : 0;
}

}  // namespace

HostMemory host_memory() {
  constexpr std::int64_t kKiB = 1024;
  HostMemory memory{
      .total = number_in("/proc/meminfo", "MemTotal:") * kKiB,
      .available = number_in("/proc/meminfo", "MemAvailable:") * kKiB,
      .container = number_in("/sys/fs/cgroup/memory.max")};
  if (memory.total == 0) {  // the kernel does not say
    memory.available = std::numeric_limits<std::int64_t>::max();
  }
  if (memory.container > 0) {
    // pages of files are given up for what asks for memory
    const std::string pages = "/sys/fs/cgroup/memory.stat";
    const std::int64_t held = number_in("/sys/fs/cgroup/memory.current") -
                              number_in(pages, "inactive_file") - number_in(pages, "active_file");
    memory.available =
        std::min(memory.available, memory.container - std::max<std::int64_t>(0, held));
  }
  rlimit limit{};  // ulimit -v
  if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    const std::int64_t mapped = number_in("/proc/self/statm") * sysconf(_SC_PAGESIZE);
    memory.available =
        std::min(memory.available, static_cast<std::int64_t>(limit.rlim_cur) - mapped);
  }
  memory.available = std::max<std::int64_t>(0, memory.available);
  return memory;
}

std::int64_t available_memory() { return host_memory().available; }

}  // namespace paradyse
