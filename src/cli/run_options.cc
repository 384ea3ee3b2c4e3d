#include "src/cli/run_options.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <optional>
#include <stdexcept>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "src/cli/inputs.h"
#include "src/plan/base/rank_limits.h"
#include "src/plan/config/fields.h"
#include "src/plan/model/families.h"
#include "src/run/train/checkpoint.h"
#include "src/run/train/resume.h"

namespace paradyse::cli {

void add_run_options(Command& command, RunOptions& options) {
  command.add_option("-c,--config", options.file, "TOML file of the run");
  command
      .add_option(
          "--set",
          options.settings,
          "KEY=VALUE that overrides the file, as in --set train.steps=10")
      ->expected(1)
      ->take_all();
  command.add_flag(
      "--print-config",
      options.print_config,
      "Print every value and where it comes from, and stop");
  command.add_option("--model", options.model, "Short for --set model.path=...");
  add_random_weights(command, options.random_weights);
  command
      .add_option(
          "--data",
          options.data,
          "Folders, JSONL or text files, or glob patterns: short for --set data.path=...")
      ->option_text("PATH ...");
  command.add_flag(
      "--bytes",
      options.bytes,
      "Use the bytes of text as token ids although the model has a tokenizer: short for --set "
      "data.bytes=true");
  command.add_option("--ranks", options.ranks, "Short for --set parallel.ranks=...")
      ->type_name("INT")
      ->transform(whole_numbers(1, kMostRanks));
  command.add_option(
      "--memory-per-rank",
      options.memory_per_rank,
      "Memory budget of each rank, as in 512MiB: short for --set parallel.memory_per_rank=...");
  command
      .add_option(
          "--timeout,--deadline",
          options.timeout,
          "Longest wait for another rank in seconds: short for --set parallel.timeout_seconds=...")
      ->type_name("FLOAT")
      ->check(seconds());
  command.add_option("--backend", options.backend, "Short for --set parallel.backend=...");
  command.add_option(
      "--device", options.device, "cpu or cuda: short for --set parallel.device=...");
  command.add_option("--rendezvous", options.rendezvous, "Short for --set parallel.rendezvous=...");
  command.add_option("--interface", options.interface, "Short for --set parallel.interface=...");
  add_secret_option(command, options.secret_file);
}

BackendOptions backend_options(const RunConfig& config, const RunOptions& options) {
  return {
      .backend = config.parallel.backend,
      .device = config.parallel.device,
      .rendezvous = config.parallel.rendezvous,
      .secret_file = options.secret_file,
      .interface = config.parallel.interface,
      .deadline_seconds = config.parallel.timeout_seconds};
}

namespace {

// The configuration that a run left in its folder.  `option`: that names the folder.
std::filesystem::path config_of(
    const std::string& option, const std::string& run, const RunOptions& options) {
  if (!options.file.empty()) {
    throw std::invalid_argument(
        option + " " + run + " uses the configuration of that run: leave -c " + options.file +
        " out, and change values with --set");
  }
  std::filesystem::path file = std::filesystem::path(run) / "config.toml";
  std::error_code error;
  if (!std::filesystem::is_regular_file(file, error)) {
    throw std::invalid_argument(
        option + " " + run +
        ": is not a run folder: it has no config.toml; give the folder that the run printed at its "
        "end");
  }
  return file;
}

// A run names its files as they were found when it began.  `file`: its own configuration; "": it
// goes by another, which is of now.
void expect_files_of(
    const std::string& option, const std::filesystem::path& file, const LoadedConfig& loaded) {
  const RunConfig& config = loaded.config;
  struct Named {
    const char* key;
    std::string path;
    const char* remedy;
  };
  std::vector<Named> all = {{"model.path", config.model.path, "--model PATH"}};
  for (const std::string& path : config.data.path) {
    all.push_back({"data.path", path, "--data PATH"});
  }
  for (const std::string& path : config.data.eval_path) {
    all.push_back({"data.eval_path", path, "--set data.eval_path=PATH"});
  }
  for (const auto& [key, path, remedy] : all) {
    std::error_code error;
    const auto entry = std::ranges::find(loaded.entries, key, &ConfigEntry::key);
    if (path.empty() || std::filesystem::exists(path, error) ||
        std::filesystem::exists(path + ".bin", error) || entry->origin == "--set" ||
        path.find_first_of("*?[") != std::string::npos || preset_config(path) != nullptr) {
      continue;
    }
    const bool relative = std::filesystem::path(path).is_relative();
    throw std::invalid_argument(fmt::format(
        "{}: {}: {} does not exist{}; give its new place with {}",
        option,
        key,
        path,
        relative && !file.empty()
            ? fmt::format(
                  ": in {} it is relative to the folder where the run started", file.string())
            : "",
        remedy));
  }
}

// As `read` gives it; where processes are the ranks and nobody asks for a number, with theirs.
// `asks`: whether the number that the entry of parallel.ranks has is asked for.
LoadedConfig with_processes(
    std::vector<std::string> settings,
    const RunOptions& options,
    const std::function<bool(const ConfigEntry& ranks)>& asks,
    const std::function<LoadedConfig(const std::vector<std::string>& settings)>& read) {
  LoadedConfig loaded = read(settings);
  const bool asked = asks(*std::ranges::find(loaded.entries, "parallel.ranks", &ConfigEntry::key));
  const auto number = static_cast<int>(loaded.config.parallel.ranks);
  const int processes =
      ranks_of(backend_options(loaded.config, options), asked ? number : 0, /*otherwise=*/number);
  if (processes != number) {
    settings.push_back("parallel.ranks=" + std::to_string(processes));
    loaded = read(settings);
  }
  return loaded;
}

// A run that goes on may have other ranks than it had.
bool asks_now(const ConfigEntry& ranks) { return ranks.origin == "--set"; }
bool asks_anywhere(const ConfigEntry& ranks) { return ranks.origin != "default"; }

// A run that was moved, or whose folder has another name, is where it is found: so say its costs
// and its next config.toml.  What --set says is left to be compared.
LoadedConfig at_its_place(LoadedConfig loaded, const std::string& run) {
  namespace fs = std::filesystem;
  RunConfig::Output& output = loaded.config.output;
  std::error_code error;
  const fs::path place = fs::canonical(run, error);
  if (error || is_its_place(loaded.config, run)) {
    return loaded;
  }
  const auto say = [&](const char* key, std::string& value, const std::string& now) {
    ConfigEntry& entry = *std::ranges::find(loaded.entries, key, &ConfigEntry::key);
    if (entry.origin != "--set") {
      value = now;
      entry.value = toml_text(now);
      entry.origin = "--resume";
    }
  };
  say("output.folder", output.folder, place.parent_path().string());
  if (!output.name.empty()) {  // else by the time of day
    say("output.name", output.name, place.filename().string());
  }
  return loaded;
}

LoadedConfig load_resumed(const RunOptions& options, const std::vector<std::string>& settings) {
  const std::filesystem::path file = std::filesystem::path(options.resume) / "config.toml";
  std::error_code error;
  if (options.file.empty() && !std::filesystem::is_regular_file(file, error)) {
    std::vector<std::string> saved = saved_configuration(options.resume);
    if (!saved.empty()) {  // config.toml is gone, and the checkpoint holds all of it
      saved.insert(saved.end(), settings.begin(), settings.end());
      const auto from_checkpoint = [&](const std::vector<std::string>& all) {
        LoadedConfig loaded = load_config("", all);
        for (ConfigEntry& entry : loaded.entries) {  // only what is asked for now has --set
          const bool asked = std::ranges::any_of(settings, [&](const std::string& setting) {
            return setting.starts_with(entry.key + "=");
          });
          if (entry.origin == "--set" && !asked) {
            entry.origin = (std::filesystem::path(options.resume) / "checkpoints").string();
          }
        }
        return loaded;
      };
      return at_its_place(
          with_processes(saved, options, asks_now, from_checkpoint), options.resume);
    }
  }
  config_of("--resume", options.resume, options);
  LoadedConfig loaded =
      with_processes(settings, options, asks_now, [&](const std::vector<std::string>& all) {
        return load_config(file, all);
      });
  expect_files_of("--resume " + options.resume, file, loaded);
  return at_its_place(std::move(loaded), options.resume);
}

}  // namespace

LoadedConfig load(const RunOptions& options) {
  std::vector<std::string> settings = options.settings;
  const auto shorthand = [&](const char* key, const std::string& value, bool text) {
    if (!value.empty()) {
      std::string setting = key;
      setting += '=';
      setting += text ? Json(value).dump() : value;
      settings.push_back(std::move(setting));
    }
  };
  shorthand("model.path", options.model, true);
  shorthand("model.random_weights", options.random_weights ? "true" : "", false);
  if (!options.data.empty()) {
    settings.push_back("data.path=" + Json(options.data).dump());
  }
  shorthand("data.bytes", options.bytes ? "true" : "", false);
  shorthand("train.compare", options.compare, false);
  shorthand("parallel.ranks", options.ranks, false);
  shorthand("parallel.memory_per_rank", options.memory_per_rank, true);
  shorthand("parallel.timeout_seconds", options.timeout, false);
  shorthand("parallel.backend", options.backend, true);
  shorthand("parallel.device", options.device, true);
  shorthand("parallel.rendezvous", options.rendezvous, true);
  shorthand("parallel.interface", options.interface, true);
  if (!options.resume.empty() + !options.replay.empty() + !options.plan.empty() > 1) {
    throw std::invalid_argument(
        "--resume continues a run, --replay starts a new run with its plans, --plan starts one "
        "with a plan file: give only one of them");
  }
  if (!options.auto_resume.empty()) {
    if (!options.resume.empty()) {
      throw std::invalid_argument("--auto-resume and --resume: give only one of them");
    }
    settings.push_back("output.name=" + Json(options.auto_resume).dump());
  }
  if (options.resume_from != "newest" && options.resume.empty()) {
    throw std::invalid_argument(
        "--resume-from " + options.resume_from +
        " names a checkpoint of the run in --resume RUN: "
        "give that with it");
  }
  if (!options.resume.empty()) {
    return load_resumed(options, settings);
  }
  if (!options.replay.empty()) {
    const std::filesystem::path file = config_of("--replay", options.replay, options);
    settings.insert(settings.begin(), "output.name=\"\"");  // the old name is taken
    LoadedConfig loaded = load_config(file, settings);
    expect_files_of("--replay " + options.replay, file, loaded);
    const auto number = static_cast<int>(loaded.config.parallel.ranks);
    const int processes =
        ranks_of(backend_options(loaded.config, options), 0, /*otherwise=*/number);
    if (processes != number) {
      throw std::invalid_argument(fmt::format(
          "--replay {}: its plans are for {} ranks, but there are {} processes: launch {}",
          options.replay,
          number,
          processes,
          number));
    }
    return loaded;
  }
  LoadedConfig loaded =
      with_processes(settings, options, asks_anywhere, [&](const std::vector<std::string>& all) {
        return reading([&] { return load_config(options.file, all); });
      });
  if (!options.auto_resume.empty() && !resumed_run(options, loaded.config).empty()) {
    expect_files_of("--auto-resume " + options.auto_resume, "", loaded);
  }
  return loaded;
}

std::optional<LoadedConfig> configuration_said(const std::vector<std::string>& words) {
  RunOptions said;
  const bool read = read_known(
      [&](Command& command) {
        command.add_option("-c,--config", said.file);
        command.add_option("--set", said.settings)->expected(1)->take_all();
        command.add_option("--resume", said.resume);
        command.add_option("--replay", said.replay);
        command.add_option("--timeout,--deadline", said.timeout);
        command.add_option("--backend", said.backend);
        command.add_option("--rendezvous", said.rendezvous);
      },
      words);
  if (!read) {
    return std::nullopt;
  }
  std::vector<std::string> settings = said.settings;
  for (const auto& [key, value] :
       {std::pair{"parallel.timeout_seconds", said.timeout},
        {"parallel.backend", said.backend},
        {"parallel.rendezvous", said.rendezvous}}) {
    if (!value.empty()) {
      settings.push_back(fmt::format("{}={}", key, value));
    }
  }
  std::filesystem::path file = said.file;
  try {
    if (const std::string run = said.resume.empty() ? said.replay : said.resume; !run.empty()) {
      file = std::filesystem::path(run) / "config.toml";
      std::error_code error;
      if (!std::filesystem::is_regular_file(file, error)) {
        std::vector<std::string> saved = saved_configuration(run);
        settings.insert(settings.begin(), saved.begin(), saved.end());
        file.clear();
      }
    }
    std::error_code error;
    if (!file.empty() && !std::filesystem::is_regular_file(file, error)) {
      return std::nullopt;  // what is read from a pipe is the command's
    }
    return load_config(file, settings);
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

std::string resumed_run(const RunOptions& options, const RunConfig& config) {
  if (options.auto_resume.empty()) {
    return options.resume;
  }
  const std::filesystem::path run =
      std::filesystem::path(config.output.folder) / config.output.name;
  return checkpoints_in(run / "checkpoints").empty() ? "" : run.string();
}

void print_config(const LoadedConfig& config, const Common& common) {
  if (!common.json) {
    std::fputs(to_toml(config).c_str(), stdout);
    return;
  }
  Json json = Json::object();
  for (const ConfigEntry& entry : config.entries) {
    json[entry.key] = {{"value", entry.value}, {"origin", entry.origin}};
  }
  print_json(json);
}

}  // namespace paradyse::cli
