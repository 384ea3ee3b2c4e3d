#include "src/run/train/export.h"

#include <optional>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include "paradyse/run/communicator.h"
#include "paradyse/run/weights.h"
#include "src/plan/base/disk_file.h"
#include "src/run/train/checkpoint.h"
#include "src/run/train/resume.h"
#include "src/run/train/run_inputs.h"

namespace paradyse {
namespace fs = std::filesystem;

namespace {

std::vector<fs::path> checkpoints_of(const fs::path& from) {
  std::error_code error;
  const fs::path folder = fs::weakly_canonical(from, error);
  if (fs::is_regular_file(folder / "state.json", error)) {
    return {folder};
  }
  std::vector<fs::path> all = checkpoints_in(folder / "checkpoints");
  if (all.empty()) {
    throw std::invalid_argument(
        from.string() +
        ": is neither a checkpoint (no state.json) nor a run that has one (no checkpoints/); give "
        "a run's folder, or one of those in its checkpoints/");
  }
  return all;
}

void expect_free(const fs::path& to) {
  std::error_code error;
  if (fs::exists(fs::symlink_status(to, error)) &&
      (!fs::is_directory(to, error) || !fs::is_empty(to, error))) {
    throw std::invalid_argument(
        to.string() + ": exists and is not an empty folder; name another (nothing is overwritten)");
  }
  const fs::path above = to.parent_path();
  if (const std::string why = why_no_file_in(above, /*makes_folders=*/true); !why.empty()) {
    throw std::invalid_argument(to.string() + ": " + why);
  }
}

ModelFolder model_of(const Resumed& checkpoint, const RunConfig& config) {
  ModelFolder folder = [&] {
    try {
      return model_at(config, /*of_a_run=*/true);
    } catch (const std::invalid_argument& error) {
      throw std::invalid_argument(
          fmt::format("{}; give the place of the run's model with --model", error.what()));
    }
  }();
  expect_same_model(folder.model.sha256, checkpoint);
  return folder;
}

}  // namespace

Exported export_checkpoint(
    const fs::path& from,
    const fs::path& given,
    const std::string& model,
    const std::string& dtype) {
  const fs::path to = fs::absolute(given.has_filename() ? given : given.parent_path());  // "out/"
  expect_free(to);
  const std::vector<fs::path> checkpoints = checkpoints_of(from);
  Exported exported;
  run_local_ranks(1, {}, [&](Communicators& communicators) {
    const std::optional<Resumed> whole =
        first_whole(checkpoints, communicators.world(), exported.notes);
    if (!whole) {
      throw std::invalid_argument(fmt::format("{}", fmt::join(exported.notes, "; ")));
    }
    const CheckpointState& state = whole->state;
    RunConfig config = load_config("", settings_of(state)).config;
    if (!model.empty()) {
      config.model.path = model;
    }
    if (!dtype.empty()) {
      config.output.dtype = dtype;
    }
    const ModelFolder folder = model_of(*whole, config);
    Parameters parameters(
        folder.model, 1, 0, parameter_types(state.dtype), /*gradients=*/false, Masters::on_device);
    read_weights(whole->checkpoint, state, parameters);
    const at::ScalarType type = saved_type(config, parameters.types().weight);
    const fs::path partial =
        to.parent_path() / fmt::format(".{}.{}.partial", to.filename().string(), ::getpid());
    fs::create_directories(partial.parent_path());
    try {
      const std::vector<std::string> notes =
          save_model(parameters, communicators.world(), partial, folder, type);
      exported.notes.insert(exported.notes.end(), notes.begin(), notes.end());
      fs::rename(partial, to);
    } catch (...) {
      std::error_code ignored;
      fs::remove_all(partial, ignored);
      throw;
    }
    exported.checkpoint = whole->checkpoint;
    exported.step = state.step;
    exported.dtype = config.output.dtype == "auto" ? to_string(state.dtype) : config.output.dtype;
  });
  return exported;
}

}  // namespace paradyse
