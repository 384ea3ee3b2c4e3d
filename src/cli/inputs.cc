#include "src/cli/inputs.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <ranges>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>

#include "src/cli/commands.h"
#include "src/cli/tell.h"
#include "src/plan/base/bytes_text.h"
#include "src/plan/base/disk_file.h"
#include "src/plan/base/rank_limits.h"
#include "src/plan/base/text_match.h"
#include "src/plan/plan/size_limits.h"
#include "src/plan/strategy/mlp_names.h"

namespace paradyse::cli {

namespace {

constexpr std::uint64_t kMeasuredSeed = 1;

void say_lines(const std::vector<std::string>& lines) {
  for (const std::string& line : lines) {
    tell("paradyse: note: {}\n", line);
  }
}

}  // namespace

ModelInput with_weights(ModelFolder folder, bool random_weights, bool quiet, std::uint64_t seed) {
  ModelWeights weights = open_weights(folder, random_weights, seed);
  if (!quiet && weights.random()) {
    say_lines({weights.said});
  }
  if (!quiet) {
    say_lines(weights.notes);
  }
  return {.folder = std::move(folder), .weights = std::move(weights)};
}

ModelInput open_language_model_input(
    const std::filesystem::path& path, bool random_weights, bool quiet, std::uint64_t seed) {
  return with_weights(
      reading([&] { return open_language_model(path, random_weights); }),
      random_weights,
      quiet,
      seed);
}

ModelInput open_model_input(
    const std::filesystem::path& path, bool random_weights, bool quiet, std::uint64_t seed) {
  return with_weights(
      reading([&] { return open_model(path, random_weights); }), random_weights, quiet, seed);
}

ModelFolder open_planned(const std::filesystem::path& path, const std::string& option) {
  ModelFolder folder = reading([&] { return open_language_model(path); }, option);
  say_notes(folder);
  return folder;
}

ModelFolder open_any_planned(const std::filesystem::path& path, const std::string& option) {
  ModelFolder folder = reading([&] { return open_model(path); }, option);
  say_notes(folder);
  return folder;
}

ModelFolder open_measured(
    const std::filesystem::path& path, const std::string& option, bool quiet) {
  ModelFolder folder = reading([&] { return open_language_model(path, true); }, option);
  if (!quiet) {
    say_measured(folder);
  }
  return folder;
}

ModelFolder open_any_measured(const std::filesystem::path& path, bool quiet) {
  ModelFolder folder = reading([&] { return open_model(path, true); }, "--model");
  if (!quiet) {
    say_measured(folder);
  }
  return folder;
}

void say_measured(const ModelFolder& model) {
  say_lines({open_weights(model, true, kMeasuredSeed).said});
  say_notes(model);
}

void say_notes(const ModelFolder& model) { say_lines(model.notes); }

void add_random_weights(Command& command, bool& random_weights) {
  command.add_flag(
      "--random-weights",
      random_weights,
      "Use random weights; without it a model folder must hold weights (a TOML model always has "
      "random ones)");
}

Json json_of(const ModelReport& model) {
  return {{"weights", model.weights}, {"random", model.random}, {"notes", model.notes}};
}

Json json_of(const ModelWeights& weights) {
  return json_of(
      ModelReport{.weights = weights.said, .random = weights.random(), .notes = weights.notes});
}

void add_mlp(Command& command, std::string& mlp) {
  command.add_option(
      "--mlp",
      mlp,
      "Weight mode of the MLPs: tensor-parallel, zero3, streamed, or a strategy, which stands for "
      "its weight mode (default: the attention's)");
}

void add_layer_options(Command& command, StrategyOptions& options) {
  for (const Option& option : all_options()) {
    const std::string name = option.name;
    std::string flag = "--" + name;
    std::replace(flag.begin(), flag.end(), '_', '-');
    command
        .add_option_function(
            flag,
            [&options, name](const std::int64_t& value) { options[name] = value; },
            option.meaning)
        ->transform(whole_numbers(1));
  }
}

LayerChoice layer_named(
    const std::string& attention,
    const std::string& mlp,
    const std::string& recompute,
    const StrategyOptions& options) {
  LayerChoice layer = text_layer(attention, mlp.empty() ? std::string{} : mlp_strategy(mlp).name);
  set_recompute(layer, recompute.empty() ? LayerRecompute{} : layer_recompute(recompute));
  set_options(layer, options);
  return layer;
}

void expect_ranks(int ranks) {
  if (ranks < 1 || ranks > kMostRanks) {
    throw std::invalid_argument(
        "--ranks " + std::to_string(ranks) + ": accepted is a number from 1 to " +
        std::to_string(kMostRanks));
  }
}

void expect_counted(
    const std::string& option, const Model& model, std::span<const std::int64_t> lengths) {
  if (const std::string why = more_than_counted(model, lengths); !why.empty()) {
    throw std::invalid_argument(
        option + ": too large: " + why + "; give shorter or fewer documents");
  }
}

std::int64_t memory_limit(const std::string& text) {
  try {
    return text.empty() ? 0 : parse_bytes(text);
  } catch (const std::invalid_argument& error) {
    throw std::invalid_argument(std::string("--memory-per-rank: ") + error.what());
  }
}

Cluster cluster_with(const std::string& file, int ranks, std::int64_t memory) {
  Cluster cluster = read_cluster(file);
  if (ranks > 0) {
    cluster = with_ranks(std::move(cluster), ranks, file);
  }
  return memory > 0 ? with_memory(std::move(cluster), memory) : cluster;
}

void write_plan(const std::string& path, const Plan& plan) { replace_file(path, to_json(plan)); }

std::string list_of(const std::vector<std::string>& problems) {
  constexpr std::size_t kMost = 5;
  std::string list = joined(problems | std::views::take(kMost), "; ");
  if (problems.size() > kMost) {
    list += " (and " + std::to_string(problems.size() - kMost) + " more)";
  }
  return list;
}

}  // namespace paradyse::cli
