#include "src/run/train/run_checkpoints.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "src/plan/base/disk_file.h"
#include "src/plan/base/shell_word.h"
#include "src/run/execute/gather.h"
#include "src/run/measure/measure.h"

namespace paradyse {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kLongWait = 1;  // seconds of which a user wants to know
// A run's last checkpoint has no next one: it is tried so often, with a longer pause each time.
constexpr int kLastTries = 3;
constexpr std::chrono::seconds kPause(1);

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

RunCheckpoints::~RunCheckpoints() { given_up_ = true; }

void RunCheckpoints::begin(const std::filesystem::path& folder, const AdamW& optimizer) {
  if (when_.keep == 0) {
    return;
  }
  folder_ = shared(folder, session_.world());
  const Parameters& parameters = session_.parameters();
  if (when_.takes_snapshots() && session_.rank() < parameters.domain()) {
    snapshot_.emplace(parameters, optimizer, optimizer.on_host());
  }
}

void RunCheckpoints::restore(const Resumed& from, AdamW& optimizer) {
  try {
    read_checkpoint(from.checkpoint, from.state, session_.parameters(), optimizer);
  } catch (const std::exception& error) {  // a moment ago it was whole
    throw std::runtime_error(fmt::format(
        "the checkpoint of step {} could not be read: {}. Run paradyse train --resume {} again, "
        "or go on from the one before with --resume-from previous",
        from.state.step,
        message_of(error),
        shell_word(from.checkpoint.parent_path().parent_path().string())));
  }
  last_ = from.state.step;
}

std::optional<Resumed> RunCheckpoints::newest() {
  await(IfNotWritten::tell);
  std::vector<std::string> broken;  // a later step's file says so again
  return folder_.empty() ? std::nullopt
                         : first_whole(checkpoints_in(folder_), session_.world(), broken);
}

bool RunCheckpoints::due(std::int64_t step) {
  if (step == 0 || (when_.keep > 0 && step == last_)) {
    return false;  // a wish stays for the next step
  }
  const bool wished = save_ != nullptr && save_->exchange(false);
  if (when_.keep == 0) {
    if (wished && session_.rank() == 0) {
      note_("SIGUSR1: no checkpoint is written, since checkpoint.keep = 0");
    }
    return false;
  }
  if (when_.every > 0 && step % when_.every == 0) {
    return true;
  }
  const bool by_clock = session_.rank() == 0 && when_.minutes > 0 &&  // rank 0's clock counts
                        seconds_since(time_) >= 60 * when_.minutes;
  const auto of_ranks =
      gather({by_clock || wished ? 1 : 0, work_.done() ? 1 : 0}, session_.world());
  const auto all_say = [&](std::size_t what) {
    return std::ranges::all_of(of_ranks, [=](const auto& of_rank) { return of_rank[what] != 0; });
  };
  if (saving_ && all_say(1)) {
    advance(IfNotWritten::go_on);
  }
  return std::ranges::any_of(of_ranks, [](const auto& of_rank) { return of_rank[0] != 0; });
}

void RunCheckpoints::write(
    std::int64_t step,
    std::function<CheckpointState()> state,
    std::function<void()> before,
    const AdamW& optimizer,
    IfNotWritten then) {
  if (when_.keep == 0) {
    return;
  }
  const auto begin = Clock::now();
  const bool waits = saving_.has_value();
  // Whatever becomes of one before the last word of a run, that is written.
  await(then == IfNotWritten::go_on ? then : IfNotWritten::tell);
  if (step == last_) {
    return;
  }
  if (waits && then == IfNotWritten::go_on) {
    tell_of_waiting(step, seconds_since(begin));
  }
  SaveSteps steps{
      .state = std::move(state), .before = std::move(before), .after = [this] { prune(); }};
  if (when_.takes_snapshots() && then == IfNotWritten::go_on) {
    begin_save(step, std::move(steps));
    session_.note("checkpoint is copied", "checkpoint", begin);
    return;
  }
  std::string why;
  for (int tries = 1;; ++tries) {
    why = write_checkpoint(folder_, steps, session_.parameters(), optimizer, session_.world());
    if (why.empty() || then == IfNotWritten::go_on || tries == kLastTries) {
      break;
    }
    const auto pause = tries * kPause;
    if (session_.rank() == 0) {
      note_(fmt::format(
          "the checkpoint of step {} could not be written: {}; it is the last one, so it is tried "
          "again in {} s",
          step,
          why,
          pause.count()));
    }
    std::this_thread::sleep_for(pause);
  }
  time_ = Clock::now();
  settle(step, why, then);
  session_.note("checkpoint", "checkpoint", begin);
}

void RunCheckpoints::begin_save(std::int64_t step, SaveSteps steps) {
  if (snapshot_) {
    snapshot_->take();
  }
  steps.pieces = [this, rank = session_.rank(), ranks = session_.world().size()](
                     const std::filesystem::path& file) {
    write_pieces(file, rank, ranks, snapshot_->pieces(), &given_up_);
  };
  saving_step_ = step;
  saving_.emplace(folder_, std::move(steps), session_.parameters().domain(), session_.world());
  time_ = Clock::now();
  take_turn(IfNotWritten::go_on);
}

void RunCheckpoints::take_turn(IfNotWritten then) {
  if (!saving_->over()) {
    work_.start([this] { saving_->work(); });
    return;
  }
  const std::string why = saving_->wrong();
  saving_.reset();
  settle(saving_step_, why, then);
}

void RunCheckpoints::advance(IfNotWritten then) {
  work_.finish();
  saving_->agree(session_.world());
  take_turn(then);
}

void RunCheckpoints::await(IfNotWritten then) {
  while (saving_) {
    advance(then);
  }
}

void RunCheckpoints::tell_of_waiting(std::int64_t step, double seconds) {
  if (told_of_waiting_ || session_.rank() != 0 || seconds < kLongWait) {
    return;
  }
  told_of_waiting_ = true;
  note_(fmt::format(
      "the checkpoint of step {} waited {:.2g} s for the one before it to be written: the disk is "
      "slower than checkpoints come (said once)",
      step,
      seconds));
}

void RunCheckpoints::settle(std::int64_t step, const std::string& why, IfNotWritten then) {
  const bool first = session_.rank() == 0;
  const std::string not_pruned = std::exchange(not_pruned_, "");
  if (!why.empty()) {
    failed(step, why, then);
    return;
  }
  if (failures_ > 0 && first) {
    note_(fmt::format("the checkpoint of step {} could be written", step));
  }
  failures_ = 0;
  last_ = step;
  if (!not_pruned.empty()) {
    note_(not_pruned);
  }
}

// What cannot be removed is tried again with the next one.
void RunCheckpoints::prune() {
  try {
    if (!keep_all_) {
      prune_checkpoints(folder_, when_.keep, when_.keep_every);
    }
  } catch (const std::runtime_error& error) {
    not_pruned_ = fmt::format("an old checkpoint could not be removed: {}", message_of(error));
  }
}

void RunCheckpoints::failed(std::int64_t step, const std::string& why, IfNotWritten then) {
  ++failures_;
  const bool first = session_.rank() == 0;
  const std::string complete =
      broadcast_text(first ? complete_text(folder_) : "", "complete checkpoint", session_.world());
  const bool any = complete != kNoneComplete;
  const std::string what =
      fmt::format("the checkpoint of step {} could not be written: {}; {}", step, why, complete);
  if (then == IfNotWritten::tell || (then == IfNotWritten::go_on && failures_ < when_.failures)) {
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
      "{}. {}Repair the folder or free disk space, then {} (checkpoint.keep = 0 turns checkpoints "
      "off)",
      what,
      then == IfNotWritten::end
          ? ""
          : fmt::format("The run ends: that was failure {} of checkpoint.failures. ", failures_),
      any ? "run paradyse train --resume " + shell_word(folder_.parent_path().string())
          : "start the run again: without a checkpoint it cannot be resumed"));
}

}  // namespace paradyse
