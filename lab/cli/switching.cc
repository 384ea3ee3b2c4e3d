// paradyse-lab switching: what choosing a strategy for every sequence gains.  Measured: every
// static strategy, the published heuristic and ours over lists of lengths.
#include "lab/measure/switching.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <random>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "lab/cli/commands.h"
#include "paradyse/run/weights.h"
#include "src/cli/inputs.h"
#include "src/cli/progress.h"
#include "src/cli/run_options.h"
#include "src/plan/base/bytes_text.h"
#include "src/plan/base/lengths_file.h"
#include "src/plan/base/number_text.h"
#include "src/plan/base/renamed.h"
#include "src/plan/base/text_match.h"
#include "src/plan/profile/run_costs.h"
#include "src/run/device/device.h"
#include "src/run/measure/machine.h"
#include "src/run/measure/profiler.h"
#include "src/run/train/agreement.h"
#include "src/run/train/run_inputs.h"

namespace paradyse::cli {
namespace {

struct SwitchingOptions {
  std::uint64_t seed = 1;
  RunOptions run;
  std::vector<std::string> corpora;  // NAME=FILE, a length a line
  std::string order = "shuffled";
  std::int64_t tokens_per_step = 0;
  bool ablation = false;
  std::string batch_planner;  // "": the configuration's
  int repeats = 3;
  std::string out = "switching.json";
};

// As in every run of this program: the seed alone decides.
void put_in_order(
    std::vector<std::int64_t>& lengths, const std::string& order, std::uint64_t seed) {
  std::sort(lengths.begin(), lengths.end());
  if (order == "sorted") {
    return;
  }
  std::mt19937_64 random(seed);
  for (std::size_t i = lengths.size(); i > 1; --i) {
    std::swap(lengths[i - 1], lengths[random() % i]);
  }
}

// One word of a shell's command line.
std::string quoted(const std::string& word) {
  const auto plain = [](unsigned char c) {
    return std::isalnum(c) != 0 ||
           std::string_view("_-./=:,@%+").find(static_cast<char>(c)) != std::string_view::npos;
  };
  if (!word.empty() && std::all_of(word.begin(), word.end(), plain)) {
    return word;
  }
  std::string text = "'";
  for (const char c : word) {
    text += c == '\'' ? std::string("'\\''") : std::string(1, c);
  }
  return text + "'";
}

// What does this again; processes come from `paradyse launch`, wherever these came from.
std::string command_of(
    const SwitchingOptions& options, const RunConfig& config, const std::string& backend) {
  const RunOptions& run = options.run;
  std::string text = backend == "local" ? "paradyse-lab switching"
                                        : fmt::format(
                                              "paradyse-lab launch -n {} -- switching --backend {}",
                                              config.parallel.ranks,
                                              backend);
  if (!run.file.empty()) {
    text += " -c " + quoted(run.file);
  }
  for (const std::string& setting : run.settings) {
    text += " --set " + quoted(setting);
  }
  for (const auto& [option, value] :
       {std::pair("--model", run.model),
        std::pair("--ranks", run.ranks),
        std::pair("--memory-per-rank", run.memory_per_rank),
        std::pair("--device", run.device)}) {
    if (!value.empty()) {
      text += fmt::format(" {} {}", option, quoted(value));
    }
  }
  for (const std::string& corpus : options.corpora) {
    text += " --corpus " + quoted(corpus);
  }
  text += " --order " + options.order;
  if (options.tokens_per_step > 0) {
    text += fmt::format(" --tokens-per-step {}", options.tokens_per_step);
  }
  if (!options.batch_planner.empty()) {
    text += " --batch-planner " + quoted(options.batch_planner);
  }
  return text + fmt::format(
                    "{} --repeats {} --seed {}",
                    options.ablation ? " --ablation" : "",
                    options.repeats,
                    options.seed);
}

// What is asked for, else what the configuration says.
std::string batch_planner_of(const SwitchingOptions& options, const RunConfig& config) {
  if (!options.batch_planner.empty()) {
    std::vector<std::string> names;
    for (const BatchPlannerRow& row : batch_planners()) {
      names.emplace_back(row.name);
    }
    const BatchPlannerRow* const row = row_named(batch_planners(), options.batch_planner);
    expect_one_of("--batch-planner", row != nullptr ? row->name : options.batch_planner, names);
    return row->name;
  }
  return config.parallel.batch_planner;
}

BenchSwitchingRequest request_of(
    const SwitchingOptions& options,
    const RunConfig& config,
    const std::shared_ptr<Backend>& backend,
    SwitchingResult& result) {
  const Model model = open_measured(config.model.path, "model.path", !backend->leads()).model;
  const auto ranks = static_cast<int>(config.parallel.ranks);
  if (ranks < 2) {
    throw std::invalid_argument(
        "switching: on one rank all strategies are identical; give --ranks 2 or more");
  }
  BenchSwitchingRequest request;
  request.dtype = config.train.dtype;
  request.backend = backend;
  request.device = device_named(config.parallel.device);
  request.tokens_per_step = options.tokens_per_step;
  request.ablation = options.ablation;
  request.repeats = options.repeats;
  request.order = options.order;
  PlanningTask& task = request.task;
  task.model = with_tiles(model, tiles_for(request.device, model, config.train.dtype));
  task.ranks = ranks;
  task.precision = precision_of(config.train.dtype);
  task.memory_per_rank = parse_bytes(config.parallel.memory_per_rank);
  task.offload = config.parallel.offload;
  task.batch_planner = config.parallel.batch_planner;
  const ProfileHeader header =
      profile_header(model, ranks, config.train.dtype, *backend, request.device);
  task.machine = measure_machine(model, request.dtype, ranks, *backend, request.device);
  result.costs = "closed form, measured at the start";
  request.correct = false;
  const std::optional<FoundCosts> found = costs_of(config, header);
  const Costs* const costs = found ? &found->costs : nullptr;
  std::vector<Given> given = {
      given_costs(costs != nullptr ? fingerprint(*costs) : "")};  // every process plans by its own
  for (const std::string& corpus : options.corpora) {
    given.push_back(given_file(
        "the file of --corpus " + corpus.substr(0, corpus.find('=')),
        corpus.substr(corpus.find('=') + 1)));
  }
  expect_same_on_ranks(given, ranks, *backend);
  if (costs != nullptr) {
    go_by(*costs, task);
    request.published = costs->model("hybrid");
    request.without_forest = without_forest(*costs);
    request.correct = config.costs.correct;
    result.costs = costs->best + " model, fitted to a profile";
    result.errors = costs->errors;
  }
  result.machine = header.machine;
  const PartShape shape = model.typical_part();
  result.model = fmt::format(
      "{}: {} layers, hidden {}, {} heads, {} key/value heads, feed-forward {}, vocabulary {}, {}",
      model.name,
      model.layers,
      shape.hidden,
      shape.heads,
      shape.kv_heads,
      shape.ffn,
      model.vocab(),
      to_string(config.train.dtype));
  result.backend = backend->name();
  result.ranks = ranks;
  result.memory_per_rank = task.memory_per_rank;
  return request;
}

int measured_on(
    const std::shared_ptr<Backend>& backend,
    const RunConfig& config,
    const SwitchingOptions& options,
    const Common& common) {
  SwitchingResult result;
  result.command = command_of(options, config, backend->name());
  BenchSwitchingRequest request =
      request_of(options, with_budget(config, *backend), backend, result);
  Progress progress;
  if (!common.json && backend->leads()) {
    request.progress = [&](std::int64_t done, std::int64_t of, const std::string& what) {
      progress.show(done, of, request.corpus + ": " + what);
    };
  }
  for (const std::string& corpus : options.corpora) {
    const std::size_t equals = corpus.find('=');
    if (equals == std::string::npos || equals == 0) {
      throw std::invalid_argument("--corpus " + corpus + ": expected NAME=FILE");
    }
    request.corpus = corpus.substr(0, equals);
    request.lengths = read_lengths(corpus.substr(equals + 1)).tokens;
    put_in_order(request.lengths, options.order, options.seed);
    result.corpora.push_back(bench_switching(request));
  }
  progress.finish();
  if (!backend->leads()) {
    return kOk;
  }
  result.longest = longest_documents(request);
  write_switching(result, options.out);
  if (common.json) {
    Json json = {{"file", options.out}, {"best_static", Json::object()}};
    for (const SwitchingCorpus& corpus : result.corpora) {
      json["best_static"][corpus.name] = best_static(corpus);
    }
    print_json(json);
    return kOk;
  }
  for (const SwitchingCorpus& corpus : result.corpora) {
    std::vector<std::vector<std::string>> rows = {
        {corpus.name,
         "steps that fit",
         "seconds",
         "least",
         "most",
         "on steps that fit all",
         "over the fastest of each step"}};
    for (const SwitchingSummary& run : summaries(corpus)) {
      rows.push_back(
          {run.run,
           fmt::format("{} of {}", run.steps_that_fit, run.steps),
           fmt::format("{:.2f}", run.seconds),
           fmt::format("{:.2f}", run.least),
           fmt::format("{:.2f}", run.most),
           fmt::format("{:.2f}", run.seconds_on_common),
           percent_text(run.over_fastest)});
    }
    fmt::print(
        "{}best static: {}\n\n",
        common.table(rows, {.drop = {"least", "most"}}),
        best_static(corpus));
  }
  fmt::print("{}\nnext: paradyse-lab switching-report {}\n", options.out, options.out);
  return kOk;
}

int run_switching(const SwitchingOptions& options, const Common& common) {
  expect_one_of("--order", options.order, {"shuffled", "sorted"});
  if (options.corpora.empty()) {
    throw std::invalid_argument(
        "switching: give --corpus NAME=FILE with one length in tokens a line "
        "(benchmarks/lengths.py makes such files)");
  }
  if (std::filesystem::exists(options.out)) {
    throw std::invalid_argument(
        options.out + " exists already: choose another name with --out (nothing is overwritten)");
  }
  expect_writable("--out", options.out);
  LoadedConfig loaded = load(options.run);
  if (loaded.config.model.path.empty()) {
    throw std::invalid_argument("model.path is not set: set it in the run file, or give --model");
  }
  loaded.config.parallel.batch_planner = batch_planner_of(options, loaded.config);
  return on_backend(
      backend_options(loaded.config, options.run),
      given_by(loaded),
      [&](const std::shared_ptr<Backend>& backend) {
        return measured_on(backend, loaded.config, options, common);
      });
}

}  // namespace

void add_switching(CLI::App& app, Common& common) {
  auto [command, options] = add_command<SwitchingOptions>(
      app,
      common,
      "switching",
      "Measure what switching strategies by length gains over one for all",
      run_switching);
  command->add_option("--seed", options->seed, "Random seed of the order")
      ->transform(whole_numbers(0))
      ->capture_default_str();
  command
      ->add_option(
          "--corpus",
          options->corpora,
          "NAME=FILE with one length in tokens a line; may be repeated")
      ->expected(1)
      ->take_all();
  command
      ->add_option(
          "--order",
          options->order,
          "Order of the documents: shuffled, or sorted from short to long")
      ->capture_default_str();
  command
      ->add_option(
          "--tokens-per-step",
          options->tokens_per_step,
          "Pack documents into steps of this many tokens (default: one document a step)")
      ->transform(whole_numbers(1));
  command->add_flag(
      "--ablation",
      options->ablation,
      "Also run this planner and the paper's heuristic with one of their parts left out");
  command
      ->add_option(
          "--batch-planner",
          options->batch_planner,
          "Batch planner of this program's runs (default: the configuration's)")
      ->type_name("NAME");
  command->add_option("--repeats", options->repeats, "Rounds for each corpus")
      ->transform(whole_numbers(1))
      ->capture_default_str();
  command->add_option("--out", options->out, "Result file, for switching-report")
      ->capture_default_str();
  add_run_options(*command, options->run);
}

}  // namespace paradyse::cli
