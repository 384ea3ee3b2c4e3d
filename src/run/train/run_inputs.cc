#include "src/run/train/run_inputs.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>

#include "paradyse/plan/detail/index.h"
#include "src/plan/base/bytes_text.h"
#include "src/plan/base/text_match.h"
#include "src/plan/profile/run_costs.h"
#include "src/plan/strategy/mlp_names.h"
#include "src/run/data/data_files.h"
#include "src/run/data/tokenizer_files.h"
#include "src/run/device/device.h"
#include "src/run/execute/memory_budget.h"
#include "src/run/measure/machine.h"
#include "src/run/memory/reading.h"

namespace paradyse {
namespace {

TooLong too_long(const std::string& name) {
  return name == "skip"     ? TooLong::skip
         : name == "refuse" ? TooLong::refuse
         : name == "split"  ? TooLong::split
                            : TooLong::cut;
}

Order order_of(const std::string& name) {
  return name == "sorted"       ? Order::sorted
         : name == "curriculum" ? Order::curriculum
                                : Order::shuffled;
}

void expect_set(const std::string& key, const std::string& value) {
  if (value.empty()) {
    throw std::invalid_argument(
        key + " is not set: write it in the configuration, or --set " + key + "=...");
  }
}

// What is said of data goes with a run file to models of any kind; the rest says what cannot be
// done. Notes what does nothing, and throws naming the first key that cannot be followed.
void take_known_keys(const RunConfig& config, ModelFolder& folder, bool of_a_run) {
  const Model& model = folder.model;
  const std::string& type = model.family == "text" ? model.name : model.family;
  for (const auto& [key, models] : keys_of_others(config, known_to(model))) {
    if (of_a_run || section_of(key) == "data") {
      folder.notes.push_back(fmt::format(
          "{} is for {} and does nothing for a model of type {}", key, models_text(models), type));
      continue;
    }
    throw std::invalid_argument(fmt::format(
        "{} is for {}, but model.path is a model of type {}: leave it out{}",
        key,
        models_text(models),
        type,
        key.starts_with("parallel.") ? "; layouts and tiles are planned, and --plan says what each "
                                       "part runs"
                                     : ""));
  }
}

void expect_device(const RunConfig& config, const Model& model) {
  if (config.parallel.device != "cpu" && !model.limits.gpus) {
    throw std::invalid_argument(
        "parallel.device: multi-axis models (video, protein) run only on CPUs so far");
  }
}

}  // namespace

namespace {

// Adapters as [lora] says them, beside the weights of model.path.
void add_lora(const RunConfig& config, ModelFolder& folder) {
  RunConfig::Lora said = config.lora;
  const RunConfig::Lora none;
  const auto differs = [&](const RunConfig::Lora& other) {
    return said.r != other.r || said.alpha != other.alpha ||
           said.target_modules != other.target_modules || said.use_rslora != other.use_rslora ||
           said.bias != other.bias;
  };
  if (!said.path.empty() && differs(none)) {
    throw std::invalid_argument(
        "lora.path is given, whose adapter_config.json says r and the other settings: leave "
        "lora.r, lora.alpha, lora.target_modules, lora.use_rslora and lora.bias out, or lora.path");
  }
  if (said.path.empty() && said.r == 0 && differs(none)) {
    throw std::invalid_argument(
        "lora.r is 0, so there are no adapters, but other keys of [lora] are given: give lora.r, "
        "or leave them out");
  }
  if (!said.path.empty()) {
    folder = reading([&] { return with_adapters(folder, said.path); }, "lora.path");
  } else if (said.r > 0) {
    try {
      folder.model = with_lora(
          folder.model,
          {.rank = said.r,
           .alpha = said.alpha,
           .targets = said.target_modules,
           .rslora = said.use_rslora,
           .bias = lora_bias(said.bias)});
    } catch (const std::invalid_argument& error) {
      throw std::invalid_argument(std::string("lora: ") + error.what());
    }
  }
  if (said.dropout >= 0) {
    if (!folder.model.lora) {
      throw std::invalid_argument(
          "lora.dropout is given, but there are no adapters: give lora.r or lora.path, or leave it "
          "out");
    }
    folder.model.lora->dropout = said.dropout;
  }
}

}  // namespace

std::string known_to(const Model& model) { return model.of_samples() ? model.family : kDocuments; }

ModelFolder model_at(const RunConfig& config, bool of_a_run) {
  expect_set("model.path", config.model.path);
  ModelFolder folder = reading(
      [&] { return open_model(config.model.path, config.model.random_weights); }, "model.path");
  Model& model = folder.model;
  take_known_keys(config, folder, of_a_run);
  expect_device(config, model);
  if (model.of_samples()) {
    return folder;
  }
  add_lora(config, folder);
  if (config.model.dropout >= 0) {
    model = with_dropout(model, config.model.dropout);
  }
  if (config.model.attention_dropout >= 0) {
    model = with_attention_dropout(model, config.model.attention_dropout);
  }
  model =
      with_tiles(model, tiles_for(device_named(config.parallel.device), model, config.train.dtype));
  return folder;
}

namespace {

// The id after each text, as data.end_id says.
std::optional<std::int32_t> end_id(
    const RunConfig& config, const std::filesystem::path& folder, std::int64_t vocab) {
  const std::string& said = config.data.end_id;
  std::optional<std::int64_t> id;
  if (said == "auto") {
    // Without data.bytes text is refused there.
    id = config.data.bytes && !tokenizer_file(folder).empty() ? end_id_of(folder) : std::nullopt;
  } else if (said != "none") {
    id = std::stoll(said);
  }
  if (id && (*id < 0 || *id >= vocab)) {
    throw std::invalid_argument(fmt::format(
        "data.end_id is {} ({}), but the model has the ids 0 to {}; give one of them, or none",
        said,
        *id,
        vocab - 1));
  }
  return id ? std::optional(static_cast<std::int32_t>(*id)) : std::nullopt;
}

// No document may be longer than the model can take.
void expect_within(const LengthLimit& limit, const std::string& key, const Corpus& corpus) {
  for (std::int64_t d = 0; d < corpus.size(); ++d) {
    const std::int64_t tokens = corpus.length(d);
    if (!limit.allows(tokens)) {
      throw std::invalid_argument(fmt::format(
          "{}: document {} has {} tokens, but {}: data.max_tokens={} uses as many of each document",
          key,
          d,
          tokens,
          limit.why,
          limit.tokens));
    }
  }
}

// The files that are evaluated on, but for what is named as data to train on, too.
std::vector<std::filesystem::path> held_out(
    const RunConfig::Data& data, const std::vector<std::filesystem::path>& no_data) {
  const auto same = [](const std::string& a, const std::string& b) {
    std::error_code error;
    return a == b || std::filesystem::equivalent(a, b, error);
  };
  std::vector<std::filesystem::path> files;
  for (const std::string& path : data.eval_path) {
    const bool named = std::ranges::any_of(
        data.path, [&](const std::string& trained) { return same(path, trained); });
    if (!named) {
      DataOptions options;
      options.paths = {path};
      options.no_data = no_data;
      const DataFiles found = data_files(options);
      std::ranges::transform(found.files, std::back_inserter(files), &DataFile::path);
    }
  }
  return files;
}

// No folder of samples to train on holds a file that is evaluated on.
void expect_apart(const std::vector<std::string>& trained, const std::vector<std::string>& eval) {
  for (const std::string& folder : trained) {
    for (const std::string& file : eval) {
      std::error_code error;
      if (std::filesystem::is_directory(folder) &&
          std::filesystem::equivalent(
              std::filesystem::absolute(file).parent_path(), folder, error)) {
        throw std::invalid_argument(fmt::format(
            "data.path: {} is in the folder {}, and data.eval_path names it to be held out; name "
            "the files to train on, or move this one",
            file,
            folder));
      }
    }
  }
}

}  // namespace

Corpus corpus_at(
    const std::string& key,
    const std::vector<std::string>& paths,
    const RunConfig& config,
    const std::filesystem::path& folder,
    const Model& model) {
  const RunConfig::Data& data = config.data;
  const std::int64_t positions = model.learned_positions();
  DataOptions options;
  options.paths.assign(paths.begin(), paths.end());
  const std::filesystem::path output = config.output.folder;
  options.no_data = {output, output / "costs", folder};
  if (key == "data.path") {
    const auto held = reading([&] { return held_out(data, options.no_data); }, "data.eval_path");
    options.no_data.insert(options.no_data.end(), held.begin(), held.end());
  }
  options.min_tokens = data.min_tokens;
  options.max_tokens = data.max_tokens > 0 ? data.max_tokens : positions;
  options.too_long = too_long(data.too_long);
  options.vocab = model.vocab();
  options.labels = model.masked_lm;
  options.learned_positions = positions > 0;
  options.window = positions > 0 ? 0 : model.limits.trained_positions;
  if (positions > 0 && options.max_tokens > positions) {
    throw std::invalid_argument(fmt::format(
        "data.max_tokens is {}, but the model has {} learned positions: give at most that",
        options.max_tokens,
        positions));
  }
  Corpus corpus = reading(
      [&] {
        options.tokenizer = data.bytes ? "" : tokenizer_file(folder);
        options.tokenizer_folder = folder;
        options.end_id = end_id(config, folder, model.vocab());
        return read_corpus(options);
      },
      key);
  expect_within(model.limits.longest, key, corpus);
  return corpus;
}

Dataset data_at(
    const char* key,
    const std::vector<std::string>& paths,
    const RunConfig& config,
    const ModelFolder& model) {
  expect_set(key, paths.empty() ? "" : paths.front());
  if (!model.model.of_samples()) {
    return Dataset(corpus_at(key, paths, config, model.path, model.model));
  }
  if (std::string(key) == "data.path") {
    expect_apart(paths, config.data.eval_path);
  }
  return Dataset(reading(
      [&] { return read_grid_data({paths.begin(), paths.end()}, model.model, config.data); }, key));
}

std::int64_t memory_of(const RunConfig& config) {
  try {
    return parse_bytes(config.parallel.memory_per_rank);
  } catch (const std::invalid_argument& error) {
    throw std::invalid_argument(std::string("parallel.memory_per_rank: ") + error.what());
  }
}

RunConfig with_budget(RunConfig config, Backend& backend) {
  const c10::Device device = device_named(config.parallel.device);
  if (!device.is_cpu()) {
    config.parallel.memory_per_rank = std::to_string(
        memory_budget(memory_of(config), static_cast<int>(config.parallel.ranks), backend, device));
  }
  return config;
}

Precision precision_of(const RunConfig& config) {
  Precision precision = precision_of(config.train.dtype);
  precision.optimizer_on_host = config.optimizer.offload;
  precision.snapshot =
      config.checkpoint.takes_snapshots() && device_named(config.parallel.device).is_cpu();
  return precision;
}

at::ScalarType saved_type(const RunConfig& config, at::ScalarType trained) {
  return config.output.dtype == "auto" ? trained
                                       : parameter_types(dtype_named(config.output.dtype)).weight;
}

std::string PlanningNumbers::costs_fingerprint() const { return costs ? fingerprint(*costs) : ""; }

PlanningTask planning_task(
    const RunConfig& config, const Model& model, bool training, const PlanningNumbers& numbers) {
  const auto named = [](const std::string& name) { return name == "auto" ? "" : name; };
  PlanningTask task;
  task.model = model;
  task.ranks = static_cast<int>(config.parallel.ranks);
  task.weight_domain = numbers.weight_domain;
  task.ranks_per_node = numbers.ranks_per_node;
  task.links = numbers.links;
  task.machine = numbers.machine;
  task.precision = precision_of(config);
  task.memory_per_rank = memory_of(config);
  task.training = training;
  task.attention = named(config.parallel.attention);
  if (config.parallel.mlp != "auto") {
    task.mlp = mlp_strategy(config.parallel.mlp).name;
  }
  if (task.mlp.empty() && !task.attention.empty()) {
    task.mlp = to_string(strategy("attention", task.attention).verb);
  }
  task.recompute = named(config.parallel.recompute);
  task.gather_weights = named(config.parallel.gather_weights);
  task.offload = config.parallel.offload;
  task.planner = config.parallel.layer_planner;
  task.batch_planner = config.parallel.batch_planner;
  for (const auto& [name, value] : config.parallel.options) {
    if (value > 0) {
      task.options[name] = value;
    }
  }
  if (numbers.costs) {
    go_by(*numbers.costs, task);
  }
  return task;
}

MachineNumbers machine_for(const RunConfig& config, const ModelFolder& model, Backend& backend) {
  const c10::Device device = device_named(config.parallel.device);
  if (!config.costs.correct && device.is_cpu()) {
    return {.cores = shared_cores(static_cast<int>(config.parallel.ranks), backend, device)};
  }
  return measure_machine(
      model.model, config.train.dtype, static_cast<int>(config.parallel.ranks), backend, device);
}

namespace {

// Documents, one after the other, cut into steps of train.tokens_per_step.
class StepCutter {
 public:
  StepCutter(const RunConfig& config, const Dataset& data) : config_(&config), data_(&data) {}

