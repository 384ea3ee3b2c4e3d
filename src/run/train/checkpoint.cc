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

#include "paradyse/plan/index.h"
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

// Under another name first: what is left when this is cut short is taken for nothing.
void remove_checkpoint(const fs::path& checkpoint) {
  fs::path removed = checkpoint;
  removed += kRemoved;
  fs::rename(checkpoint, removed);
  fs::remove_all(removed);
}

// What goes wrong in `body` with files, or "".
template <typename Body>
std::string tried(const Body& body) {
  try {
    body();
    return "";
  } catch (const std::runtime_error& error) {  // a filesystem_error is one
    return error.what();
  }
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
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(checkpoints, error)) {
    if (const auto step = step_named(entry.path().filename().string())) {
      found.emplace(*step, entry.path());
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
  if (state.step != step_of(checkpoint)) {
    damaged(file, fmt::format("is the state of step {}", state.step));
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
  const auto complete = complete_checkpoint(checkpoints);
  return complete ? complete->string() + " is complete" : "there is no complete checkpoint";
}

std::string write_checkpoint(
    const fs::path& checkpoints,
    const std::function<CheckpointState()>& state,
    const Parameters& parameters,
    const AdamW& optimizer,
    Communicator& world) {
  const c10::InferenceMode no_autograd;
  const bool first = world.rank() == 0;
  // Every attempt has a folder of its own: a rank that outlived its run writes into none of ours.
  CheckpointState whole;
  std::int64_t draw = 0;
  std::string wrong;
  const auto partial = [&] {
    return checkpoints / fmt::format("{:06}.{:08x}{}", whole.step, draw, kPartial);
  };
  if (first) {
    wrong = tried([&] {
      whole = state();
      whole.weight_domain = parameters.domain();
      draw = std::random_device()();
      if (fs::create_directories(checkpoints)) {
        sync_path(checkpoints.parent_path());
      }
      if (!fs::create_directory(partial())) {
        throw std::runtime_error(partial().string() + " is there already");
      }
    });
  }
  if (const std::string of_any = first_text(wrong, world); !of_any.empty()) {
    return of_any;
  }
  const auto of_first = gather({whole.step, draw}, world).front();
  whole.step = of_first[0];
  draw = of_first[1];
  const fs::path folder = partial();
  std::int64_t bytes = 0;
  std::uint64_t check = 0;
  wrong = tried([&] {
    if (world.rank() >= parameters.domain()) {
      return;  // it has what the first sharding group has
    }
    const fs::path file = folder / rank_file(world.rank());
    write_pieces(file, world.rank(), world.size(), parameters, optimizer);
    bytes = static_cast<std::int64_t>(fs::file_size(file));
    check = std::stoull(file_xxh64(file), nullptr, 16);
  });
  const std::string of_any = first_text(wrong, world);
  const auto files = gather({bytes, static_cast<std::int64_t>(check)}, world);
  wrong = of_any;
  if (first && wrong.empty()) {
    wrong = tried([&] {
      for (int r = 0; r < parameters.domain(); ++r) {
        const auto& of_rank = files[idx(r)];
        whole.files.push_back(
            {.name = rank_file(r),
             .bytes = of_rank[0],
             .xxh64 = fmt::format("{:016x}", static_cast<std::uint64_t>(of_rank[1]))});
      }
      write_durably(folder / kState, to_json(whole));
      const fs::path place = checkpoints / fmt::format("{:06}", whole.step);
      if (fs::exists(place)) {  // of this step, too, and its folder could not be synced
        remove_checkpoint(place);
      }
      fs::rename(folder, place);
      sync_path(checkpoints);
    });
  }
  if (first && !wrong.empty()) {  // its space may be wanted
    std::error_code ignored;
    fs::remove_all(folder, ignored);
  }
  return first_text(first ? wrong : "", world);
}

void prune_checkpoints(const fs::path& checkpoints, std::int64_t keep, std::int64_t keep_every) {
  std::vector<fs::path> all = checkpoints_in(checkpoints);
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
  std::error_code error;
  std::vector<fs::path> left;
  for (const fs::directory_entry& entry : fs::directory_iterator(checkpoints, error)) {
    const std::string name = entry.path().filename().string();
    const bool ours = step_named(name.substr(0, name.find('.'))).has_value();
    if (ours && (name.ends_with(kPartial) || name.ends_with(kRemoved))) {
      left.push_back(entry.path());
    }
  }
  for (const fs::path& folder : left) {
    fs::remove_all(folder, error);
  }
}

}  // namespace paradyse
