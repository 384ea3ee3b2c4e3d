// paradyse bench layout: forward and backward by the planned layout and every rival's, in turns.
#include "src/run/measure/bench_layout.h"

#include <algorithm>
#include <optional>

#include <fmt/format.h>

#include "src/cli/backend_options.h"
#include "src/cli/grid_options.h"
#include "src/cli/inputs.h"
#include "src/cli/progress.h"
#include "src/plan/base/bytes_text.h"
#include "src/plan/base/median.h"
#include "src/plan/simulate/additive.h"

namespace paradyse::cli {
namespace {

struct BenchLayoutOptions : GridOptions {
  int ranks = 0;
  std::vector<std::string> ways;
  std::string recompute = "none";
  std::string cluster;
  std::string dtype = "float32";
  int repeats = 5;
  std::string memory_per_rank;
  double deadline = 60;
  BackendOptions backend;
};

int bench_layout_on(
    const std::shared_ptr<Backend>& backend,
    const BenchLayoutOptions& options,
    const Common& common) {
  const ModelFolder model = model_of(options);
  if (backend->leads()) {
    say_measured(model);
  }
  const int ranks = ranks_of(options.backend, options.ranks, 4);
  std::optional<Cluster> cluster;
  std::function<double(const ScheduledPart& part)> seconds;
  if (!options.cluster.empty()) {
    cluster = cluster_of(options.cluster, ranks);
    seconds =
        part_seconds(*cluster, ranks, {.precision = precision_of(dtype_option(options.dtype))});
  }
  Progress progress;
  const std::vector<BenchLayoutRow> rows = bench_layout(
      {.model = model.model,
       .documents = documents_of(options, model.model, ranks),
       .ways = options.ways,
       .recompute = layer_recompute(options.recompute),
       .seconds = seconds,
       .dtype = dtype_option(options.dtype),
       .repeats = options.repeats,
       .memory_per_rank = memory_limit(options.memory_per_rank),
       .backend = backend,
       .progress = progress.hook(common.json)});
  progress.finish();
  if (!backend->leads()) {
    return kOk;
  }
  if (common.json) {
    Json json = {
        {"model", options.model},
        {"ranks", ranks},
        {"backend", backend->name()},
        {"recompute", options.recompute},
        {"dtype", options.dtype},
        {"rows", Json::array()}};
    for (const BenchLayoutRow& row : rows) {
      json["rows"].push_back(
          {{"way", row.way},
           {"seconds", row.seconds},
           {"bytes_sent", row.bytes_sent},
           {"peak_bytes", row.peak_bytes},
           {"saved_bytes", row.saved_bytes}});
    }
    print_json(json);
    return kOk;
  }
  std::vector<std::vector<std::string>> table = {
      {"way",
       "step s",
       "least",
       "most",
       fmt::format("of {}", rows.front().way),
       "sent",
       "peak",
       "saved"}};
  const double first = median(std::vector<double>(rows.front().seconds));
  for (const BenchLayoutRow& row : rows) {
    const auto [least, most] = std::ranges::minmax(row.seconds);
    const double middle = median(std::vector<double>(row.seconds));
    table.push_back(
        {row.way,
         fmt::format("{:.4f}", middle),
         fmt::format("{:.4f}", least),
         fmt::format("{:.4f}", most),
         fmt::format("{:.2f}", middle / first),
         bytes_text(row.bytes_sent),
         bytes_text(row.peak_bytes),
         bytes_text(row.saved_bytes)});
  }
  fmt::print(
      "forward and backward on {} ranks ({}), {}, recompute {}: median of {} rounds\n{}",
      ranks,
      backend->name(),
      options.dtype,
      options.recompute,
      options.repeats,
      common.table(table, {.drop = {"saved", "least", "most"}}));
  return kOk;
}

int run_bench_layout(const BenchLayoutOptions& options, const Common& common) {
  expect_ranks(ranks_of(options.backend, options.ranks, 4));
  return on_backend(
      options.backend,
      options.deadline,
      given_by(common),
      [&](const std::shared_ptr<Backend>& backend) {
        return bench_layout_on(backend, options, common);
      });
}

}  // namespace

void add_bench_layout(CLI::App& bench, Common& common) {
  auto [command, options] = add_command<BenchLayoutOptions>(
      bench,
      common,
      "layout",
      "Measure time, communication and peak memory of a model under each layout",
      run_bench_layout);
  add_grid_options(*command, *options);
  command
      ->add_option(
          "--ranks",
          options->ranks,
          "Number of ranks (default: 4; over gloo the number of processes)")
      ->transform(whole_numbers(1, kMostRanks));
  command
      ->add_option(
          "--ways", options->ways, "Only these layouts, as in planned,ulysses (default: all)")
      ->delimiter(',');
  command
      ->add_option(
          "--recompute", options->recompute, "none, light, attention-output, full or layer")
      ->capture_default_str();
  command->add_option(
      "--cluster",
      options->cluster,
      "Plan the layout that is fastest on this cluster (default: that sends least)");
  command->add_option("--dtype", options->dtype, "float32, float64, bfloat16 or float16")
      ->capture_default_str();
  command->add_option("--repeats", options->repeats, "Number of measured rounds")
      ->transform(whole_numbers(1))
      ->capture_default_str();
  command->add_option(
      "--memory-per-rank", options->memory_per_rank, "Memory budget of each rank, as in 512MiB");
  command
      ->add_option(
          "--timeout,--deadline", options->deadline, "Longest wait for another rank in seconds")
      ->check(seconds())
      ->capture_default_str();
  add_backend_options(*command, options->backend);
}

}  // namespace paradyse::cli
