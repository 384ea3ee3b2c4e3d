// paradyse bench mixed: what cuts in proportion are worth on unlike ranks.
#include "src/run/measure/bench_mixed.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <optional>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "paradyse/run/accountant.h"
#include "src/cli/commands.h"
#include "src/cli/inputs.h"
#include "src/cli/progress.h"
#include "src/plan/base/bytes_text.h"
#include "src/plan/base/number_text.h"
#include "src/run/measure/measure.h"

namespace paradyse::cli {
namespace {

struct BenchMixedOptions {
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

std::vector<std::int64_t> budgets(const BenchMixedOptions& options) {
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

void expect_sound(const BenchMixedOptions& options) {
  if (options.slowdown.empty() && options.memory.empty()) {
    throw std::invalid_argument(
        "bench mixed: say how the ranks differ: --slowdown 1,2 (one factor for each rank), "
        "--memory 64MiB,32MiB, or both");
  }
  expect_ranks(static_cast<int>(std::max(options.slowdown.size(), options.memory.size())));
}

// Median, least and most.
struct Spread {
  double median = 0;
  double least = 0;
  double most = 0;
};

Spread spread(const std::vector<double>& values) {
  const auto [least, most] = std::ranges::minmax(values);
  return {median(values), least, most};
}

Json to_json(const Spread& spread) {
  return {{"median", spread.median}, {"least", spread.least}, {"most", spread.most}};
}

Json to_json(const MixedSpeed::Steps& steps) {
  return {{"seconds", steps.seconds}, {"busy_s", steps.busy_s}};
}

Json to_json(const MixedSpeed& speed, const BenchMixedOptions& options) {
  return {
      {"slowdown", options.slowdown},
      {"length", options.length},
      {"shares", speed.shares},
      {"even", to_json(speed.even)},
      {"proportional", to_json(speed.proportional)},
      {"ideal", speed.ideal},
      {"gain", to_json(spread(speed.gains()))},
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

std::string shares_text(const std::vector<double>& shares) {
  return shares.empty() ? "even" : fmt::format("{:.3f}", fmt::join(shares, ", "));
}

std::string whole_percent(double share) { return percent_text(share, 0); }

void print(const MixedSpeed& speed, const BenchMixedOptions& options, const Common& common) {
  fmt::print(
      "\n{} tokens on ranks that take {} times as long to compute; a step, median of {}, measured "
      "in turn\n",
      options.length,
      fmt::join(options.slowdown, ", "),
      options.repeats);
  std::vector<std::vector<std::string>> rows = {
      {"cuts", "shares", "seconds", "least", "most", "CPU s on each rank"}};
  const auto add =
      [&](const char* name, const std::string& shares, const MixedSpeed::Steps& steps) {
        const Spread seconds = spread(steps.seconds);
        rows.push_back(
            {name,
             shares,
             fmt::format("{:.4f}", seconds.median),
             fmt::format("{:.4f}", seconds.least),
             fmt::format("{:.4f}", seconds.most),
             fmt::format("{:.4f}", fmt::join(steps.busy_s, ", "))});
      };
  add("even", "even", speed.even);
  add("proportional", shares_text(speed.shares), speed.proportional);
  rows.push_back(
      {"ideal", "", fmt::format("{:.4f}", speed.ideal * median(speed.even.seconds)), "", "", ""});
  const Spread gain = spread(speed.gains());
  fmt::print(
      "{}{} of the ideal gain ({} - {}); by CPU seconds times slowdown of the slowest rank, {}\n",
      common.table(rows, {}),
      whole_percent(gain.median),
      whole_percent(gain.least),
      whole_percent(gain.most),
      whole_percent(speed.busy_gain()));
}

void print(
    const MixedMemory& memory, const std::vector<std::int64_t>& budgets, const Common& common) {
  const auto list = [](const std::vector<std::int64_t>& bytes) {
    std::vector<std::string> texts;
    for (const std::int64_t each : bytes) {
      texts.push_back(bytes_text(each));
    }
    return fmt::format("{}", fmt::join(texts, ", "));
  };
  fmt::print("\nlongest document on ranks with memory budgets {}\n", list(budgets));
  std::vector<std::vector<std::string>> rows = {
      {"cuts", "shares", "tokens", "out of memory at", "peaks"}};
  const auto add = [&](const char* name, const MixedMemory::Longest& longest) {
    rows.push_back(
        {name,
         shares_text(longest.shares),
         fmt::format("{}", longest.tokens),
         fmt::format("{}", longest.refused),
         list(longest.peak_bytes)});
  };
  add("even", memory.even);
  add("proportional", memory.proportional);
  rows.push_back({"ideal", "", fmt::format("{}", memory.ideal), "", ""});
  fmt::print("{}{} of the ideal gain\n", common.table(rows, {}), whole_percent(memory.gain()));
}

int run_bench_mixed(const BenchMixedOptions& options, const Common& common) {
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
    const Waiting waiting("bench mixed: the longest document", common.json);
    longest = bench_mixed_memory(request, memory);
  }
  if (common.json) {
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
  fmt::print("{}, {}\n", name(layer), options.dtype);
  if (speed) {
    print(*speed, options, common);
  }
  if (longest) {
    print(*longest, memory, common);
  }
  return kOk;
}

}  // namespace

void add_bench_mixed(CLI::App& bench, Common& common) {
  auto [command, options] = add_command<BenchMixedOptions>(
      bench,
      common,
      "mixed",
      "Measure what proportional shards gain over even ones on heterogeneous ranks",
      run_bench_mixed);
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
  command->add_option(
      "--mlp",
      options->mlp,
      "Weight mode of the MLPs: "
      "tensor-parallel, zero3, streamed, or a strategy, which stands for its weight mode "
      "(default: the attention's)");
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
