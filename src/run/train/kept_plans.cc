#include "src/run/train/kept_plans.h"

#include <algorithm>
#include <filesystem>
#include <stdexcept>
#include <system_error>
#include <vector>

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include "src/plan/base/xxh64.h"
#include "src/run/train/files.h"

namespace paradyse {
namespace fs = std::filesystem;

namespace {

fs::path given_in(const fs::path& run) { return run / "given"; }

// Of all that is kept, names and contents; "": nothing is.
std::string hash_of_kept(const fs::path& run) {
  std::vector<fs::path> files;
  const fs::path given = given_in(run);
  for (const fs::directory_entry& entry : fs::exists(given)
                                              ? fs::recursive_directory_iterator(given)
                                              : fs::recursive_directory_iterator()) {
    if (entry.is_regular_file()) {
      files.push_back(entry.path());
    }
  }
  std::ranges::sort(files);
  Xxh64 hash;
  for (const fs::path& file : files) {
    Xxh64 of_file;
    of_file.add(file_text(file));
    hash.add(file.filename().string() + "|" + of_file.hex() + "|");
  }
  return files.empty() ? "" : hash.hex();
}

}  // namespace

fs::path first_plan_of(const fs::path& run) { return run / "plans" / "step-00001.json"; }

std::string keep_plans(const TrainFrom& from, const fs::path& run) {
  if (from.replay.empty() && from.plan.empty()) {
    return "";
  }
  const fs::path given = given_in(run);
  fs::create_directory(given);
  if (!from.plan.empty()) {
    replace_text(given / "plan.json", file_text(from.plan));
  } else {
    fs::create_directory(given / "plans");
    for (const fs::directory_entry& entry : fs::directory_iterator(from.replay / "plans")) {
      const fs::path& file = entry.path();
      if (file.extension() == ".json") {
        replace_text(given / "plans" / file.filename(), file_text(file));
      }
    }
  }
  const int folder = ::open(given.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder >= 0) {  // all of them at once: a run may have very many
    ::syncfs(folder);
    ::close(folder);
  }
  return hash_of_kept(run);
}

TrainFrom with_kept_plans(
    TrainFrom from,
    const Resumed& resumed,
    int ranks,
    const std::function<void(const std::string& line)>& note) {
  const CheckpointState& state = resumed.state;
  if (state.given_plans.empty()) {
    return from;
  }
  const fs::path given = given_in(from.resume);
  if (ranks != state.ranks) {
    note(fmt::format(
        "the plans that the run was given are for {} ranks, and there are {}: from here on plans "
        "are made",
        state.ranks,
        ranks));
    from.plan.clear();
    from.replay.clear();
    return from;
  }
  if (const std::string hash = hash_of_kept(from.resume); hash != state.given_plans) {
    throw std::invalid_argument(fmt::format(
        "--resume: {}: the plans that the run was given (--replay or --plan) are kept there, and "
        "{}; "
        "restore the folder, or start a new run from the weights in {} with --model",
        given.string(),
        hash.empty() ? "are gone"
                     : fmt::format("have XXH64 {}, but had {}", hash, state.given_plans),
        (from.resume / "model").string()));
  }
  const fs::path plan = given / "plan.json";
  const bool one = fs::exists(plan);
  const bool others = one ? !from.replay.empty() : !from.plan.empty();
  std::error_code error;
  if (others || (!from.plan.empty() && fs::exists(from.plan, error) &&
                 file_text(from.plan) != file_text(plan))) {
    note(fmt::format(
        "{} is not read: the run goes by the plans that it was given when it began ({})",
        from.plan.empty() ? "--replay " + from.replay.string() : "--plan " + from.plan.string(),
        given.string()));
  }
  from.plan = one ? plan : fs::path();
  from.replay = one ? fs::path() : given;
  return from;
}

}  // namespace paradyse
