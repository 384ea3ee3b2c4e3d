// When a run's checkpoints are written, and going on from one, on one rank (how: checkpoint.h).
//
// With checkpoint.async_save a save begins with a copy of the rank's pieces, and a thread of its
// own writes that copy.  Once a step all ranks look whether everybody's part is written, and agree
// then. The next save, the end of the run and a step back wait for the one under way.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "paradyse/plan/config.h"
#include "paradyse/run/session.h"
#include "src/run/train/background_work.h"
#include "src/run/train/checkpoint.h"
#include "src/run/train/checkpoint_pieces.h"
#include "src/run/train/resume.h"
#include "src/run/weights/optimizer.h"

namespace paradyse {

// What follows a checkpoint that could not be written: training goes on, unless it was one too many
// (checkpoint.failures); or the run ends; or it is told and no more, since something else ends the
// run.  In the last two cases it is tried again before.
enum class IfNotWritten { go_on, end, tell };

// Every rank calls the same of it in the same order.
class RunCheckpoints {
 public:
  // `save`: TrainHooks::save.  `takes_wishes`: on one rank of each process.  `note`: on rank 0.
  RunCheckpoints(
      const RunConfig::Checkpoint& when,
      RankSession& session,
      std::atomic<bool>* save,
      bool takes_wishes,
      std::function<void(const std::string& line)> note);

  ~RunCheckpoints();  // gives up what is still written, as a run that fails leaves it
  RunCheckpoints(const RunCheckpoints&) = delete;
  RunCheckpoints& operator=(const RunCheckpoints&) = delete;

  // Before the first is written.  `folder`: rank 0's, which all ranks have to see; else
  // std::runtime_error says what to do.  Throws OutOfMemory where there is no room for copies.
  void begin(const std::filesystem::path& folder, const AdamW& optimizer);

  // Puts weights and moments of a checkpoint in place.
  void restore(const Resumed& from, AdamW& optimizer);
  // The newest of this run that is whole, on all ranks the same.  None: none is.
  std::optional<Resumed> newest();

  // Whether one is to be written before step `step`; the same on all ranks.  Throws as write(), for
  // the one under way.
  [[nodiscard]] bool due(std::int64_t step);
  // Writes that of `step`, unless it is there or none are wanted; `state` and `before` (SaveSteps)
  // are asked on rank 0.  One that training goes on after may be on its way when this returns; else
  // it is there.  Throws std::runtime_error, on all ranks, where the run ends for want of it.
  void write(
      std::int64_t step,
      std::function<CheckpointState()> state,
      std::function<void()> before,
      const AdamW& optimizer,
      IfNotWritten then = IfNotWritten::go_on);
  // Whether that of `step` is in place.
  [[nodiscard]] bool has(std::int64_t step) const { return step == last_; }
  // From here on none is removed for a newer one.
  void keep_all() { keep_all_ = true; }

 private:
  void begin_save(std::int64_t step, SaveSteps steps);
  void take_turn(IfNotWritten then);  // of the save under way: its next work, or its end
  void advance(IfNotWritten then);    // it has had this rank's work; every rank calls it
  void await(IfNotWritten then);
  void tell_of_waiting(std::int64_t step, double seconds);
  void settle(std::int64_t step, const std::string& why, IfNotWritten then);
  void failed(std::int64_t step, const std::string& why, IfNotWritten then);
  void prune();

  RunConfig::Checkpoint when_;
  RankSession& session_;
  std::atomic<bool>* save_;
  std::function<void(const std::string& line)> note_;
  std::filesystem::path folder_;
  std::int64_t last_ = -1;                      // step
  std::chrono::steady_clock::time_point time_;  // of the last try, or the beginning
  std::int64_t failures_ = 0;                   // in a row
  std::atomic<bool> keep_all_ = false;
  std::optional<Snapshot> snapshot_;      // where saves are asynchronous and this rank has a file
  std::optional<CheckpointSave> saving_;  // under way
  std::int64_t saving_step_ = -1;
  std::string not_pruned_;  // why, by the work of rank 0
  bool told_of_waiting_ = false;
  std::atomic<bool> given_up_ = false;
  BackgroundWork work_;  // the last member: it is over before what it uses goes
};

}  // namespace paradyse
