// What a run goes on from: a folder for each step that was saved, there whole or not at all.
//
//   checkpoints/000050/state.json              everything but the tensors, and what the files hold
//   checkpoints/000050/rank-00000.safetensors  that rank's pieces (checkpoint_pieces.h)
//
// Written beside its place (000050.<draw>.partial), fsynced, and renamed: a kill at any moment
// leaves what was there before.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "paradyse/run/communicator.h"
#include "paradyse/run/weights.h"
#include "src/run/train/checkpoint_state.h"
#include "src/run/weights/optimizer.h"

namespace paradyse {

// All below `checkpoints`, the newest first.  Throws std::runtime_error for a folder that is there
// and cannot be read: a run that has checkpoints would be taken for one that has none.
std::vector<std::filesystem::path> checkpoints_in(const std::filesystem::path& checkpoints);
std::int64_t step_of(const std::filesystem::path& checkpoint);

// Its state; all its files are there and as long as they were.  Throws damaged().
CheckpointState open_checkpoint(const std::filesystem::path& checkpoint);

// That files have the content that they were written with: those of number `part`, part + of, ...
// Throws damaged().
void expect_whole(
    const std::filesystem::path& checkpoint,
    const CheckpointState& state,
    int part = 0,
    int of = 1);

// The newest that can be opened; none: there is none.  For messages: contents are not read.  Throws
// as checkpoints_in().
std::optional<std::filesystem::path> complete_checkpoint(const std::filesystem::path& checkpoints);
// "checkpoints/000050 is complete", kNoneComplete, or why it cannot be told.
std::string complete_text(const std::filesystem::path& checkpoints);
inline constexpr const char* kNoneComplete = "there is no complete checkpoint";
// Where `body` cannot read or write a file, the std::runtime_error says that, too.
void naming_complete(const std::filesystem::path& checkpoints, const std::function<void()>& body);

// What one save is made of; all but `pieces` is asked of rank 0 alone.
struct SaveSteps {
  std::function<CheckpointState()> state;  // at once
  // This rank's file.
  std::function<void(const std::filesystem::path& file)> pieces = {};
  std::function<void()> before = {};  // what the checkpoint relies on is on the disk
  std::function<void()> after = {};   // it is in place
};

// A checkpoint on its way to its place, on one rank.  Work on files, which waits for no other rank
// and may be done on another thread, takes turns with agreements, which every rank makes in the
// same order on the thread that has its communicators:
//
//   CheckpointSave save(...); while (!save.over()) { save.work(); save.agree(world); }
class CheckpointSave {
 public:
  // Agrees on the folder.  Every rank calls it; `domain`: the ranks that have a file.
  CheckpointSave(
      std::filesystem::path checkpoints, SaveSteps steps, int domain, Communicator& world);

  void work();
  void agree(Communicator& world);  // once this rank's work is over
  [[nodiscard]] bool over() const { return stage_ == Stage::over; }

  // The same on every rank once it is over: "", and the checkpoint is there; or why it is not (the
  // file and the system's reason), and then nothing of it is.
  [[nodiscard]] const std::string& wrong() const { return wrong_; }
  [[nodiscard]] std::int64_t step() const { return state_.step; }

 private:
  enum class Stage { pieces, place, over };
  void write_own();
  void place();

  std::filesystem::path checkpoints_;
  SaveSteps steps_;
  int domain_;
  int rank_;
  Stage stage_ = Stage::pieces;
  CheckpointState state_;  // of ranks other than 0 the step alone
  std::filesystem::path partial_;
  std::int64_t bytes_ = 0;  // of this rank's file, and their XXH64
  std::uint64_t check_ = 0;
  std::string wrong_;  // this rank's, then everybody's
};

// Writes the checkpoint of a step, from where weights and moments lie; every rank calls this, and
// gets the same answer when it is there: "", or why it is not (CheckpointSave::wrong).  `steps`:
// all but `pieces`.
std::string write_checkpoint(
    const std::filesystem::path& checkpoints,
    SaveSteps steps,
    const Parameters& parameters,
    const AdamW& optimizer,
    Communicator& world);

// Removes all but the newest `keep`, and, with `keep_every`, but the first of each so many steps
// (of those from 100 to 199, if it is 100).  Throws std::runtime_error.
void prune_checkpoints(
    const std::filesystem::path& checkpoints, std::int64_t keep, std::int64_t keep_every = 0);

// Puts this rank's pieces in place, on any number of ranks.  Throws damaged().
void read_checkpoint(
    const std::filesystem::path& checkpoint,
    const CheckpointState& state,
    Parameters& parameters,
    AdamW& optimizer);
// The weights alone.
void read_weights(
    const std::filesystem::path& checkpoint, const CheckpointState& state, Parameters& parameters);

// Removes what was being written or removed when the program ended.
void sweep_checkpoints(const std::filesystem::path& checkpoints);

}  // namespace paradyse
