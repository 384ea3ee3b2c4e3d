// paradyse check: on this machine, every strategy and recompute level against the one-rank
// reference.
#include "src/run/check/check.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <optional>

#include <fmt/format.h>

#include "paradyse/plan/strategy.h"
#include "src/cli/backend_options.h"
#include "src/cli/commands.h"
#include "src/cli/inputs.h"
#include "src/cli/progress.h"
#include "src/plan/base/rank_limits.h"
#include "src/run/check/check_layouts.h"
#include "src/run/device/device.h"

namespace paradyse::cli {
namespace {

struct CheckOptions {
  std::vector<int> ranks;
  std::string model;
  bool random_weights = false;
  std::vector<std::string> dtypes;  // empty: dtypes_of(device)
  std::vector<std::string> strategies;
  bool quick = false;
  BackendOptions backend;
};

std::string short_number(double error) { return fmt::format("{:.1e}", error); }

Json json_of(const std::vector<CheckRow>& rows, const std::vector<int>& ranks, bool ok) {
  Json json = {{"ok", ok}, {"rows", Json::array()}};
  for (const CheckRow& row : rows) {
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      if (row.worst(i).place.empty()) {
        continue;
      }
      json["rows"].push_back(
          {{"strategy", row.way},
           {"recompute", row.recompute},
           {"dtype", to_string(row.dtype)},
           {"ranks", ranks[i]},
           {"error", row.worst(i).error},  // infinite: null
           {"place", row.worst(i).place},
           {"tolerance", row.worst(i).tolerance},
           {"loss_error", row.losses[i].error},
           {"loss_tolerance", row.losses[i].tolerance}});
    }
  }
  json["counts_differ"] = Json::array();
  for (const CheckRow& row : rows) {
    for (const std::string& difference : row.counts_differ) {
      json["counts_differ"].push_back(difference);
    }
  }
  return json;
}

// Of all ranks of a row: what is furthest beyond its tolerance.
const CheckError& furthest(const CheckRow& row) {
  const CheckError& loss = *std::ranges::max_element(row.losses, {}, &CheckError::share);
  const CheckError& gradient = *std::ranges::max_element(row.gradients, {}, &CheckError::share);
  return gradient.share() > loss.share() ? gradient : loss;
}

// Each gradient has its own in narrow types: that of the error shown which is nearest to it.
double tolerance_of_gradients(const CheckRow& row) {
  return std::ranges::max_element(row.gradients, {}, &CheckError::share)->tolerance;
}

// Where they are not those of the gradients, which the table shows.
std::string tolerances_of_losses(const std::vector<CheckRow>& rows) {
  std::map<Dtype, double> apart;
  for (const CheckRow& row : rows) {
    if (row.losses.front().tolerance != row.gradients.front().tolerance) {
      apart[row.dtype] = row.losses.front().tolerance;
    }
  }
  std::string text;
  for (const auto& [dtype, tolerance] : apart) {
    text += fmt::format(
        "The loss in {}: tolerance {}.  Each gradient has its own, by its condition; shown is the "
        "nearest.\n",
        to_string(dtype),
        short_number(tolerance));
  }
  return text;
}

// `of_how_many`: what is said of a quick check.
void print(
    const std::vector<CheckRow>& rows,
    const std::vector<int>& ranks,
    bool ok,
    const std::string& of_how_many,
    const Common& common) {
  std::vector<std::vector<std::string>> table(1);
  table[0] = {"strategy", "recompute", "dtype"};
  for (const int p : ranks) {
    table[0].push_back(fmt::format("{} rank{}", p, p == 1 ? "" : "s"));
  }
  table[0].insert(table[0].end(), {"tolerance", "counts", "verdict"});
  for (const CheckRow& row : rows) {
    auto& line = table.emplace_back();
    line = {row.way, row.recompute, to_string(row.dtype)};
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      line.push_back(row.worst(i).place.empty() ? "-" : short_number(row.worst(i).error));
    }
    line.push_back(short_number(tolerance_of_gradients(row)));
    line.emplace_back(row.counts_differ.empty() ? "equal" : "DIFFER");
    line.emplace_back(row.near() ? "ok" : "TOO FAR");
  }
  fmt::print(
      "Worst relative error of the loss and every gradient, compared with plain\n"
      "autograd on one rank in float64.  Counts: bytes sent, messages, saved bytes and\n"
      "peak memory, compared with their prediction.\n{}{}\n{}\n",
      tolerances_of_losses(rows),
      of_how_many,
      common.table(table, {.left = 3}));
  for (const CheckRow& row : rows) {
    if (!row.near()) {
      const CheckError& worst = furthest(row);
      fmt::print(
          "error too large: {} recompute {} {}: {}, above {}, in {}\n",
          row.way,
          row.recompute,
          to_string(row.dtype),
          short_number(worst.error),
          short_number(worst.tolerance),
          worst.place);
    }
    for (std::size_t i = 0; i < row.counts_differ.size() && i < 3; ++i) {
      fmt::print("counts differ: {}\n", row.counts_differ[i]);
    }
  }
  fmt::print("{}\n", verdict(ok ? "ok: everything is within its tolerance" : "FAILED", ok));
}

std::vector<CheckSubject> subjects_of(
    const CheckOptions& options, const std::optional<ModelInput>& input) {
  if (!input) {
    return built_in_subjects();
  }
  return {check_subject(
      options.model,
      without_dropout(input->folder.model),
      [of = input->weights](Parameters& parameters) { of.fill(parameters); })};
}

