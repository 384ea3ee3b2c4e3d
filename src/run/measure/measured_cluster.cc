#include "src/run/measure/measured_cluster.h"

#include <algorithm>
#include <cstdint>
#include <optional>

#include <ATen/ATen.h>
#include <unistd.h>

#include "src/plan/simulate/machine_cluster.h"
#include "src/run/measure/bench_comm.h"
#include "src/run/measure/links.h"
#include "src/run/measure/machine.h"

namespace paradyse {

namespace {

// Of the exchanges of a step, small and large: what the bytes between take, and what is left.  All
// ranks are at it; the numbers are those of a rank alone on its core, as measure_machine()'s.
void measure_link(int ranks, const std::shared_ptr<Backend>& backend, MachineNumbers& machine) {
  constexpr std::int64_t kSmall = 4096;
  constexpr std::int64_t kLarge = 1 << 20;
  constexpr double kSeconds = 0.05;  // for each collective and size
  double seconds[2] = {};            // [large] of all three
  int collectives = 0;
  for (const BenchCommRow& row : bench_comm(
           {.ranks = ranks, .bytes = {kSmall, kLarge}, .seconds = kSeconds, .backend = backend})) {
    for (const char* name : {"all_gather", "reduce_scatter", "all_to_all"}) {
      if (row.collective == name) {
        seconds[row.bytes == kLarge ? 1 : 0] += row.seconds;
        collectives += row.bytes == kLarge ? 1 : 0;
      }
    }
  }
  if (collectives == 0 || seconds[1] <= 0) {  // not the process that leads
    return;
  }
  const double sharing = std::max(1.0, static_cast<double>(ranks) / machine.cores);
  const double messages = static_cast<double>(collectives) * (ranks - 1);
  // On a machine so busy that large is no slower than small, all of its time counts.
  const double passing = seconds[1] > seconds[0] ? seconds[1] - seconds[0] : seconds[1];
  const double bytes_per_second = messages * static_cast<double>(kLarge - kSmall) / passing;
  const double latency = seconds[0] - messages * static_cast<double>(kSmall) / bytes_per_second;
  machine.sent_bytes_per_second = bytes_per_second * sharing;
  machine.collective_seconds = std::max(latency, 0.0) / collectives / sharing;
}

// As all ranks had it at once, each with one of every other node, or with those of its own.
Link cluster_link(const NodeLinks::Link& measured, int ranks) {
  return {
      .bytes_per_second = measured.bytes_per_second,
      .latency_seconds = measured.latency_seconds / doublings(ranks)};
}

}  // namespace

Cluster measured_cluster(const Model& model, int ranks, const std::shared_ptr<Backend>& backend) {
  const std::int64_t memory =
      static_cast<std::int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGE_SIZE);
  MachineNumbers machine = measure_machine(model, Dtype::float32, ranks, *backend);
  const std::optional<NodeLinks> links = measure_links(ranks, *backend, at::kCPU);
  if (ranks > 1 && !links) {
    measure_link(ranks, backend, machine);
  }
  const int node = backend->ranks_per_node(ranks);
  Cluster cluster = machine_cluster(machine, machine_name(), ranks, memory * (ranks / node));
  if (links) {
    cluster.ranks_per_node = node;
    cluster.cores_per_node = std::max(1, cluster.cores_per_node * node / ranks);
    cluster.inside_node = cluster_link(links->inside_node, node);
    cluster.between_nodes = cluster_link(links->between_nodes, ranks / node);
    cluster.node_shares_link = links->node_shares_link;
    if (cluster.node_shares_link) {
      cluster.between_nodes.bytes_per_second *= node;
    }
    cluster.copy_for_each_rank = true;  // so Gloo sends, and NCCL is not measured here
  }
  return cluster;
}

}  // namespace paradyse
