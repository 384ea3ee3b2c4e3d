// What `paradyse bench switching` is asked.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "src/cli/run_options.h"

namespace paradyse::cli {

struct BenchSwitchingOptions {
  bool published = false;
  std::int64_t sequences = 20000;
  std::uint64_t seed = 1;
  // of what is measured
  RunOptions run;
  std::vector<std::string> corpora;  // NAME=FILE, a length a line
  std::string order = "shuffled";
  std::int64_t tokens_per_step = 0;
  bool ablation = false;
  std::string batch_planner;  // "": the configuration's where it names one, else groups
  int repeats = 3;
  std::string out = "switching.json";
};

int bench_switching_measured(const BenchSwitchingOptions& options, const Common& common);

}  // namespace paradyse::cli
