// A run that goes on: what it goes on from, and whether it is still the same run.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "paradyse/plan/config.h"
#include "src/run/train/checkpoint.h"

namespace paradyse {

// After the first `step` of a run's steps, each a list of items of a data set of so many.
DataPosition data_position(
    std::int64_t items,
    std::string fingerprint,
    const std::vector<std::vector<std::int64_t>>& steps,
    std::int64_t step);

struct Resumed {
  std::filesystem::path checkpoint;
  CheckpointState state;
};

// The newest checkpoint of the run in folder `run`.  Throws std::runtime_error: no folder of a run,
// no checkpoint yet, a damaged one.
Resumed resumed(const std::filesystem::path& run);

// Throws std::invalid_argument, naming key and both values, for a configuration of another run.
// Gives the keys that may differ and do, for the user: "train.steps = 200 (was 100)".
std::vector<std::string> expect_same_run(const LoadedConfig& now, const Resumed& from);
// And for another model, other documents, or documents in another order.
void expect_same_model(const std::string& fingerprint, const Resumed& from);
void expect_same_data(const DataPosition& now, const std::string& path, const Resumed& from);

}  // namespace paradyse
