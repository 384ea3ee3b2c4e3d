#include "src/plan/simulate/machine_cluster.h"

#include <algorithm>
#include <cmath>

namespace paradyse {

double doublings(int ranks) { return std::max(1.0, std::ceil(std::log2(ranks))); }

Cluster machine_cluster(
    const MachineNumbers& machine, const std::string& name, int ranks, std::int64_t memory_bytes) {
  // A rank's part of a core.
  const double sharing = std::max(1.0, static_cast<double>(ranks) / machine.cores);
  const double peak = std::max(machine.matmul_flops_per_second, machine.attention_flops_per_second);
  const DeviceClass rank{
      .name = name,
      .count = ranks,
      .matmul_flops_per_second = peak / sharing,
      .float32_flops_per_second = peak / sharing,
      .matmul_fraction = machine.matmul_flops_per_second / peak,
      .attention_fraction = machine.attention_flops_per_second / peak,
      .memory_bytes_per_second = machine.touched_bytes_per_second / sharing,
      .memory_bytes = std::max<std::int64_t>(1, memory_bytes / ranks),
      .launch_seconds = machine.call_seconds * sharing,
      // What waits in host memory is copied there: each byte is read and written.
      .host_bytes_per_second = machine.touched_bytes_per_second / 2 / sharing};
  const Link link{
      .bytes_per_second = machine.sent_bytes_per_second / sharing,
      .latency_seconds = machine.collective_seconds * sharing / doublings(ranks)};
  return {
      .name = "measured",
      .ranks_per_node = ranks,
      .cores_per_node = std::min(machine.cores, ranks),
      .devices = {rank},
      .inside_node = link,
      .between_nodes = {}};
}

MachineNumbers machine_numbers(const Cluster& cluster, Precision precision) {
  const DeviceClass& device = cluster.devices.front();
  const double peak =
      precision.activation <= 2 ? device.matmul_flops_per_second : device.float32_flops_per_second;
  return {
      .matmul_flops_per_second = peak * device.matmul_fraction,
      .attention_flops_per_second = peak * device.attention_fraction,
      .touched_bytes_per_second = device.memory_bytes_per_second,
      .sent_bytes_per_second = cluster.inside_node.bytes_per_second,
      .collective_seconds = cluster.inside_node.latency_seconds,
      .call_seconds = device.launch_seconds,
      .cores = cluster.ranks()};
}

}  // namespace paradyse
