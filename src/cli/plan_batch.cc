// paradyse plan batch: which document goes into which group of which micro-batch, on a cluster that
// is described by a file.
#include <algorithm>
#include <cstdint>
#include <limits>

#include "paradyse/plan/cluster.h"
#include "src/cli/commands.h"
#include "src/cli/inputs.h"
#include "src/cli/planned_batch.h"
#include "src/plan/simulate/cluster_space.h"

namespace paradyse::cli {
namespace {

struct PlanBatchOptions {
  std::string model;
  std::string cluster;
  double reserve = 0.05;
  std::string dtype = "bfloat16";
  BatchOptions batch;
};

// A model on a described cluster.
struct Described {
  Model model;
  Cluster cluster;
  ClusterSpaceOptions how;
  int node = 1;  // ranks of one
};

Described described(const PlanBatchOptions& options) {
  if (options.cluster.empty()) {
    throw std::invalid_argument(
        "plan batch: --model " + options.model + " takes --cluster FILE (configs/clusters/)");
  }
  const Model model = without_dropout(open_planned(options.model, "--model").model);
  expect_of_space(options.batch.space, options.batch.overlapped, options.batch.domain);
  Cluster cluster = cluster_with(options.cluster, options.batch.ranks, memory_of(options.batch));
  ClusterSpaceOptions how{
      .flexsp = options.batch.space == "flexsp",
      .overlapped = options.batch.overlapped,
      .weight_domain = 0,
      .reserve = options.reserve,
      .simulation = {
          .precision =
              precision_of(dtype_option(options.dtype, {"bfloat16", "float16", "float32"}))}};
  const int node = std::min(cluster.ranks_per_node, cluster.ranks());
  if (options.batch.domain == "node") {
    how.weight_domain = node;
  }
  return {.model = model, .cluster = std::move(cluster), .how = how, .node = node};
}

std::vector<GroupSpace> cluster_spaces(
    const PlanBatchOptions& options,
    const Described& given,
    const std::vector<std::int64_t>& lengths) {
  std::vector<GroupSpace> spaces = {cluster_space(given.model, given.cluster, given.how, lengths)};
  if (options.batch.domain == "auto" && options.batch.space == "full" &&
      given.node < given.cluster.ranks() && given.cluster.ranks() % given.node == 0) {
    ClusterSpaceOptions how = given.how;
    how.weight_domain = given.node;
    try {
      spaces.push_back(cluster_space(given.model, given.cluster, how, lengths));
    } catch (const std::invalid_argument&) {
      return spaces;  // states leave no memory in a node: the world is all there is
    }
  }
  return spaces;
}

constexpr int kMostOfCluster = 512;  // of a weight domain that is simulated

std::string remedy(const Described& given, std::int64_t longest) {
  std::int64_t memory = std::numeric_limits<std::int64_t>::max();
  for (const DeviceClass& device : given.cluster.devices) {
    memory = std::min(memory, device.memory_bytes);
  }
  const auto takes = [&](std::int64_t nodes) {
    const Cluster other =
        with_ranks(given.cluster, static_cast<int>(nodes) * given.node, given.cluster.name);
    return memory_for(given.model, other, given.how, longest) <= memory;
  };
  // more nodes do not help where a document stays in one
  const bool grows = given.how.weight_domain == 0 && given.cluster.uniform();
  std::int64_t nodes = 0;
  std::int64_t more = given.cluster.ranks() / given.node;
  while (grows && nodes == 0 && 2 * more * given.node <= kMostOfCluster) {
    nodes = least(more + 1, 2 * more, takes);
    more *= 2;
  }
  const std::int64_t needed = memory_for(given.model, given.cluster, given.how, longest);
  const double memory_mb = static_cast<double>(needed) / (1024 * 1024);
  return what_would_fit(nodes * given.node, memory_mb);
}

int run_plan_batch(const PlanBatchOptions& options, const Common& common) {
  return planned_batch(
      options.batch, common, [&](const std::vector<std::int64_t>& lengths) -> BatchQuestion {
        const Described given = described(options);
        const std::int64_t longest = std::ranges::max(lengths);
        return {
            .spaces = cluster_spaces(options, given, lengths),
            .what_would_do = [given, longest] { return remedy(given, longest); },
            .simulated_seconds =
                [given](const Plan& plan) {
                  return plan.weight_domain > kMostOfCluster
                             ? 0
                             : simulate(plan, given.model, given.cluster, given.how.simulation)
                                   .seconds;
                }};
      });
}

}  // namespace

void add_plan_batch(CLI::App& plan, Common& common) {
  auto [command, options] = add_command<PlanBatchOptions>(
      plan,
      common,
      "batch",
      "Plan a batch on a described cluster, in groups of different sizes",
      run_plan_batch);
  command->add_option("--model", options->model, "Model folder or TOML file")->required();
  command->add_option("--cluster", options->cluster, "Cluster file (configs/clusters/)");
  add_batch_options(*command, options->batch);
  command->add_option("--reserve", options->reserve, "Share of a device's memory left free")
      ->check(numbers(0, 0.9))
      ->capture_default_str();
  command->add_option("--dtype", options->dtype, "Data type of the model's operations")
      ->capture_default_str();
}

}  // namespace paradyse::cli
