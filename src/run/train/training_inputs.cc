#include "src/run/train/training_inputs.h"

#include <algorithm>
#include <map>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>

#include "paradyse/plan/detail/index.h"
#include "src/plan/base/sha256.h"
#include "src/plan/base/text_match.h"
#include "src/run/device/device.h"
#include "src/run/memory/reading.h"
#include "src/run/train/agreement.h"
#include "src/run/train/run_folder.h"
#include "src/run/train/run_inputs.h"

namespace paradyse {

std::int64_t TrainingInputs::longest() const {
  std::int64_t most = 0;
  for (const std::vector<std::int64_t>& items : steps) {
    for (const std::int64_t item : items) {
      most = std::max(most, data.length(item));
    }
  }
  return most;
}

bool TrainingInputs::moved(const RunConfig& config) const {
  return from && has_moved(from->state, config);
}

namespace {

// Whether an item has as much of everything as another.
bool covers(const BatchSizes& one, const BatchSizes& other) {
  return one.lengths.front() >= other.lengths.front() &&
         (other.dims.empty() || std::ranges::all_of(other.dims.front(), [&](const auto& dim) {
            return one.dims.front().at(dim.first) >= dim.second;
          }));
}

}  // namespace

std::vector<BatchSizes> TrainingInputs::largest(bool evaluated) const {
  std::vector<BatchSizes> most;
  const auto add = [&](const Dataset& set, std::int64_t item) {
    BatchSizes one = set.sizes({&item, 1});
    if (std::ranges::none_of(most, [&](const BatchSizes& other) { return covers(other, one); })) {
      std::erase_if(most, [&](const BatchSizes& other) { return covers(one, other); });
      most.push_back(std::move(one));
    }
  };
  for (const std::vector<std::int64_t>& items : steps) {
    for (const std::int64_t item : items) {
      add(data, item);
    }
  }
  for (std::int64_t item = 0; evaluated && evaluation && item < evaluation->size(); ++item) {
    add(*evaluation, item);
  }
  std::ranges::sort(most);
  return most;
}

std::vector<std::int64_t> TrainingInputs::typical_lengths() const {
  const std::int64_t most = data.longest();
  std::vector<std::int64_t> typical;
  for (std::int64_t n = 256; n < most; n *= 4) {
    typical.push_back(n);
  }
  typical.push_back(most);
  return typical;
}

BatchSizes TrainingInputs::typical_sizes() const {
  constexpr std::size_t kMost = 6;               // each is planned for on groups of every size
  std::map<std::int64_t, std::int64_t> by_rows;  // an item
  for (std::int64_t item = 0; item < data.size(); ++item) {
    by_rows.emplace(data.length(item), item);
  }
  std::vector<std::int64_t> items;
  items.reserve(by_rows.size());
  for (const auto& [rows, item] : by_rows) {
    items.push_back(item);
  }
  if (items.size() > kMost) {
    std::vector<std::int64_t> few;
    for (std::size_t i = 0; i < kMost; ++i) {
      few.push_back(items[i * (items.size() - 1) / (kMost - 1)]);
    }
    items = std::move(few);
  }
  return data.sizes(items);
}

BatchItems TrainingInputs::items(
    std::size_t step, std::uint64_t seed, const Plan& plan, int rank) const {
  return {data, steps[step], seed, first_draws[step], plan, rank};
}

DataPosition TrainingInputs::position(std::int64_t step) const {
  return data_position(data.size(), data_fingerprint, steps, step);
}

namespace {

// Of a run that goes on they are in its checkpoint.
std::optional<StoredMoments> moments_at(const RunConfig& config, const TrainingInputs& inputs) {
  const std::string& path = config.optimizer.path;
  if (path.empty()) {
    return std::nullopt;
  }
  if (inputs.from) {
    if (!inputs.from->state.configuration.contains("optimizer.path")) {  // an older program's
      throw std::invalid_argument(
          "optimizer.path is " + path + ", but the run has moments of its own: leave it out");
    }
    return std::nullopt;
  }
  if (inputs.weights.random() || inputs.model.model.lora) {
    throw std::invalid_argument(
        "optimizer.path is " + path + ", but " +
        (inputs.weights.random()
             ? "the weights are random, and its moments are of others: leave it out, or give the "
               "weights that python -m paradyse.torch.dcp wrote beside them as model.path"
             : "moments of adapters are not read: leave it out, and they begin as zeros"));
  }
  return reading([&] { return open_moments(path, inputs.model.model); }, "optimizer.path");
}

// Whether lora.path is asked for now, and is not merely what the run began with, as by a command
// that is given again at every start (`again`).
bool other_adapters(const LoadedConfig& now, const Resumed& from, bool again) {
  const ConfigEntry& entry = *std::ranges::find(now.entries, "lora.path", &ConfigEntry::key);
  const auto before = from.state.configuration.find(entry.key);
  if (before == from.state.configuration.end()) {
    return true;
  }
  std::error_code error;
  const bool there = std::filesystem::exists(now.config.lora.path, error);
  return (entry.origin == "--set" && !again) || (before->second != entry.value && there);
}

bool differs(const std::string& key, const LoadedConfig& now, const Resumed& from) {
  const auto before = from.state.configuration.find(key);
  return before != from.state.configuration.end() &&
         before->second != std::ranges::find(now.entries, key, &ConfigEntry::key)->value;
}

std::string not_read(const std::string& key, const std::string& path, const std::string& what) {
  return fmt::format(
      "{}: the configuration of {} is that of the run; its {} are not read, since the run has "
      "those "
      "of its checkpoint",
      key,
      path,
      what);
}

}  // namespace

TrainingInputs training_inputs(
    const LoadedConfig& loaded,
    const TrainFrom& goes_by,
    Backend& backend,
    const std::function<void(const std::string& line)>& note) {
  const RunConfig& config = loaded.config;
  std::optional<Resumed> from;
  std::vector<std::string> changes;
  if (!goes_by.resume.empty()) {  // first: the checkpoint has to fit the configuration
    from = resumed(
        goes_by.resume, goes_by.checkpoint, static_cast<int>(config.parallel.ranks), backend, note);
    changes = expect_same_run(loaded, *from, goes_by.starts_over);
  }
  const c10::Device device = device_named(config.parallel.device);
  RunConfig of_model = config;
  const bool others = from && other_adapters(loaded, *from, goes_by.starts_over);
  if (from && !others) {
    of_model.lora.path = adapter_settings(config.lora.path, goes_by.resume);
  }
  ModelFolder model = model_at(of_model, /*of_a_run=*/from.has_value());
  ModelWeights weights{.said = "those of the checkpoint", .notes = model.notes};
  if (from && model.model.lora) {  // frozen weights are in no checkpoint, adapters are
    model.adapter.clear();
  }
  if (!from || model.model.lora) {
    weights = weights_at(config, model);
  }
  Dataset data = data_at("data.path", config.data.path, config, model);
  TrainingInputs inputs{
      .from = std::move(from),
      .changes = std::move(changes),
      .device = device,
      .model = std::move(model),
      .weights = std::move(weights),
      .moments = {},
      .frozen = {},
      .data = std::move(data),
      .data_fingerprint = {},
      .steps = {},
      .first_draws = {},
      .evaluation = {}};
  inputs.moments = moments_at(config, inputs);
  inputs.data_fingerprint = inputs.data.fingerprint();
  if (config.data.held_out > 0) {
    inputs.evaluation = inputs.data.hold_out(config.data.held_out, config.data.seed);
  } else if (!config.data.eval_path.empty()) {
    inputs.evaluation = data_at("data.eval_path", config.data.eval_path, config, inputs.model);
  }
  inputs.steps = steps_of(config, inputs.data);
  std::uint64_t draws = 0;
  for (const std::vector<std::int64_t>& step : inputs.steps) {
    inputs.first_draws.push_back(draws);
    draws += step.size();
  }
  if (!inputs.model.model.of_samples()) {
    expect_trainable(inputs.model.model);
  }
  if (inputs.model.model.lora) {
    inputs.frozen =
        frozen_fingerprint(inputs.weights, static_cast<int>(config.parallel.ranks), backend);
  }
  if (inputs.from) {
    expect_same_model(inputs.model.model.sha256, *inputs.from);
    expect_same_dropout(dropout_rates(inputs.model.model), *inputs.from);
    expect_same_frozen(inputs.frozen, config.model.path, *inputs.from);
    if (others && !config.lora.path.empty()) {
      note(not_read("lora.path", config.lora.path, "adapters"));
    } else if (!inputs.model.model.lora && differs("model.path", loaded, *inputs.from)) {
      note(not_read("model.path", config.model.path, "weights"));
    }
    if (config.train.epochs > 0) {
      expect_steps("the number of steps by train.epochs", std::ssize(inputs.steps), *inputs.from);
    }
    expect_same_data(
        inputs.position(inputs.first_step()), joined(config.data.path, ", "), *inputs.from);
  }
  return inputs;
}

void expect_same_inputs(const TrainingInputs& inputs, const RunConfig& config, Backend& backend) {
  if (backend.name() == "local") {  // they are everybody's
    return;
  }
  const auto ranks = static_cast<int>(config.parallel.ranks);
  std::vector<Given> given;
  if (inputs.from) {  // its weights are those of the run
    given.push_back(
        {"the checkpoint of --resume",
         fmt::format(
             "that of step {}, SHA-256 {}",
             inputs.from->state.step,
             sha256_hex(to_json(inputs.from->state)).substr(0, 16))});
    if (inputs.model.model.lora) {
      const std::vector<Given> frozen =
          given_model("model.path", inputs.model, inputs.weights, ranks, backend);
      given.insert(given.end(), frozen.begin(), frozen.end());
    } else {
      given.push_back({"the configuration of model.path", inputs.model.model.sha256});
    }
  } else {
    given = given_model("model.path", inputs.model, inputs.weights, ranks, backend);
  }
  if (inputs.moments) {
    given.push_back(given_moments(*inputs.moments, ranks, backend));
  }
  given.push_back(given_data("data.path", inputs.data));
  if (inputs.evaluation) {
    given.push_back(given_data(
        config.data.held_out > 0 ? "data.held_out" : "data.eval_path", *inputs.evaluation));
  }
  expect_same_on_ranks(given, ranks, backend);
}

}  // namespace paradyse
