// paradyse plan batch: which document, or sample, goes into which group of which micro-batch, on a
// cluster that is described by a file.
#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "src/cli/commands.h"
#include "src/cli/inputs.h"
#include "src/cli/planned_batch.h"
#include "src/plan/base/rank_limits.h"
#include "src/plan/search/layouts/samples_file.h"

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
      .model = open_any_planned(options.model, "--model").model,
      .cluster = cluster_with(options.cluster, batch.ranks, memory_of(batch)),
      .space = batch.space,
      .weight_domain = batch.domain,
      .overlapped = batch.overlapped,
      .reserve = options.reserve,
      .dtype = dtype_option(options.dtype, {"bfloat16", "float16", "float32"}),
      .group_sizes = options.group_sizes};
}

// Documents of a language model have lengths, samples of another sizes.
void expect_input_of(const Model& model, const PlanBatchOptions& options, const Common& common) {
  const bool documents = !options.batch.lengths.empty();
  const bool samples = !options.batch.samples.empty();
  if (documents && samples) {
    throw std::invalid_argument(
        "--lengths and --samples: give one of them, --lengths for a language model, --samples for "
        "a video or protein model");
  }
  if (model.of_samples() && !samples) {
    throw std::invalid_argument(fmt::format(
        "{}: --model {} is a video or protein model; give the sizes of its samples with --samples "
        "FILE, one sample a line: {}",
        documents ? "--lengths is for language models" : "--samples FILE is missing",
        options.model,
        sample_form(model)));
  }
  if (!model.of_samples() && samples) {
    throw std::invalid_argument(fmt::format(
        "--samples is for video and protein models: --model {} is a language model; give the "
        "lengths of its documents with --lengths FILE, one a line",
        options.model));
  }
  for (const char* const other : {"--context", "--stream"}) {
    const bool given = std::ranges::any_of(
        common.given, [&](const auto& option) { return option.first == other; });
    if (samples && given) {
      throw std::invalid_argument(
          fmt::format("{} applies to documents (--lengths), not to samples; remove it", other));
    }
  }
}

int run_plan_batch(const PlanBatchOptions& options, const Common& common) {
  const ClusterRequest request = request_of(options);
  expect_input_of(request.model, options, common);
  return request.model.of_samples()
             ? planned_samples(
                   options.batch,
                   request.model,
                   common,
                   [&](const BatchSizes& samples) { return samples_question(request, samples); })
             : planned_batch(options.batch, common, [&](const std::vector<std::int64_t>& lengths) {
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
  command->add_option(
      "--samples",
      options->batch.samples,
      "For a video or protein model, instead of --lengths: file with the sizes of one sample a "
      "line, as in frames=16 patches=256, may be compressed with gzip; -: standard input");
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
      ->transform(whole_numbers(1, kMostPlannedRanks));
  command->add_option("--dtype", options->dtype, "Data type of the model's operations")
      ->capture_default_str();
}

}  // namespace paradyse::cli