  void add(std::int64_t document) {
    step_.push_back(document);
    tokens_ += data_->length(document);
    if (tokens_ >= config_->train.tokens_per_step) {
      end_step();
    }
  }
  void end_step() {
    if (!step_.empty()) {
      steps_.push_back(std::move(step_));
      step_.clear();
      tokens_ = 0;
    }
  }
  [[nodiscard]] std::int64_t size() const { return std::ssize(steps_); }
  [[nodiscard]] std::int64_t drawn() const {
    std::int64_t count = 0;
    for (const auto& step : steps_) {
      count += std::ssize(step);
    }
    return count;
  }
  std::vector<std::vector<std::int64_t>> steps() && { return std::move(steps_); }

 private:
  const RunConfig* config_;
  const Dataset* data_;
  std::vector<std::vector<std::int64_t>> steps_;
  std::vector<std::int64_t> step_;
  std::int64_t tokens_ = 0;
};

}  // namespace

std::vector<std::vector<std::int64_t>> steps_of(const RunConfig& config, const Dataset& data) {
  const RunConfig::Data& options = config.data;
  if (data.counts().tokens == 0) {
    throw std::invalid_argument(
        joined(options.path, ", ") + ": all " + std::to_string(data.counts().documents) +
        " documents are empty; give data.path with text in it, or data.min_tokens of at least 1");
  }
  const Order order = order_of(options.order);
  const Draws::Blend blend = data.blend(options.weights);
  const auto length = [&](std::int64_t document) { return data.length(document); };
  // Steps from so many draws; the last documents, which fill none, are left out.
  const auto cut = [&](std::int64_t draws) {
    StepCutter steps(config, data);
    for (const std::int64_t document :
         drawn_documents(length, order, draws, options.seed, options.curriculum_share, blend)) {
      if (steps.size() == config.train.steps && config.train.epochs == 0) {
        break;
      }
      steps.add(document);
    }
    return steps;
  };
  if (config.train.epochs > 0) {
    StepCutter steps = cut(config.train.epochs * data.size());
    steps.end_step();
    return std::move(steps).steps();
  }
  if (order != Order::curriculum) {
    StepCutter steps(config, data);
    Draws draws(length, order, options.seed, blend);
    while (steps.size() < config.train.steps) {
      steps.add(draws.next());
    }
    return std::move(steps).steps();
  }
  // A curriculum wants the number of draws, which follows from the order: the estimate grows until
  // it suffices.
  const double mean = static_cast<double>(data.counts().tokens) /
                      static_cast<double>(std::max<std::int64_t>(1, data.counts().documents));
  auto draws = static_cast<std::int64_t>(
      static_cast<double>(config.train.steps) *
      std::ceil(static_cast<double>(config.train.tokens_per_step) / mean + 0.5));
  StepCutter steps = cut(draws);
  while (steps.size() < config.train.steps) {
    draws += draws / 4 + 1;
    steps = cut(draws);
  }
  // Its share is of the draws: give it the number that the run really takes.
  for (int i = 0; i < 8; ++i) {
    const std::int64_t taken = steps.drawn();
    if (taken >= draws) {
      break;
    }
    StepCutter again = cut(taken);
    if (again.size() < config.train.steps) {
      break;
    }
    draws = taken;
    steps = std::move(again);
  }
  return std::move(steps).steps();
}

ModelWeights weights_at(const RunConfig& config, const ModelFolder& model) {
  try {
    return open_weights(model, config.model.random_weights, config.model.seed);
  } catch (const std::invalid_argument& error) {
    throw std::invalid_argument(std::string("model.path: ") + error.what());
  }
}

ModelReport report_of(const ModelWeights& weights) {
  return {.weights = weights.said, .random = weights.random(), .notes = weights.notes};
}

void tell(const ModelReport& model, const std::function<void(const std::string& line)>& note) {
  if (!note) {
    return;
  }
  if (model.random) {
    note(model.weights);
  }
  for (const std::string& line : model.notes) {
    note(line);
  }
}

}  // namespace paradyse
