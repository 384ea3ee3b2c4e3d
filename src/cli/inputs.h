// What several commands are given: a model with its weights, a batch of documents, ranks and
// limits.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "paradyse/plan/cluster.h"
#include "paradyse/plan/plan.h"
#include "paradyse/run/communicator.h"
#include "paradyse/run/train.h"
#include "paradyse/run/weights.h"
#include "src/cli/commands.h"

namespace paradyse::cli {

// A model and the way to its weights on any rank.
struct ModelInput {
  ModelFolder folder;
  ModelWeights weights;
};

// Opens a folder or .toml file and its weights (open_weights).  Lines on stderr say that they are
// random, and what is taken otherwise than the files say, unless `quiet`.  Throws
// std::invalid_argument.
ModelInput open_language_model_input(
    const std::filesystem::path& path, bool random_weights, bool quiet, std::uint64_t seed = 1);
// The same for models of several dims, too.
ModelInput open_model_input(
    const std::filesystem::path& path, bool random_weights, bool quiet, std::uint64_t seed = 1);

// The weights of a model that is open.
ModelInput with_weights(
    ModelFolder folder, bool random_weights, bool quiet, std::uint64_t seed = 1);

// Opens a model that is planned for: its weights are not read.  Lines on stderr say what is taken
// otherwise than its files say.  `option` names the path in messages.
ModelFolder open_planned(const std::filesystem::path& path, const std::string& option);
// The same for models of several dims, too.
ModelFolder open_any_planned(const std::filesystem::path& path, const std::string& option);
// Opens a language model that is measured: its weights are random, also where it has some, and one
// more line says so, unless `quiet`.
ModelFolder open_measured(
    const std::filesystem::path& path, const std::string& option, bool quiet = false);
// The same for models of several dims, too.
ModelFolder open_any_measured(const std::filesystem::path& path, bool quiet = false);
// Those lines, of a model that is open.
void say_measured(const ModelFolder& model);
void say_notes(const ModelFolder& model);

// --random-weights, of commands that take --model and its weights.
void add_random_weights(Command& command, bool& random_weights);
// What --json says of the weights: where they are from, whether random, and the lines.
Json json_of(const ModelReport& model);
Json json_of(const ModelWeights& weights);

// What the command line says of strategies' options, by name.
using StrategyOptions = std::map<std::string, std::int64_t>;
// --mlp, beside --attention.
void add_mlp(Command& command, std::string& mlp);
// A flag for every option of every strategy: --head-groups, --ulysses-degree, --token-tiles.
void add_layer_options(Command& command, StrategyOptions& options);
// The layer that these name: of an MLP that is not named the attention's verb; "" levels none.
LayerChoice layer_named(
    const std::string& attention,
    const std::string& mlp,
    const std::string& recompute,
    const StrategyOptions& options);

// Throws std::invalid_argument unless ranks can be started: from 1 to kMostRanks.  For numbers that
// are no option of their own: a plan's, or that of the processes.
void expect_ranks(int ranks);

// "512MiB"; "" or "0": no limit, 0.  Throws std::invalid_argument naming --memory-per-rank.
// Throws std::invalid_argument naming the option for documents of more tokens than are counted.
void expect_counted(
    const std::string& option, const Model& model, std::span<const std::int64_t> lengths);
std::int64_t memory_limit(const std::string& text);

// The cluster of a file; of `ranks` of its ranks (0: all) and with so much memory each (0: as it
// says).  Throws std::invalid_argument for ranks that are neither whole nodes nor a part of one, or
// whose devices are unlike.
Cluster cluster_with(const std::string& file, int ranks, std::int64_t memory);

// Throws std::runtime_error naming the file where it cannot be written.
void write_plan(const std::string& path, const Plan& plan);

// "a; b; c (and 7 more)": what problems() found, as one message.
std::string list_of(const std::vector<std::string>& problems);

}  // namespace paradyse::cli
