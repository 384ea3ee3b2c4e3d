// paradyse plan batch: which document goes into which group of which micro-batch, on a cluster that
// is described by a file.
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "src/cli/commands.h"
#include "src/cli/inputs.h"
#include "src/cli/planned_batch.h"

namespace paradyse::cli {
namespace {

struct PlanBatchOptions {
  std::string model;
  std::string cluster;
  double reserve = 0.05;
  std::string dtype = "bfloat16";
  std::vector<int> group_sizes;
  BatchOptions batch;
};

ClusterRequest request_of(const PlanBatchOptions& options) {
  if (options.cluster.empty()) {
    throw std::invalid_argument(
        "plan batch: --model " + options.model + " takes --cluster FILE (configs/clusters/)");
  }
  const BatchOptions& batch = options.batch;
  return {
      .model = open_planned(options.model, "--model").model,
      .cluster = cluster_with(options.cluster, batch.ranks, memory_of(batch)),
      .space = batch.space,
      .weight_domain = batch.domain,
      .overlapped = batch.overlapped,
      .reserve = options.reserve,
      .dtype = dtype_option(options.dtype, {"bfloat16", "float16", "float32"}),
      .group_sizes = options.group_sizes};
}

int run_plan_batch(const PlanBatchOptions& options, const Common& common) {
  const ClusterRequest request = request_of(options);
  return planned_batch(options.batch, common, [&](const std::vector<std::int64_t>& lengths) {
    return batch_question(request, lengths);
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
  command
      ->add_option(
          "--group-sizes",
          options->group_sizes,
          "Ranks that groups may have, as in 1,2,4,8 (default: all of the --space)")
      ->delimiter(',')
      ->transform(whole_numbers(1, kMostBatchRanks));
  command->add_option("--dtype", options->dtype, "Data type of the model's operations")
      ->capture_default_str();
}

}  // namespace paradyse::cli
