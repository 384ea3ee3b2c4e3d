#include "src/run/train/checkpoint.h"

#include <algorithm>
#include <map>
#include <random>
#include <ranges>
#include <stdexcept>
#include <system_error>
#include <utility>

#include <c10/core/InferenceMode.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "paradyse/plan/detail/index.h"
#include "src/plan/base/disk_file.h"
#include "src/plan/base/text_match.h"
#include "src/run/execute/gather.h"
#include "src/run/train/checkpoint_pieces.h"
#include "src/run/train/files.h"

namespace paradyse {
namespace fs = std::filesystem;

namespace {

constexpr const char* kState = "state.json";
constexpr const char* kPartial = ".partial";
constexpr const char* kRemoved = ".removed";

std::string rank_file(int rank) { return fmt::format("rank-{:05}.safetensors", rank); }

// The step of a checkpoint's folder; none for a folder of another name.
std::optional<std::int64_t> step_named(const std::string& name) {
  const bool digits = !name.empty() && name.size() <= 18 &&
                      name.find_first_not_of("0123456789") == std::string::npos;
  return digits ? std::optional(std::stoll(name)) : std::nullopt;
}

// What nobody but a run makes in `checkpoints`: of its name, and with a state.
bool is_ours(const fs::path& checkpoint) {
  const std::string name = checkpoint.filename().string();
  const std::optional<std::int64_t> step = step_named(name);
  std::error_code error;
  return step && name == fmt::format("{:06}", *step) &&
         fs::is_regular_file(checkpoint / kState, error);
}

// Under another name first: what is left when this is cut short is taken for nothing.
void remove_checkpoint(const fs::path& checkpoint) {
  fs::path removed = checkpoint;
  removed += kRemoved;
  move_path(checkpoint, removed);
  fs::remove_all(removed);
}

// What goes wrong in `body` with files, or "".
template <typename Body>
std::string tried(const Body& body) {
  try {
    body();
    return "";
  } catch (const std::runtime_error& error) {  // a filesystem_error is one
    return message_of(error);
  }
}

// Folders of checkpoints that were not written to their end, or not removed to theirs.
std::vector<fs::path> left_over(const fs::path& checkpoints, const std::vector<std::string>& ends) {
  std::vector<fs::path> left = paths_in(checkpoints);
  std::erase_if(left, [&](const fs::path& path) {
    const std::string name = path.filename().string();
    const bool ours = step_named(name.substr(0, name.find('.'))).has_value();
    return !ours ||
           std::ranges::none_of(ends, [&](const auto& end) { return name.ends_with(end); });
  });
  return left;
}

std::vector<fs::path> files_of(const fs::path& checkpoint, const CheckpointState& state) {
  std::vector<fs::path> files;
  files.reserve(state.files.size());
  for (const CheckpointState::File& file : state.files) {
    files.push_back(checkpoint / file.name);
  }
  return files;
}

}  // namespace

std::vector<fs::path> checkpoints_in(const fs::path& checkpoints) {
  std::map<std::int64_t, fs::path, std::greater<>> found;
  for (const fs::path& path : paths_in(checkpoints)) {
    if (const auto step = step_named(path.filename().string())) {
      found.emplace(*step, path);
    }
  }
  std::vector<fs::path> all;
  all.reserve(found.size());
  for (auto& [step, path] : found) {
    all.push_back(path);
  }
  return all;
}

std::int64_t step_of(const fs::path& checkpoint) {
  return step_named(checkpoint.filename().string()).value_or(-1);
}

CheckpointState open_checkpoint(const fs::path& checkpoint) {
  std::error_code error;
  const fs::path file = checkpoint / kState;
  if (!fs::is_regular_file(file, error)) {
    damaged(file, "is not there");
  }
  CheckpointState state = checkpoint_state(file_text(file), file.string());
  // Of another name it is a copy that somebody made, for export.
  const std::optional<std::int64_t> named = step_named(checkpoint.filename().string());
  if (named && *named != state.step) {
    damaged(
        file,
        fmt::format(
            "is the state of step {}, in a folder that is named for step {}: was it renamed?",
            state.step,
            *named));
  }
  // Else a state would say of which files a checkpoint is: of too few, or of somebody else's.
  if (std::cmp_not_equal(state.files.size(), state.weight_domain)) {
    damaged(
        file,
        fmt::format(
            "lists {} files of {} ranks that share the weights",
            state.files.size(),
            state.weight_domain));
  }
  for (std::size_t r = 0; r < state.files.size(); ++r) {
    const CheckpointState::File& each = state.files[r];
    if (each.name != rank_file(static_cast<int>(r))) {
      damaged(file, fmt::format("lists file {} as {}", r, excerpt(each.name)));
    }
    const fs::path path = checkpoint / each.name;
    const auto bytes = fs::file_size(path, error);
    if (error) {
      damaged(path, "cannot be opened: " + error.message());
    }
    if (!std::cmp_equal(bytes, each.bytes)) {
      damaged(path, fmt::format("has {} bytes, but was written with {}", bytes, each.bytes));
    }
  }
  return state;
}

void expect_whole(const fs::path& checkpoint, const CheckpointState& state, int part, int of) {
  for (std::size_t f = idx(part); f < state.files.size(); f += idx(of)) {
    const CheckpointState::File& file = state.files[f];
    const fs::path path = checkpoint / file.name;
    if (const std::string check = file_xxh64(path); check != file.xxh64) {
      damaged(path, fmt::format("has XXH64 {}, but was written with {}", check, file.xxh64));
    }
  }
}

std::optional<fs::path> complete_checkpoint(const fs::path& checkpoints) {
  for (const fs::path& checkpoint : checkpoints_in(checkpoints)) {
    if (tried([&] { open_checkpoint(checkpoint); }).empty()) {
      return checkpoint;
    }
  }
  return std::nullopt;
}

std::string complete_text(const fs::path& checkpoints) {
  std::optional<fs::path> complete;
  const std::string why = tried([&] { complete = complete_checkpoint(checkpoints); });
  return !why.empty() ? "which checkpoint is complete is not known: " + why
         : complete   ? complete->string() + " is complete"
                      : kNoneComplete;
}

void naming_complete(const fs::path& checkpoints, const std::function<void()>& body) {
  if (const std::string wrong = tried(body); !wrong.empty()) {
    throw std::runtime_error(fmt::format("{}; {}", wrong, complete_text(checkpoints)));
  }
}

CheckpointSave::CheckpointSave(
    fs::path checkpoints, SaveSteps steps, int domain, Communicator& world)
    : checkpoints_(std::move(checkpoints)),
      steps_(std::move(steps)),
      domain_(domain),
      rank_(world.rank()) {
  // Every attempt has a folder of its own: a rank that outlived its run writes into none of ours.
  std::int64_t draw = 0;
  const auto folder = [&] {
    return checkpoints_ / fmt::format("{:06}.{:08x}{}", state_.step, draw, kPartial);
  };
  if (rank_ == 0) {
    wrong_ = tried([&] {
      state_ = steps_.state();
      state_.weight_domain = domain_;
      draw = std::random_device()();
      if (fs::create_directories(checkpoints_)) {
        sync_path(checkpoints_.parent_path());
      }
      if (!fs::create_directory(folder())) {
        throw std::runtime_error(folder().string() + " is there already");
      }
    });
  }
  wrong_ = first_text(wrong_, world);
  const auto of_first = gather({state_.step, draw}, world).front();
  state_.step = of_first[0];
  draw = of_first[1];
  partial_ = folder();
  stage_ = wrong_.empty() ? Stage::pieces : Stage::over;
}

void CheckpointSave::work() {
  const c10::InferenceMode no_autograd;
  if (stage_ == Stage::pieces && rank_ < domain_) {  // others have what the first group has
    wrong_ = tried([&] { write_own(); });
  } else if (stage_ == Stage::place && rank_ == 0) {
    if (wrong_.empty()) {
      wrong_ = tried([&] { place(); });
    }
    if (!wrong_.empty()) {  // its space may be wanted
      std::error_code ignored;
      fs::remove_all(partial_, ignored);
    } else if (steps_.after) {
      steps_.after();
    }
  }
}

void CheckpointSave::write_own() {
  const fs::path file = partial_ / rank_file(rank_);
  steps_.pieces(file);
  bytes_ = static_cast<std::int64_t>(fs::file_size(file));
  check_ = std::stoull(file_xxh64(file), nullptr, 16);
}

void CheckpointSave::place() {
  if (steps_.before) {
    steps_.before();
  }
  write_durably(partial_ / kState, to_json(state_));
  const fs::path folder = checkpoints_ / fmt::format("{:06}", state_.step);
  if (is_ours(folder)) {  // of this step, too, and its folder could not be synced
    remove_checkpoint(folder);
  }
  move_path(partial_, folder);
  sync_path(checkpoints_);
}

void CheckpointSave::agree(Communicator& world) {
  const c10::InferenceMode no_autograd;
  wrong_ = first_text(wrong_, world);
  if (stage_ == Stage::place) {
    stage_ = Stage::over;
    return;
  }
  const auto files = gather({bytes_, static_cast<std::int64_t>(check_)}, world);
  for (int r = 0; r < domain_; ++r) {
    const auto& of_rank = files[idx(r)];
    state_.files.push_back(
        {.name = rank_file(r),
         .bytes = of_rank[0],
         .xxh64 = fmt::format("{:016x}", static_cast<std::uint64_t>(of_rank[1]))});
  }
  stage_ = Stage::place;  // also of what went wrong: rank 0 removes it
}

std::string write_checkpoint(
    const fs::path& checkpoints,
    SaveSteps steps,
    const Parameters& parameters,
    const AdamW& optimizer,
    Communicator& world) {
  steps.pieces = [&](const fs::path& file) {
    write_pieces(file, world.rank(), world.size(), trained_pieces(parameters, optimizer));
  };
  CheckpointSave save(checkpoints, std::move(steps), parameters.domain(), world);
  while (!save.over()) {
    save.work();
    save.agree(world);
  }
  return save.wrong();
}

void prune_checkpoints(const fs::path& checkpoints, std::int64_t keep, std::int64_t keep_every) {
  std::string why;  // of those that were not removed the last time
  for (const fs::path& folder : left_over(checkpoints, {kRemoved})) {
    why = tried([&] { fs::remove_all(folder); });
  }
  std::vector<fs::path> all = checkpoints_in(checkpoints);
  std::erase_if(all, [](const fs::path& checkpoint) { return !is_ours(checkpoint); });
  std::vector<fs::path> old;
  if (std::cmp_greater(all.size(), keep)) {
    old.assign(all.begin() + keep, all.end());
  }
  std::int64_t held = 0;  // the span of steps that has one
  for (const fs::path& checkpoint : old | std::views::reverse) {
    const std::int64_t span = keep_every > 0 ? step_of(checkpoint) / keep_every : 0;
    if (span > held) {
      held = span;
    } else {
      remove_checkpoint(checkpoint);
    }
  }
  if (!why.empty()) {
    throw std::runtime_error(why);
  }
}

void read_checkpoint(
    const fs::path& checkpoint,
    const CheckpointState& state,
    Parameters& parameters,
    AdamW& optimizer) {
  read_pieces(files_of(checkpoint, state), parameters, &optimizer);
  optimizer.set_steps(state.optimizer_steps);
}

void read_weights(
    const fs::path& checkpoint, const CheckpointState& state, Parameters& parameters) {
  read_pieces(files_of(checkpoint, state), parameters, nullptr);
}

void sweep_checkpoints(const fs::path& checkpoints) {
  (void)tried([&] {  // space that is not given back yet
    std::error_code error;
    for (const fs::path& folder : left_over(checkpoints, {kPartial, kRemoved})) {
      fs::remove_all(folder, error);
    }
  });
}

}  // namespace paradyse