// All layouts of a model of several dims are checked, on random weights.
void expect_for_layouts(const CheckOptions& options, const Model& model) {
  if (!options.strategies.empty()) {
    throw std::invalid_argument(
        "--strategy is for language models: for this model the planned layout and those of other "
        "systems are checked; leave --strategy out");
  }
  if (options.backend.device != "cpu" && !model.limits.gpus) {
    throw std::invalid_argument(
        "--device: multi-axis models (video, protein) run only on CPUs so far");
  }
  if (options.quick) {
    throw std::invalid_argument(
        "--quick is for language models: for this model all layouts are checked; leave --quick "
        "out");
  }
}

// GPUs are there for narrow types, and have kernels of their own for them.
std::vector<Dtype> dtypes_of(const CheckOptions& options) {
  if (options.dtypes.empty()) {
    return options.backend.device == "cuda"
               ? std::vector{Dtype::float64, Dtype::float32, Dtype::bfloat16}
               : std::vector{Dtype::float64, Dtype::float32};
  }
  std::vector<Dtype> named(options.dtypes.size());
  std::ranges::transform(
      options.dtypes, named.begin(), [](const std::string& name) { return dtype_option(name); });
  return named;
}

int check_on(
    const std::shared_ptr<Backend>& backend,
    const std::vector<int>& ranks,
    const CheckOptions& options,
    const Common& common) {
  std::vector<CheckRow> rows;
  const bool quiet = !backend->leads();
  std::optional<ModelFolder> layouts;  // whose are checked
  std::optional<ModelInput> input;
  if (!options.model.empty()) {
    ModelFolder folder =
        reading([&] { return open_model(options.model, options.random_weights); }, "--model");
    if (folder.model.of_samples()) {
      expect_for_layouts(options, folder.model);
      layouts = std::move(folder);
    } else {
      input = with_weights(std::move(folder), options.random_weights, quiet);
    }
  }
  std::size_t cases = 0;
  std::size_t all_cases = 0;
  Progress progress;
  const ProgressHook shown = progress.hook(common.json || !backend->leads());
  if (layouts) {
    rows = check_layouts(
        {.name = options.model,
         .model = without_dropout(layouts->model),
         .ranks = ranks,
         .dtypes = dtypes_of(options),
         .backend = backend,
         .device = device_named(options.backend.device),
         .progress = shown});
  } else {
    const CheckRequest request{
        .subjects = subjects_of(options, input),
        .ranks = ranks,
        .dtypes = dtypes_of(options),
        .strategies = options.strategies,
        .quick = options.quick,
        .backend = backend,
        .device = device_named(options.backend.device),
        .progress = shown};
    cases = check_cases(request).size();
    all_cases = all_check_cases(request);
    rows = check(request);
  }
  progress.finish();
  if (!backend->leads()) {
    return kOk;
  }
  const bool ok = std::ranges::all_of(rows, &CheckRow::right);
  if (common.json) {
    Json json = json_of(rows, ranks, ok);
    if (input) {
      json["model"] = cli::json_of(input->weights);
    }
    if (options.quick) {
      json["cases"] = cases;
      json["all_cases"] = all_cases;
    }
    print_json(json);
  } else {
    print(
        rows,
        ranks,
        ok,
        options.quick ? fmt::format(
                            "Quick: {} of {} cases, chosen to cover the others (-: none). Without "
                            "--quick all cases run.\n",
                            cases,
                            all_cases)
                      : "",
        common);
  }
  return ok ? kOk : kFailed;
}

int run_check(const CheckOptions& options, const Common& common) {
  dtypes_of(options);  // throws for an unknown one
  for (const std::string& name : options.strategies) {
    strategy("attention", name);  // throws for an unknown one
  }
  std::vector<int> ranks = options.ranks;
  if (ranks.empty()) {
    const int processes = ranks_of(options.backend, 0, 0);
    for (int p = 1; p <= (processes == 0 ? 4 : processes); ++p) {
      ranks.push_back(p);
    }
  }
  return on_backend(
      options.backend, given_by(common), [&](const std::shared_ptr<Backend>& backend) {
        return check_on(backend, ranks, options, common);
      });
}

}  // namespace

void add_check(CLI::App& app, Common& common) {
  auto [command, options] = add_command<CheckOptions>(
      app,
      common,
      "check",
      "Compare every strategy and recompute level with plain autograd on one rank",
      run_check);
  command
      ->add_option(
          "--ranks",
          options->ranks,
          "Numbers of ranks (default: 1 2 3 4; over gloo from 1 to the number of processes)")
      ->delimiter(',')
      ->transform(whole_numbers(1, kMostRanks));
  command->add_option(
      "--model",
      options->model,
      "A small model folder or TOML file (default: built-in models of odd sizes). For stdit and "
      "evoformer, the planned layout and those of other systems are checked");
  add_random_weights(*command, options->random_weights);
  command
      ->add_option(
          "--dtype",
          options->dtypes,
          "float64, float32, bfloat16, float16 (default: the first two; on GPUs the first three)")
      ->delimiter(',');
  command->add_option("--strategy", options->strategies, "Attention strategies (default: all)")
      ->delimiter(',');
  command->add_flag(
      "--quick",
      options->quick,
      fmt::format(
          "At most {} cases that cover the others: every strategy with each weight mode of the MLP "
          "in every data type; numbers of ranks, recompute levels, models and overlap take turns",
          kQuickCases));
  add_backend_options(*command, options->backend);
  add_device_option(*command, options->backend);
}

}  // namespace paradyse::cli
