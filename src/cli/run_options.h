// Options of the commands that take a run's configuration: train and eval.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "paradyse/plan/config.h"
#include "src/cli/backend_options.h"
#include "src/cli/commands.h"

namespace paradyse::cli {

struct RunOptions {
  std::string file;
  std::vector<std::string> settings;
  bool print_config = false;
  std::string resume;                  // the folder of a run, whose configuration it is then
  std::string resume_from = "newest";  // which of its checkpoints
  std::string auto_resume;             // output.name of a run that is resumed if it is there
  std::string replay;                  // the same, but as a new run that goes by its plans
  std::string plan;                    // a plan file that every step goes by
  // shorthands; "" means not given
  std::string compare;
  std::string model;
  bool random_weights = false;
  std::vector<std::string> data;
  bool bytes = false;
  std::string ranks;
  std::string memory_per_rank;
  std::string timeout;
  std::string backend;
  std::string device;
  std::string rendezvous;
  std::string interface;
  // no key: it is of the machine and not of the run
  std::string secret_file;
};

void add_run_options(Command& command, RunOptions& options);

// The configuration: file, then settings, then shorthands.  Where processes are the ranks, their
// number stands for parallel.ranks unless that is given.
LoadedConfig load(const RunOptions& options);
// The folder of the run to resume; "": a new one.  With auto_resume the run of that name, once it
// has a checkpoint.
std::string resumed_run(const RunOptions& options, const RunConfig& config);

// What the words of a command say of how its ranks run, for whoever starts them: also in its run
// file, or that of the run that it resumes.  Commands without a run file have the same options.
// None: it cannot be read, and the command will say so itself.
std::optional<LoadedConfig> configuration_said(const std::vector<std::string>& words);

BackendOptions backend_options(const RunConfig& config, const RunOptions& options);

// As TOML with origins, or with --json {"key": {"value", "origin"}}.
void print_config(const LoadedConfig& config, const Common& common);

}  // namespace paradyse::cli
