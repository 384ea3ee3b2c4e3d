#include "src/run/train/run_checkpoints.h"

#include <stdexcept>
#include <string>
#include <system_error>

#include <fmt/format.h>

#include "src/run/execute/gather.h"
#include "src/run/measure/measure.h"
#include "src/run/memory/reading.h"

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

RunCheckpoints::RunCheckpoints(const RunConfig::Checkpoint& when, RankSession& session)
    : when_(when), session_(session), time_(Clock::now()) {}

void RunCheckpoints::begin(const std::filesystem::path& folder) {
  if (when_.keep > 0) {
    folder_ = shared(folder, session_.world());
  }
}

void RunCheckpoints::restore(const Resumed& from, AdamW& optimizer) {
  const CheckpointState& state = from.state;
  for (const auto& of_rank : gather({state.step}, session_.world())) {
    if (of_rank[0] != state.step) {  // a file system that shows ranks another newest one
      throw std::runtime_error(fmt::format(
          "--resume: rank {} finds the checkpoint of step {}, another rank that of step {}; all "
          "ranks must see the same run folder",
          session_.rank(),
          state.step,
          of_rank[0]));
    }
  }
  reading(
      [&] { read_checkpoint(from.checkpoint, state, session_.parameters(), optimizer); },
      "--resume");
  last_ = state.step;
}

bool RunCheckpoints::due(std::int64_t step) {
  if (when_.keep == 0 || step == last_ || step == 0) {
    return false;
  }
  if (when_.every > 0 && step % when_.every == 0) {
    return true;
  }
  if (when_.minutes == 0) {
    return false;
  }
  // rank 0's clock counts
  const bool due_now = seconds_since(time_) >= 60 * when_.minutes;
  return broadcast_number(due_now ? 1 : 0, "checkpoint due", session_.world()) != 0;
}

void RunCheckpoints::write(
    std::int64_t step, const std::function<CheckpointState()>& state, const AdamW& optimizer) {
  if (when_.keep == 0 || step == last_) {
    return;
  }
  const auto begin = Clock::now();
  write_checkpoint(
      folder_,
      session_.rank() == 0 ? state() : CheckpointState{},
      session_.parameters(),
      optimizer,
      session_.world(),
      keep_all_ ? 0 : when_.keep);
  last_ = step;
  time_ = Clock::now();
  session_.note("checkpoint", "checkpoint", begin);
}

}  // namespace paradyse
