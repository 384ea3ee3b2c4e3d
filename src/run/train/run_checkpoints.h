// When a run's checkpoints are written, and going on from one, on one rank (how: checkpoint.h).
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>

#include "paradyse/plan/config.h"
#include "paradyse/run/session.h"
#include "src/run/train/checkpoint.h"
#include "src/run/train/resume.h"
#include "src/run/weights/optimizer.h"

namespace paradyse {

// Every rank calls the same of it in the same order.
class RunCheckpoints {
 public:
  RunCheckpoints(const RunConfig::Checkpoint& when, RankSession& session);

  // Before the first is written.  `folder`: rank 0's, which all ranks have to see; else
  // std::runtime_error says what to do.
  void begin(const std::filesystem::path& folder);

  // Puts weights and moments of a checkpoint in place.  Throws std::runtime_error naming --resume
  // when ranks found different ones, or this rank's file is damaged.
  void restore(const Resumed& from, AdamW& optimizer);

  // Whether one is to be written before step `step`; the same on all ranks.
  [[nodiscard]] bool due(std::int64_t step);
  // Writes that of `step`, unless it is there or none are wanted; `state` is asked on rank 0.
  void write(
      std::int64_t step, const std::function<CheckpointState()>& state, const AdamW& optimizer);
  // From here on none is removed for a newer one.
  void keep_all() { keep_all_ = true; }

 private:
  RunConfig::Checkpoint when_;
  RankSession& session_;
  std::filesystem::path folder_;
  std::int64_t last_ = -1;                      // step
  std::chrono::steady_clock::time_point time_;  // of the last, or the beginning
  bool keep_all_ = false;
};

}  // namespace paradyse
