// The folder of a run: what is written where, and that nothing is overwritten.
#pragma once

#include <filesystem>
#include <fstream>
#include <string>

#include "paradyse/plan.h"
#include "paradyse/run_config.h"
#include "paradyse/train.h"

namespace paradyse {

class RunFolder {
 public:
  // Makes a new folder below `output.folder` named `output.name`, or for the time of day, and
  // writes config.toml.  Throws std::runtime_error when a folder of the given name is there
  // already.
  explicit RunFolder(const LoadedConfig& config);

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  void write_plan(const Plan& plan, std::int64_t step);
  void write_step(const StepReport& report);  // a line of metrics.jsonl
  void write_summary(const TrainSummary& summary);

 private:
  std::filesystem::path path_;
  std::ofstream metrics_;
};

}  // namespace paradyse
