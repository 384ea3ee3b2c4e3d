#include "src/run/measure/measured_cluster.h"

#include <cstdint>

#include <unistd.h>

#include "src/plan/simulate/machine_cluster.h"
#include "src/run/measure/machine.h"

namespace paradyse {

Cluster measured_cluster(const ModelShape& model, int ranks, Backend& backend) {
  const std::int64_t memory =
      static_cast<std::int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGE_SIZE);
  return machine_cluster(
      measure_machine(model.hidden, model.head_dim, ranks, backend), machine_name(), ranks, memory);
}

}  // namespace paradyse
