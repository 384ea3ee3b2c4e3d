#include "src/run/device/cores.h"

#include <algorithm>
#include <bit>
#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <thread>

#include <sched.h>
#include <unistd.h>

namespace paradyse {
namespace {

constexpr int kBits = 64;
constexpr int kWords = CPU_SETSIZE / kBits;

// The same for all processes of a machine, in containers, too, and of no other.
std::int64_t this_machine() {
  std::string id;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), id);
  if (id.empty()) {
    char name[256] = {};
    gethostname(name, sizeof(name) - 1);
    id = name;
  }
  return static_cast<std::int64_t>(std::hash<std::string>{}(id));
}

}  // namespace

int usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) == 0) {
    return std::max(1, CPU_COUNT(&set));
  }
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

std::vector<std::int64_t> own_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) {
    const int known = std::min(usable_cores(), static_cast<int>(CPU_SETSIZE));
    for (int core = 0; core < known; ++core) {
      CPU_SET(core, &set);
    }
  }
  std::vector<std::int64_t> own = {this_machine()};
  for (int word = 0; word < kWords; ++word) {
    std::uint64_t bits = 0;
    for (int bit = 0; bit < kBits; ++bit) {
      bits |= static_cast<std::uint64_t>(CPU_ISSET(word * kBits + bit, &set) ? 1 : 0) << bit;
    }
    own.push_back(static_cast<std::int64_t>(bits));
  }
  return own;
}

int cores_of_all(std::span<const std::vector<std::int64_t>> of_processes) {
  std::map<std::int64_t, std::vector<std::uint64_t>> machines;
  for (const std::vector<std::int64_t>& own : of_processes) {
    std::vector<std::uint64_t>& words = machines[own.front()];
    words.resize(std::max(words.size(), own.size() - 1));
    for (std::size_t i = 1; i < own.size(); ++i) {
      words[i - 1] |= static_cast<std::uint64_t>(own[i]);
    }
  }
  int cores = 0;
  for (const auto& [machine, words] : machines) {
    for (const std::uint64_t bits : words) {
      cores += std::popcount(bits);
    }
  }
  return std::max(1, cores);
}

}  // namespace paradyse
