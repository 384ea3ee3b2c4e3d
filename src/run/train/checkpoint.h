// What a run goes on from: a folder for each step that was saved, there whole or not at all.
//
//   checkpoints/000050/state.json                everything but the tensors, and what the files
//   hold checkpoints/000050/rank-00000.safetensors    that rank's pieces: master, mean, variance
//
// A tensor is named master:, exp_avg: or exp_avg_sq:, then the weight and its rows,
// "exp_avg:model.layers.0.mlp.up_proj.weight[0:10]"; the file's metadata say of each weight and
// rows the shape of the whole and whether the rows are its columns, so that other ranks can cut it
// anew from these files alone.  Matrices lie on one rank of the weight domain each; vectors, which
// all ranks have, in every file.
//
// Written beside its place (000050.<draw>.partial), fsynced, and renamed: a kill at any moment
// leaves what was there before.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "paradyse/plan/batch_planner.h"
#include "paradyse/plan/cost.h"
#include "paradyse/plan/dtype.h"
#include "paradyse/run/communicator.h"
#include "paradyse/run/weights.h"
#include "src/run/weights/optimizer.h"

namespace paradyse {

// How far a run came in its data.
struct DataPosition {
  std::string fingerprint;     // of the documents
  std::string drawn;           // of the order so far, cut into steps
  std::int64_t documents = 0;  // of an epoch
  std::int64_t draws = 0;      // so far
  std::int64_t epoch = 0;      // of the next draw, from 0
  std::int64_t next = -1;      // document of the next draw; -1: the run is through
  friend bool operator==(const DataPosition&, const DataPosition&) = default;
};

struct CheckpointState {
  static constexpr std::int64_t kVersion = 1;

  std::int64_t step = 0;    // that were done
  std::int64_t tokens = 0;  // trained on
  int ranks = 1;
  int weight_domain = 1;
  Dtype dtype = Dtype::float32;  // train.dtype
  std::string model_sha256;      // Model::sha256
  std::int64_t optimizer_steps = 0;
  double loss_scale = 1;
  std::int64_t loss_scale_steps = 0;
  DataPosition data;
  MachineNumbers machine;         // plans are made from these again: other plans, other sums
  std::string costs;              // fingerprint(Costs) that plans went by; "": none
  BatchPlanner::Learned learned;  // about those
  std::map<std::string, std::string> configuration;  // key -> value as TOML
  struct File {
    std::string name;
    std::int64_t bytes = 0;
    std::string xxh64;
  };
  std::vector<File> files = {};  // [rank]
};

// state.json.  Reading throws std::runtime_error naming `from` when it is damaged, of a later
// format or none at all.
std::string to_json(const CheckpointState& state);
CheckpointState checkpoint_state(const std::string& text, const std::string& from);

// The newest checkpoint below `checkpoints`; none where nothing was saved.
std::optional<std::filesystem::path> newest_checkpoint(const std::filesystem::path& checkpoints);

// Its state; all its files are there and as long as they were.  Throws std::runtime_error naming
// the file and what to do.
CheckpointState open_checkpoint(const std::filesystem::path& checkpoint);

// Writes the checkpoint of state.step, and then removes all but the newest `keep` (0: removes
// none); every rank calls this, rank 0 with the state, and returns when it is there.  Nothing is
// copied: tensors are written from where they lie. Throws std::runtime_error naming the file, and
// what still stands.
void write_checkpoint(
    const std::filesystem::path& checkpoints,
    const CheckpointState& state,
    const Parameters& parameters,
    const AdamW& optimizer,
    Communicator& world,
    std::int64_t keep);

// Puts this rank's pieces in place.  Throws std::runtime_error when its file is damaged.
void read_checkpoint(
    const std::filesystem::path& checkpoint,
    const CheckpointState& state,
    Parameters& parameters,
    AdamW& optimizer);

// Removes what was being written or removed when the program ended.
void sweep_checkpoints(const std::filesystem::path& checkpoints);

}  // namespace paradyse
