// paradyse-lab mixed: what cuts in proportion are worth on unlike ranks.
#include "lab/measure/mixed.h"

#include <algorithm>
#include <optional>

#include "lab/cli/commands.h"
#include "src/cli/inputs.h"
#include "src/cli/progress.h"
#include "src/plan/base/bytes_text.h"
#include "src/run/measure/measure.h"

namespace paradyse::cli {
namespace {

struct MixedOptions {
  std::string model;
  std::vector<double> slowdown;
  std::vector<std::string> memory;
  std::int64_t length = 4096;
  std::string attention = "MegatronCZ";
  std::string mlp;
  std::string recompute = "none";
  StrategyOptions options;
  std::string dtype = "float32";
  int repeats = 5;
};

std::vector<std::int64_t> budgets(const MixedOptions& options) {
  std::vector<std::int64_t> found;
  for (const std::string& text : options.memory) {
    try {
      found.push_back(parse_bytes(text));
    } catch (const std::invalid_argument& error) {
      throw std::invalid_argument(std::string("--memory: ") + error.what());
    }
    if (found.back() < 1) {
      throw std::invalid_argument(
          "--memory " + text + ": every rank needs a budget of at least one byte");
    }
  }
  return found;
}

void expect_sound(const MixedOptions& options) {
  if (options.slowdown.empty() && options.memory.empty()) {
    throw std::invalid_argument(
        "mixed: say how the ranks differ: --slowdown 1,2 (one factor for each rank), "
        "--memory 64MiB,32MiB, or both");
  }
  expect_ranks(static_cast<int>(std::max(options.slowdown.size(), options.memory.size())));
}

Json to_json(const Spread& spread) {
  return {{"median", spread.median}, {"least", spread.least}, {"most", spread.most}};
}

Json to_json(const MixedSpeed::Steps& steps) {
  return {{"seconds", steps.seconds}, {"busy_s", steps.busy_s}};
}

Json to_json(const MixedSpeed& speed, const MixedOptions& options) {
  return {
      {"slowdown", options.slowdown},
      {"length", options.length},
      {"shares", speed.shares},
      {"even", to_json(speed.even)},
      {"proportional", to_json(speed.proportional)},
      {"ideal", speed.ideal},
      {"gain", to_json(spread_of(speed.gains()))},
      {"busy_gain", speed.busy_gain()}};
}

Json to_json(const MixedMemory::Longest& longest) {
  return {
      {"tokens", longest.tokens},
      {"shares", longest.shares},
      {"peak_bytes", longest.peak_bytes},
      {"refused", longest.refused}};
}

Json to_json(const MixedMemory& memory, const std::vector<std::int64_t>& budgets) {
  return {
      {"budgets", budgets},
      {"even", to_json(memory.even)},
      {"proportional", to_json(memory.proportional)},
      {"ideal", memory.ideal},
      {"gain", memory.gain()}};
}

int run_mixed(const MixedOptions& options, const Common& common) {
  expect_sound(options);
  const std::vector<std::int64_t> memory = budgets(options);
  const LayerChoice layer =
      layer_named(options.attention, options.mlp, options.recompute, options.options);
  Progress progress;
  const BenchMixedRequest request{
      .model = open_measured(options.model, "--model").model,
      .layer = layer,
      .dtype = dtype_option(options.dtype),
      .progress = progress.hook(common.json)};
  std::optional<MixedSpeed> speed;
  std::optional<MixedMemory> longest;
  if (!options.slowdown.empty()) {
    speed = bench_mixed_speed(request, options.slowdown, options.length, options.repeats);
    progress.finish();
  }
  if (!memory.empty()) {
    const Waiting waiting("mixed: the longest document", common.json);
    longest = bench_mixed_memory(request, memory);
  }
  Json json = {
      {"attention", part_of(layer, "attention").strategy},
      {"mlp", part_of(layer, "mlp").strategy},
      {"recompute", options.recompute},
      {"dtype", options.dtype}};
  if (speed) {
    json["speed"] = to_json(*speed, options);
  }
  if (longest) {
    json["memory"] = to_json(*longest, memory);
  }
  print_json(json);
  return kOk;
}

}  // namespace

void add_mixed(CLI::App& app, Common& common) {
  auto [command, options] = add_command<MixedOptions>(
      app,
      common,
      "mixed",
      "Measure what proportional shards gain over even ones on heterogeneous ranks",
      run_mixed);
  command
      ->add_option(
          "--model", options->model, "Hugging Face folder or TOML model file; weights are random")
      ->required();
  command
      ->add_option(
          "--slowdown",
          options->slowdown,
          "Time a step on ranks slowed down by these factors, one for each rank, as in 1,2; each "
          "rank needs its own core")
      ->delimiter(',')
      ->check(numbers(1));
  command
      ->add_option(
          "--memory",
          options->memory,
          "Find the longest document for ranks with these memory budgets, as in 64MiB,32MiB")
      ->delimiter(',');
  command->add_option("--length", options->length, "Tokens of the measured document")
      ->transform(whole_numbers(1))
      ->capture_default_str();
  command->add_option("--attention", options->attention, "Strategy of all layers")
      ->capture_default_str();
  add_mlp(*command, options->mlp);
  add_layer_options(*command, options->options);
  command
      ->add_option(
          "--recompute", options->recompute, "none, light, attention-output, full or layer")
      ->capture_default_str();
  command->add_option("--dtype", options->dtype, "float32, float64, bfloat16 or float16")
      ->capture_default_str();
  command->add_option("--repeats", options->repeats, "Number of measured steps of each kind")
      ->transform(whole_numbers(1))
      ->capture_default_str();
}

}  // namespace paradyse::cli
