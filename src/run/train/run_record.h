// What is told and written down of a training run: its folder, its steps, its summary.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "paradyse/plan/config.h"
#include "paradyse/run/train.h"
#include "src/plan/report/prediction_error.h"
#include "src/run/execute/trace.h"
#include "src/run/train/resume.h"
#include "src/run/train/run_folder.h"

namespace paradyse {

// Of a process; only that of rank 0 (`leads`) has a folder, and only rank 0 uses it.
class RunRecord {
 public:
  RunRecord(const LoadedConfig& loaded, const TrainHooks& hooks, bool leads);

  // The folder of a run that goes on.  Throws std::runtime_error when a program is at it,
  // std::invalid_argument when nothing can be written there.
  void reopen(const std::filesystem::path& run);
  // Throws where make_folder() could not make a folder (RunFolder::expect_room).
  // With `starts_over` what stands there is moved aside, as long as it has no checkpoint.
  void expect_room(bool starts_over) const;
  // What the summary says of the run as it begins.
  void begin(const DataCounts& data, const ModelReport& model, bool repeatable);
  // What a group of each size can do, by what is known as the run begins; for its report.
  void group_sizes(std::vector<GroupSize> sizes, std::int64_t memory_per_rank);
  // Steps are about to begin: makes the folder, unless it was reopened, and keeps the plans that
  // are given.
  void make_folder(const TrainFrom& from);
  // The hash of plans that are kept in the folder (kept_plans.h); "": there are none.
  [[nodiscard]] const std::string& given_plans() const { return given_plans_; }
  // Puts the folder back to the checkpoint, takes over what it says of the steps until then, and
  // says so.
  void rewind(const Resumed& from, const std::vector<std::string>& changes);
  // The same of a run that goes back while it trains.
  void roll_back(const CheckpointState& state);

  // What the disk refuses of these waits and is tried again; that is told once.
  void write_plan(const Plan& plan, std::int64_t step);
  void add(const StepReport& report);
  // How many times the median of the last losses this one is; 0: there are too few.
  [[nodiscard]] double above_median(double loss) const;
  // A file in bad_steps/ with the documents of a step, from 1, one a line; gives its name.  What
  // the disk refuses of it waits, too.
  std::filesystem::path write_bad_step(std::int64_t step, const std::string& lines);
  void stopped(int reason) {
    summary_.interrupted = true;
    summary_.stop_reason = reason;
  }
  // After training.  Or, where the last step brought the held-out loss, the data that it is of.
  void evaluated(const EvalResult& result);
  void evaluated(const DataCounts& data) { summary_.eval_data = data; }
  // At the end of a run, beside the best single strategy, as `known` knows now; a few milliseconds
  // a step, of some of the steps.
  void compare(BatchPlanner& known);
  // Of the steps so far that were compared, also before the run was resumed; "": there are none.
  [[nodiscard]] std::string compared_strategy() const {
    return compared_.empty() ? "" : compared_.back().strategy;
  }
  void note(const std::string& line) const;

  // Writes the summary, and the trace where one is wanted; nothing where there is no folder yet.
  TrainSummary finish(const Trace& trace);

  [[nodiscard]] RunFolder& folder() { return *folder_; }
  // "": the folder is another process's.
  [[nodiscard]] const std::filesystem::path& path() const { return summary_.folder; }
  [[nodiscard]] std::int64_t tokens() const { return summary_.tokens; }  // trained on so far

 private:
  void count(const StepReport& report);
  RunFolder::Rewound go_back(const CheckpointState& state);
  void tell_unwritten();
  void note_unlocked() const;

  const LoadedConfig& loaded_;
  const TrainHooks& hooks_;
  bool leads_;
  std::optional<RunFolder> folder_;
  std::optional<std::vector<GroupSize>> group_sizes_;
  std::int64_t memory_per_rank_ = 0;
  std::string given_plans_;
  bool unwritten_ = false;  // told that something waits for the disk
  std::vector<double> losses_;
  std::vector<ComparedStep> compared_;
  PredictionError prediction_error_;
  double idle_seconds_ = 0;  // the mean over the ranks
  TrainSummary summary_;
};

}  // namespace paradyse
