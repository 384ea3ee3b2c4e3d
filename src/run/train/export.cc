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
#include "src/run/train/agreement.h"
#include "src/run/train/checkpoint.h"
#include "src/run/train/files.h"
#include "src/run/train/resume.h"
#include "src/run/train/run_folder.h"
#include "src/run/train/run_inputs.h"
#include "src/run/weights/adapters.h"

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

// Those that were frozen, which are in no checkpoint.
ModelWeights base_weights(const CheckpointState& state, ModelFolder folder) {
  folder.adapter.clear();
  return weights_at(load_config("", settings_of(state)).config, folder);
}

ModelFolder without_adapters(ModelFolder folder) {
  if (folder.model.lora) {
    folder.model = model_from_config(folder.model.config, folder.path.string());
  }
  return folder;
}

}  // namespace

Exported export_checkpoint(const fs::path& from, const fs::path& given, const ExportAs& as) {
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
    config.lora.path =
        adapter_settings(config.lora.path, whole->checkpoint.parent_path().parent_path());
    if (!as.model.empty()) {
      config.model.path = as.model;
    }
    if (!as.dtype.empty()) {
      config.output.dtype = as.dtype;
    }
    const ModelFolder folder = model_of(*whole, config);
    Parameters parameters(
        folder.model, 1, 0, parameter_types(state.dtype), /*gradients=*/false, Masters::on_device);
    const bool adapters = folder.model.lora.has_value();
    if (as.merged && !adapters) {
      throw std::invalid_argument(
          from.string() +
          ": is a run without adapters, so there is nothing to merge: leave --merge "
          "out");
    }
    if (as.merged) {
      const ModelWeights frozen = base_weights(state, folder);
      expect_same_frozen(
          frozen_fingerprint(frozen, communicators.world()), folder.path.string(), *whole);
      frozen.fill(parameters);
    }
    read_weights(whole->checkpoint, state, parameters);
    const at::ScalarType type = saved_type(config, parameters.types().weight);
    const fs::path partial =
        to.parent_path() / fmt::format(".{}.{}.partial", to.filename().string(), ::getpid());
    fs::create_directories(partial.parent_path());
    try {
      if (adapters && !as.merged) {
        save_adapters(parameters, communicators.world(), partial, folder.path, type);
        exported.adapters = true;
      } else {
        parameters.merge_adapters();
        const std::vector<std::string> notes =
            save_model(parameters, communicators.world(), partial, without_adapters(folder), type);
        exported.notes.insert(exported.notes.end(), notes.begin(), notes.end());
      }
      move_path(partial, to);
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
