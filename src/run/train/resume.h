// A run that goes on: what it goes on from, and whether it is still the same run.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "paradyse/plan/config.h"
#include "paradyse/plan/model.h"
#include "paradyse/run/backend.h"
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

// The first of these checkpoints that is whole, on all ranks the same; each rank reads a share of
// the files.  Every rank calls it.  Of those that are not, all get to know in `broken` why.  None:
// none is whole.  Throws std::runtime_error, on all ranks, where they see different checkpoints.
std::optional<Resumed> first_whole(
    const std::vector<std::filesystem::path>& checkpoints,
    Communicator& world,
    std::vector<std::string>& broken);

// The checkpoint of the run in folder `run` that `which` names (TrainFrom::checkpoint).  Every
// process calls it.  `note` is told which ones are damaged, where another takes their place. Throws
// std::invalid_argument: no checkpoint yet, none of that name, none that is whole.
Resumed resumed(
    const std::filesystem::path& run,
    const std::string& which,
    int ranks,
    Backend& backend,
    const std::function<void(const std::string& line)>& note);

// The configuration that a checkpoint has, "key=value".
std::vector<std::string> settings_of(const CheckpointState& state);

// The configuration that the newest readable checkpoint of a run has, "key=value"; none: there is
// no such checkpoint.
std::vector<std::string> saved_configuration(const std::filesystem::path& run);

// Whether output.folder and output.name say where the run is; else it was moved there, or its
// folder has another name.
bool is_its_place(const RunConfig& config, const std::filesystem::path& run);

// Whether the run goes on with another number of ranks, or on another kind of device, than it had:
// what was measured and learned is of others.
bool has_moved(const CheckpointState& then, const RunConfig& now);

// Throws std::invalid_argument, naming key and both values, for a configuration of another run.
// Gives the keys that may differ and do, for the user: "train.steps = 200 (was 100)".  `again`: it
// is that of a command that starts a run or goes on with it (TrainFrom::starts_over).
std::vector<std::string> expect_same_run(
    const LoadedConfig& now, const Resumed& from, bool again = false);
// Throws std::invalid_argument where a run of so many steps, as `key` says, has done more.
void expect_steps(const std::string& key, std::int64_t steps, const Resumed& from);
// And for another model, other documents, or documents in another order.
void expect_same_model(const std::string& fingerprint, const Resumed& from);

// The rates of a model's dropout that are not 0, by what they are of: "attention_dropout of
// attention".  They are in no fingerprint, since costs and plans are the same with any.
std::map<std::string, std::string> dropout_rates(const Model& model);
// Throws std::invalid_argument, naming the rate, where the run was trained with others.
void expect_same_dropout(const std::map<std::string, std::string>& now, const Resumed& from);
void expect_same_frozen(
    const std::string& fingerprint, const std::string& path, const Resumed& from);
void expect_same_data(const DataPosition& now, const std::string& path, const Resumed& from);

}  // namespace paradyse
