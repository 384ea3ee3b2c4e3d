#include "src/run/train/run_checkpoints.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "src/run/execute/gather.h"
#include "src/run/measure/measure.h"

namespace paradyse {
namespace {

using Clock = std::chrono::steady_clock;

// Rank 0's folder, which has to be there on every rank: each writes its own file into it.
std::filesystem::path shared(const std::filesystem::path& mine, Communicator& world) {
  const bool first = world.rank() == 0;
  const std::filesystem::path folder =
      broadcast_text(first ? std::filesystem::absolute(mine).string() : "", "checkpoints", world);
  std::error_code error;
  if (!std::filesystem::is_directory(folder.parent_path(), error)) {
    throw std::runtime_error(fmt::format(
        "rank {}: the run folder {}, which rank 0 made, does not exist here: checkpoints need a "
        "file system that all ranks share; choose one with output.folder, or set checkpoint.keep = "
        "0",
        world.rank(),
        folder.parent_path().string()));
  }
  return folder;
}

}  // namespace

RunCheckpoints::RunCheckpoints(
    const RunConfig::Checkpoint& when,
    RankSession& session,
    std::atomic<bool>* save,
    bool takes_wishes,
    std::function<void(const std::string& line)> note)
    : when_(when),
      session_(session),
      save_(takes_wishes ? save : nullptr),
      note_(std::move(note)),
      time_(Clock::now()) {}

void RunCheckpoints::begin(const std::filesystem::path& folder) {
  if (when_.keep > 0) {
    folder_ = shared(folder, session_.world());
  }
}

void RunCheckpoints::restore(const Resumed& from, AdamW& optimizer) {
  read_checkpoint(from.checkpoint, from.state, session_.parameters(), optimizer);
  last_ = from.state.step;
}

std::optional<Resumed> RunCheckpoints::newest() {
  std::vector<std::string> broken;  // a later step's file says so again
  return folder_.empty() ? std::nullopt
                         : first_whole(checkpoints_in(folder_), session_.world(), broken);
}

bool RunCheckpoints::due(std::int64_t step) {
  if (step == 0) {
    return false;
  }
  const bool wished = save_ != nullptr && save_->exchange(false);
  if (when_.keep == 0) {
    if (wished && session_.rank() == 0) {
      note_("SIGUSR1: no checkpoint is written, since checkpoint.keep = 0");
    }
    return false;
  }
  if (step == last_) {
    return false;
  }
  if (when_.every > 0 && step % when_.every == 0) {
    return true;
  }
  const bool by_clock = session_.rank() == 0 && when_.minutes > 0 &&  // rank 0's clock counts
                        seconds_since(time_) >= 60 * when_.minutes;
  const auto due = gather({by_clock || wished ? 1 : 0}, session_.world());
  return std::ranges::any_of(due, [](const auto& of_rank) { return of_rank[0] != 0; });
}

void RunCheckpoints::write(
    std::int64_t step,
    const std::function<CheckpointState()>& state,
    const AdamW& optimizer,
    IfNotWritten then) {
  if (when_.keep == 0 || step == last_) {
    return;
  }
  const auto begin = Clock::now();
  const std::string why =
      write_checkpoint(folder_, state, session_.parameters(), optimizer, session_.world());
  time_ = Clock::now();
  if (!why.empty()) {
    failed(step, why, then);
    return;
  }
  if (failures_ > 0 && session_.rank() == 0) {
    note_(fmt::format("the checkpoint of step {} could be written", step));
  }
  failures_ = 0;
  last_ = step;
  if (session_.rank() == 0 && !keep_all_) {
    prune();
  }
  session_.world().barrier({.op = "checkpoint written", .part = ""});
  session_.note("checkpoint", "checkpoint", begin);
}

// What cannot be removed is tried again with the next one.
void RunCheckpoints::prune() {
  try {
    prune_checkpoints(folder_, when_.keep, when_.keep_every);
  } catch (const std::runtime_error& error) {
    note_(fmt::format("an old checkpoint could not be removed: {}", error.what()));
  }
}

void RunCheckpoints::failed(std::int64_t step, const std::string& why, IfNotWritten then) {
  ++failures_;
  const bool first = session_.rank() == 0;
  const std::string whole =
      broadcast_text(first ? complete_text(folder_) : "", "complete checkpoint", session_.world());
  const bool any =
      broadcast_number(
          first && complete_checkpoint(folder_) ? 1 : 0, "complete checkpoint", session_.world()) !=
      0;
  const std::string what =
      fmt::format("the checkpoint of step {} could not be written: {}; {}", step, why, whole);
  if (then == IfNotWritten::tell ||
      (then == IfNotWritten::go_on && any && failures_ < when_.failures)) {
    if (first) {
      note_(
          then == IfNotWritten::tell
              ? what
              : fmt::format(
                    "{}. Training continues, and the next checkpoint is tried (failure {} of "
                    "checkpoint.failures = {})",
                    what,
                    failures_,
                    when_.failures));
    }
    return;
  }
  throw std::runtime_error(fmt::format(
      "{}. {}Repair the folder or free disk space, then run paradyse train --resume {} "
      "(checkpoint.keep = 0 turns checkpoints off)",
      what,
      then == IfNotWritten::end ? ""
      : any ? fmt::format("The run ends: that was failure {} of checkpoint.failures. ", failures_)
            : "The run ends: nothing would be left of it. ",
      folder_.parent_path().string()));
}

}  // namespace paradyse
