// All that a checkpoint holds but the tensors: state.json.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "paradyse/plan/batch_planner.h"
#include "paradyse/plan/cost.h"
#include "paradyse/plan/dtype.h"

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
  MachineNumbers machine;       // plans are made from these again: other plans, other sums
  std::string costs;            // fingerprint(Costs) that plans went by; "": none
  int costs_ranks = 0;          // that these were measured on; 0: none, or not known
  std::string costs_file = {};  // that they were read from; "": none, or not known
  // Of plans that were given (--replay, --plan) and are kept in the run's folder (kept_plans.h):
  // their hash; "": plans are made.
  std::string given_plans;
  std::string frozen = {};  // frozen_fingerprint() of the weights not trained; "": all are
  // dropout_rates() of the model; none: an older checkpoint, which does not say.
  std::optional<std::map<std::string, std::string>> dropout = {};
  std::set<std::int64_t> left_out;  // steps, from 0, that training went back before (rollback)
  BatchPlanner::Learned learned;    // and how fast ranks are, also where plans do not go by it
  std::map<std::string, std::string> configuration;  // key -> value as TOML
  struct File {
    std::string name;
    std::int64_t bytes = 0;
    std::string xxh64;
  };
  std::vector<File> files = {};  // [rank]
};

// What is not as it was written: "FILE: WHAT: the checkpoint is damaged".  Throws
// std::runtime_error.
[[noreturn]] void damaged(const std::filesystem::path& file, const std::string& what);

// state.json.  Reading throws std::runtime_error naming `from` when it is damaged, of a later
// format or none at all.
std::string to_json(const CheckpointState& state);
CheckpointState checkpoint_state(const std::string& text, const std::string& from);

}  // namespace paradyse
