#include "src/run/execute/memory_budget.h"

#include <algorithm>

#include "src/run/execute/gather.h"
#include "src/run/memory/device_memory.h"

namespace paradyse {

std::int64_t memory_budget(std::int64_t asked, int ranks, Backend& backend, c10::Device device) {
  const auto bytes = bytes_of(device);
  if (!bytes) {
    return asked;
  }
  if (backend.name() == "local") {
    return device_budget(asked, ranks, *bytes);
  }
  std::int64_t least = 0;  // of processes with a GPU each
  backend.run(ranks, [&](Communicators& communicators) {
    least = device_budget(asked, 1, *bytes);
    for (const auto& of_rank : gather({least}, communicators.world())) {
      least = std::min(least, of_rank.front());
    }
  });
  return least;
}

}  // namespace paradyse
