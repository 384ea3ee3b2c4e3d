#include "src/cli/run_options.h"

#include <cstdio>

namespace paradyse::cli {

void add_run_options(CLI::App& command, RunOptions& options) {
  command.add_option("-c,--config", options.file, "TOML file of the run");
  command
      .add_option("--set", options.settings, "KEY=VALUE over the file, as in --set train.steps=10")
      ->expected(1)
      ->take_all();
  command.add_flag(
      "--print-config",
      options.print_config,
      "Print every value with where it came from, and stop");
  command.add_option("--model", options.model, "Short for --set model.path=...");
  command.add_option("--data", options.data, "Short for --set data.path=...");
  command.add_option("--ranks", options.ranks, "Short for --set parallel.ranks=...");
  command.add_option(
      "--memory-per-rank",
      options.memory_per_rank,
      "Budget of each rank, as in 512MiB: short for --set parallel.memory_per_rank=...");
  command.add_option(
      "--deadline",
      options.deadline,
      "Seconds a rank waits for others: short for --set parallel.deadline_seconds=...");
}

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
  shorthand("data.path", options.data, true);
  shorthand("parallel.ranks", options.ranks, false);
  shorthand("parallel.memory_per_rank", options.memory_per_rank, true);
  shorthand("parallel.deadline_seconds", options.deadline, false);
  return reading([&] { return load_config(options.file, settings); });
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
