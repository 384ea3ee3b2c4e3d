// The folder of a run: what is written where, and that nothing is overwritten.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "paradyse/plan/config.h"
#include "paradyse/plan/plan.h"
#include "paradyse/run/train.h"
#include "src/plan/search/batch/group_sizes.h"
#include "src/run/train/event_file.h"
#include "src/run/train/unwritten.h"

namespace paradyse {

// Of the steps after `step` that the run in this folder had begun, those that it put aside too, by
// their number from 0: whether their plan was late (StepPlans), as far as one can read it.  `note`
// is told of files that the disk refuses.
std::map<std::size_t, bool> plans_were_late(
    const std::filesystem::path& run,
    std::int64_t step,
    const std::function<void(const std::string& line)>& note);

// Where the settings of a run's adapters (adapter_config.json) are read, which began with those of
// `lora_path`: in the folder of the run, which has a copy of them; there where it has none.
std::string adapter_settings(const std::string& lora_path, const std::filesystem::path& run);

class RunFolder {
 public:
  // Whether a run without a checkpoint is there: it has its configuration, or was cut short before
  // that and has nothing that a run does not begin with.
  static bool is_begun(const std::filesystem::path& run);
  // Throws std::invalid_argument where output.name leads out of output.folder.
  static void expect_name(const LoadedConfig& config);
  // Throws std::invalid_argument, naming the key, where the first of the next two will not make
  // its folder or nothing can be written there; makes nothing.  `may_be_empty`: a folder of that
  // name is taken if nothing is in it, as a run leaves it that is killed at once.
  static void expect_room(const LoadedConfig& config, bool may_be_empty = false);
  // Makes a new folder below `output.folder` named `output.name`, or for the time of day, and
  // writes config.toml.  Throws std::runtime_error when a folder of the given name is there
  // already, but for an empty one where that may be.
  explicit RunFolder(const LoadedConfig& config, bool may_be_empty = false);
  // The folder of a run that goes on.  Throws std::runtime_error when a program is at it.
  explicit RunFolder(std::filesystem::path run);
  ~RunFolder();
  RunFolder(const RunFolder&) = delete;
  RunFolder& operator=(const RunFolder&) = delete;

  // Goes back to the end of `step`: what the run wrote of later steps is put aside, their
  // checkpoints too, and config.toml, where it is another now, or gone.
  struct Rewound {
    std::vector<StepReport> reports;     // of the steps until then, as far as they were written
    std::filesystem::path put_aside;     // "": there was nothing
    std::filesystem::path config_aside;  // "": it is the same
    bool config_made = false;            // it was not there
  };
  Rewound rewind(std::int64_t step, const LoadedConfig& config);

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  // Why nothing keeps another program from training in this folder, too; "": a lock does.
  [[nodiscard]] const std::string& not_locked() const { return not_locked_; }
  [[nodiscard]] std::filesystem::path checkpoints() const { return path_ / "checkpoints"; }
  // What the disk refuses of plans, metrics and events waits and is tried again (unwritten.h).
  void write_plan(const Plan& plan, std::int64_t step);
  [[nodiscard]] Plan read_plan(std::int64_t step) const;  // throws like read_plan (plan.h)
  void write_step(const StepReport& report);              // a line of metrics.jsonl
  std::filesystem::path write_bad_step(std::int64_t step, const std::string& lines);
  void write_group_sizes(const std::vector<GroupSize>& sizes, std::int64_t memory_per_rank);
  // Tries again what waits; why it still does, or "".
  std::string flush() { return unwritten_.flush(); }
  // Why one was refused since this was asked last, even if it is written by now, or "".
  std::string refused() { return unwritten_.refused(); }
  // Those that are written are on the disk.  On any thread.  Throws std::runtime_error.
  void sync_steps() const;
  void write_summary(const TrainSummary& summary);
  // Where a trace from `step` on goes: trace.json, or trace-000050.json.
  [[nodiscard]] std::filesystem::path trace_file(std::int64_t step) const;

  // The model is written to partial_model(), which is new, and then becomes model/.  Another one
  // that stands there is put aside: gives its new name.
  std::filesystem::path partial_model();
  std::filesystem::path place_model();

 private:
  void lock();
  void begin_events(const LoadedConfig& config, std::int64_t step);

  std::filesystem::path path_;
  Unwritten unwritten_;
  std::optional<EventFile> events_;  // where they are wanted
  int lock_ = -1;
  std::string not_locked_;
};

}  // namespace paradyse
