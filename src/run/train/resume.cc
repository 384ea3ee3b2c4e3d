#include "src/run/train/resume.h"

#include <algorithm>
#include <stdexcept>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "paradyse/plan/index.h"
#include "src/plan/base/xxh64.h"

namespace paradyse {
namespace fs = std::filesystem;

namespace {

// What makes a run the run it is.
constexpr const char* kFixed[] = {
    "model.random_weights",  "model.seed",
    "model.dropout",         "model.attention_dropout",
    "data.min_tokens",       "data.max_tokens",
    "data.too_long",         "data.bytes",
    "data.protein",          "data.masked_residues",
    "data.sequences",        "data.extra_sequences",
    "data.end_id",           "data.order",
    "data.curriculum_share", "data.seed",
    "train.tokens_per_step", "train.dtype",
    "output.folder",         "output.name",
};

}  // namespace

DataPosition data_position(
    std::int64_t items,
    std::string fingerprint,
    const std::vector<std::vector<std::int64_t>>& steps,
    std::int64_t step) {
  DataPosition position{.fingerprint = std::move(fingerprint), .drawn = {}};
  Xxh64 drawn;
  for (std::size_t s = 0; std::cmp_less(s, step); ++s) {
    for (const std::int64_t d : steps[s]) {
      drawn.add({reinterpret_cast<const char*>(&d), sizeof(d)});
    }
    drawn.add("|");
    position.draws += static_cast<std::int64_t>(steps[s].size());
  }
  position.drawn = drawn.hex();
  position.documents = items;
  position.epoch = position.draws / position.documents;
  if (std::cmp_less(step, steps.size())) {
    position.next = steps[idx(step)].front();
  }
  return position;
}

Resumed resumed(const fs::path& run) {
  std::error_code error;
  if (!fs::is_regular_file(run / "config.toml", error)) {
    throw std::runtime_error(
        run.string() +
        " is not a run folder: it has no config.toml; give the folder that the run printed at its "
        "end");
  }
  const auto checkpoint = newest_checkpoint(run / "checkpoints");
  if (!checkpoint) {
    throw std::runtime_error(fmt::format(
        "{} has no checkpoint: the run ended before its first, or wrote none (checkpoint.keep = "
        "0); start again with paradyse train -c {}",
        run.string(),
        (run / "config.toml").string()));
  }
  return {*checkpoint, open_checkpoint(*checkpoint)};
}

std::vector<std::string> expect_same_run(const LoadedConfig& now, const Resumed& from) {
  const CheckpointState& state = from.state;
  const RunConfig& config = now.config;
  if (config.parallel.ranks != state.ranks) {
    throw std::invalid_argument(fmt::format(
        "parallel.ranks is {}, but {} was written by {} ranks: a run cannot yet continue with "
        "another number of ranks (resharding); resume with {}",
        config.parallel.ranks,
        from.checkpoint.string(),
        state.ranks,
        state.ranks));
  }
  std::vector<std::string> changes;
  for (const ConfigEntry& entry : now.entries) {
    const auto before = state.configuration.find(entry.key);
    if (before == state.configuration.end() || before->second == entry.value) {
      continue;
    }
    if (std::find(std::begin(kFixed), std::end(kFixed), entry.key) != std::end(kFixed)) {
      throw std::invalid_argument(fmt::format(
          "{} is {} ({}), but the run has {}: this key cannot change in a run; leave it, or start "
          "a new run from its weights with --model {}",
          entry.key,
          entry.value,
          entry.origin,
          before->second,
          (from.checkpoint.parent_path().parent_path() / "model").string()));
    }
    changes.push_back(fmt::format("{} = {} (was {})", entry.key, entry.value, before->second));
  }
  if (config.train.steps < state.step) {
    throw std::invalid_argument(fmt::format(
        "train.steps is {}, but the run has done {}; give as many or more",
        config.train.steps,
        state.step));
  }
  const std::string steps = std::to_string(config.train.steps);
  if (config.data.order == "curriculum" && state.configuration.at("train.steps") != steps) {
    throw std::invalid_argument(fmt::format(
        "train.steps is {}, but the run was for {}: a curriculum is sorted for its number of "
        "steps, which cannot change",
        steps,
        state.configuration.at("train.steps")));
  }
  return changes;
}

void expect_same_model(const std::string& fingerprint, const Resumed& from) {
  if (fingerprint != from.state.model_sha256) {
    throw std::invalid_argument(
        "model.path: has another shape than the model of " + from.checkpoint.string() +
        "; restore the model of the run, or give its new place with --model");
  }
}

void expect_same_data(const DataPosition& now, const std::string& path, const Resumed& from) {
  const DataPosition& before = from.state.data;
  if (now.fingerprint != before.fingerprint) {
    throw std::invalid_argument(fmt::format(
        "data.path: {} has other documents ({}, XXH64 {}) than {} was trained on ({}, XXH64 {}); "
        "restore them, or give their new place with --data",
        path,
        now.documents,
        now.fingerprint,
        from.checkpoint.string(),
        before.documents,
        before.fingerprint));
  }
  if (now.drawn != before.drawn || now.draws != before.draws) {
    throw std::invalid_argument(fmt::format(
        "{}: this program uses the run's documents in another order (XXH64 {} of {} documents; it "
        "was {} of {}); resume with the program that wrote it",
        from.checkpoint.string(),
        now.drawn,
        now.draws,
        before.drawn,
        before.draws));
  }
}

}  // namespace paradyse
