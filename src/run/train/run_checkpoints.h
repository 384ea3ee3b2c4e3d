// When a run's checkpoints are written, and going on from one, on one rank (how: checkpoint.h).
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
#include "src/run/train/checkpoint.h"
#include "src/run/train/resume.h"
#include "src/run/weights/optimizer.h"

namespace paradyse {

// What follows a checkpoint that could not be written: training goes on, unless it was one too many
// (checkpoint.failures) or no other is complete; or the run ends; or it is told and no more, since
// something else ends the run.
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

  // Before the first is written.  `folder`: rank 0's, which all ranks have to see; else
  // std::runtime_error says what to do.
  void begin(const std::filesystem::path& folder);

  // Puts weights and moments of a checkpoint in place.
  void restore(const Resumed& from, AdamW& optimizer);
  // The newest of this run that is whole, on all ranks the same.  None: none is.
  std::optional<Resumed> newest();

  // Whether one is to be written before step `step`; the same on all ranks.
  [[nodiscard]] bool due(std::int64_t step);
  // Writes that of `step`, unless it is there or none are wanted; `state` is asked on rank 0.
  // Throws std::runtime_error, on all ranks, where the run ends for want of it.
  void write(
      std::int64_t step,
      const std::function<CheckpointState()>& state,
      const AdamW& optimizer,
      IfNotWritten then = IfNotWritten::go_on);
  // From here on none is removed for a newer one.
  void keep_all() { keep_all_ = true; }

 private:
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
  bool keep_all_ = false;
};

}  // namespace paradyse
