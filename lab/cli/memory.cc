// paradyse-lab memory: peak bytes of a step with one means of memory-efficient training after the
// other.
#include <algorithm>
#include <optional>
#include <stdexcept>

#include <fmt/format.h>

#include "lab/cli/commands.h"
#include "lab/measure/memory_table.h"
#include "src/cli/environment.h"
#include "src/cli/grid_options.h"
#include "src/cli/inputs.h"
#include "src/cli/progress.h"
#include "src/plan/base/bytes_text.h"
#include "src/plan/base/rank_limits.h"

namespace paradyse::cli {
namespace {

struct MemoryOptions : GridOptions {
  std::int64_t layers = 2;
  std::vector<int> ranks = {2, 4, 8};
  std::int64_t tiles = 16;
  std::string measure_below = "4GiB";
  bool counted = false;
};

// Sizes of a sample that are not given, and at most those of the one that errors are found on.
struct Size {
  const char* dim;
  std::int64_t GridOptions::* value;
  std::int64_t otherwise;
  std::int64_t small;
};
constexpr Size kSizes[] = {
    {"frames", &GridOptions::frames, 16, 8},
    {"tokens", &GridOptions::tokens, 64, 64},
    {"text", &GridOptions::text, 16, 16},
    {"sequences", &GridOptions::sequences, 64, 64},
    {"extra_sequences", &GridOptions::extra_sequences, 128, 128},
    {"residues", &GridOptions::residues, 96, 96}};

MemoryRequest request_of(const MemoryOptions& options) {
  if (!options.mesh.empty()) {
    throw std::invalid_argument("--mesh: memory uses one axis with --ranks ranks; leave it out");
  }
  const ModelFolder folder = model_of(options, /*random_weights=*/true);
  say_measured(folder);
  MemoryRequest request{
      .model = with_layers(folder.model, options.layers),
      .dims = {},
      .samples = options.batch,
      .small_dims = {},
      .ranks = options.ranks,
      .tiles = options.tiles,
      .measured_bytes = options.counted ? 1 : parse_bytes(options.measure_below)};
  const Model& model = request.model;
  GridOptions sizes = options;
  for (const Size& size : kSizes) {
    if (sizes.*size.value == 0) {
      sizes.*size.value = size.otherwise;
    }
  }
  if (!model.of_samples()) {
    if (options.batch > 1) {
      throw std::invalid_argument(
          "--batch is for video models; a language model is measured with one document of "
          "--tokens");
    }
    const std::int64_t tokens = options.tokens == 0 ? 1024 : options.tokens;
    expect_positions(options, model, tokens);
    request.dims = {{"tokens", tokens}};
    request.small_dims = {{"tokens", std::min<std::int64_t>(tokens, 256)}};
    return request;
  }
  request.dims = documents_of(sizes, model, 1).dims;
  for (const Size& size : kSizes) {
    sizes.*size.value = std::min(sizes.*size.value, size.small);
  }
  request.small_dims = documents_of(sizes, model, 1).dims;
  return request;
}

std::string sizes_text(const std::map<std::string, std::int64_t>& dims) {
  std::string text;
  for (const auto& [dim, size] : dims) {
    if (dim != "i" && dim != "j") {
      text += fmt::format("{}{} {}", text.empty() ? "" : ", ", size, dim);
    }
  }
  return text;
}

std::string sizes_text(const MemoryRequest& request) {
  return (request.samples > 1 ? fmt::format("{} samples of ", request.samples) : "") +
         sizes_text(request.dims);
}

std::int64_t best_known(const MemoryRow& row) {
  return row.measured_bytes.value_or(row.counted_bytes);
}

int run_memory(const MemoryOptions& options, const Common& common) {
  if (const std::optional<Membership> of = membership(); of && of->size > 1) {
    throw std::invalid_argument(
        "memory runs all its ranks in one process; start it without " + of->launcher);
  }
  MemoryRequest request = request_of(options);
  Progress progress;
  request.progress = progress.hook(common.json);
  const std::vector<MemoryRow> rows = memory_table(request);
  progress.finish();
  const auto of_naive = [&](const MemoryRow& row) {
    return static_cast<double>(best_known(row)) / static_cast<double>(best_known(rows.front()));
  };
  if (common.json) {
    Json json = {
        {"model", options.model},
        {"layers", options.layers},
        {"dims", request.dims},
        {"samples", request.samples},
        {"small_dims", request.small_dims},
        {"tiles", request.tiles},
        {"rows", Json::array()}};
    for (const MemoryRow& row : rows) {
      json["rows"].push_back(
          {{"name", row.name},
           {"ranks", row.ranks},
           {"dtype", to_string(row.dtype)},
           {"peak_bytes", best_known(row)},
           {"peak_is", row.measured_bytes ? "measured" : "counted"},
           {"counted_bytes", row.counted_bytes},
           {"of_naive", of_naive(row)},
           {"seconds", row.seconds ? Json(*row.seconds) : Json()},
           {"loss_error", row.loss_error},
           {"gradient_error", row.gradient_error}});
    }
    print_json(json);
    return kOk;
  }
  std::vector<std::vector<std::string>> table = {
      {"step", "peak of a rank", "of naive", "", "counted", "seconds", "loss error", "gradients"}};
  for (const MemoryRow& row : rows) {
    table.push_back(
        {row.name,
         bytes_text(best_known(row)),
         fmt::format("{:.3f}", of_naive(row)),
         row.measured_bytes ? "measured" : "counted",
         bytes_text(row.counted_bytes),
         row.seconds ? fmt::format("{:.2f}", *row.seconds) : "-",
         fmt::format("{:.1e}", row.loss_error),
         fmt::format("{:.1e}", row.gradient_error)});
  }
  fmt::print(
      "{} of {} layers, {}: forward and backward; errors against float64 naive on {}\n{}",
      options.model,
      options.layers,
      sizes_text(request),
      sizes_text(request.small_dims),
      common.table(table, {.drop = {"counted", "loss error"}}));
  return kOk;
}

}  // namespace

void add_memory(CLI::App& app, Common& common) {
  auto [command, options] = add_command<MemoryOptions>(
      app,
      common,
      "memory",
      "Measure peak memory while memory-saving methods are added one by one",
      run_memory);
  add_grid_options(*command, *options);
  command->add_option("--layers", options->layers, "Number of layers instead of the model's")
      ->transform(whole_numbers(1, 1024))
      ->capture_default_str();
  command->add_option("--ranks", options->ranks, "Numbers of ranks in the last rows, as in 2,4,8")
      ->delimiter(',')
      ->transform(whole_numbers(1, kMostRanks))
      ->capture_default_str();
  command->add_option("--tiles", options->tiles, "Number of tiles for chunking")
      ->transform(whole_numbers(2, 256))
      ->capture_default_str();
  command
      ->add_option(
          "--measure-below",
          options->measure_below,
          "Rows whose ranks together need more memory are predicted, not run (0: all are run)")
      ->capture_default_str();
  command->add_flag("--counted", options->counted, "Predict only; do not run the requested size");
}

}  // namespace paradyse::cli
