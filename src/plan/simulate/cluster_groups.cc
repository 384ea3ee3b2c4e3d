#include "src/plan/simulate/cluster_groups.h"

#include <algorithm>
#include <bit>
#include <stdexcept>
#include <string>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "src/plan/simulate/machine_cluster.h"

namespace paradyse {

Cluster all_of(Cluster cluster, DeviceClass device) {
  device.count = cluster.ranks();
  cluster.devices = {std::move(device)};
  return cluster;
}

Cluster alike(Cluster cluster) {
  DeviceClass& least = cluster.devices.front();
  for (const DeviceClass& device : cluster.devices) {
    const auto lower = [&](double DeviceClass::* speed) {
      least.*speed = std::min(least.*speed, device.*speed);
    };
    lower(&DeviceClass::matmul_flops_per_second);
    lower(&DeviceClass::float32_flops_per_second);
    lower(&DeviceClass::matmul_fraction);
    lower(&DeviceClass::attention_fraction);
    lower(&DeviceClass::memory_bytes_per_second);
    lower(&DeviceClass::host_bytes_per_second);
    least.memory_bytes = std::min(least.memory_bytes, device.memory_bytes);
    least.launch_seconds = std::max(least.launch_seconds, device.launch_seconds);
  }
  return all_of(cluster, least);
}

std::vector<int> sizes_in_nodes(int most, int node) {
  std::vector<int> found;
  for (int size = 1; size <= most; ++size) {
    const auto nodes = static_cast<unsigned>(size / node);
    const bool few = nodes <= 8 || std::has_single_bit(nodes) ||
                     (nodes % 3 == 0 && std::has_single_bit(nodes / 3));
    if (size <= node || (size % node == 0 && few)) {
      found.push_back(size);
    }
  }
  return found;
}

void expect_group_sizes(const std::vector<int>& wanted, const std::vector<int>& known) {
  for (const int size : wanted) {
    if (std::ranges::find(known, size) == known.end()) {
      throw std::invalid_argument(fmt::format(
          "--group-sizes {}: there are no such groups here; accepted: {}",
          size,
          fmt::join(known, ", ")));
    }
  }
}

std::vector<int> wanted_of(std::vector<int> known, const std::vector<int>& wanted) {
  if (!wanted.empty()) {
    std::erase_if(known, [&](int size) { return std::ranges::find(wanted, size) == wanted.end(); });
  }
  return known;
}

void expect_weight_domain(const Cluster& cluster, int weight_domain) {
  if (weight_domain < 0 || (weight_domain > 0 && cluster.ranks() % weight_domain != 0)) {
    throw std::invalid_argument(
        "a sharding group (weight_domain) of " + std::to_string(weight_domain) +
        " ranks does not divide the cluster's " + std::to_string(cluster.ranks()) +
        ": sharding groups are equal runs of neighbouring ranks");
  }
}

PlanningTask planning_task(
    const Model& model,
    const Cluster& cluster,
    int weight_domain,
    const SimulationOptions& options,
    double reserve) {
  return {
      .model = model,
      .ranks = weight_domain,
      .ranks_per_node = std::min(cluster.ranks_per_node, cluster.ranks()),
      .machine = machine_numbers(cluster, options.precision),
      .precision = options.precision,
      .memory_per_rank = static_cast<std::int64_t>(
          static_cast<double>(cluster.devices.front().memory_bytes) * (1 - reserve)),
      .training = options.training,
      .gather_weights = "micro-batch"};
}

double end_of_step(
    const GroupSpace& space,
    const Model& model,
    const Cluster& cluster,
    const SimulationOptions& options,
    std::int64_t tokens,
    const DimSizes& dims) {
  Plan plan;
  plan.model_name = space.model_name;
  plan.layers = space.layers;
  plan.ranks = space.task.ranks;
  plan.weight_domain = space.weight_domain;
  plan.tiles = space.tiles;
  plan.messages = space.messages;
  plan.programs["idle"] = space.idle;
  plan.lengths = {tokens};
  plan.dims = dims;
  PlanMicroBatch& micro_batch = plan.micro_batches.emplace_back();
  for (int rank = 0; rank < plan.ranks; ++rank) {
    micro_batch.groups.push_back({.ranks = {rank}, .documents = {}, .program = "idle"});
  }
  micro_batch.groups.front().documents = {0};
  const Simulation simulation = simulate(plan, model, cluster, options);
  return simulation.gradient_seconds + simulation.optimizer_seconds;
}

}  // namespace paradyse
