#include "src/run/train/resume.h"

#include <algorithm>
#include <map>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "paradyse/plan/detail/index.h"
#include "src/plan/base/xxh64.h"
#include "src/plan/config/fields.h"
#include "src/run/execute/gather.h"

namespace paradyse {
namespace fs = std::filesystem;

bool is_its_place(const RunConfig& config, const fs::path& run) {
  std::error_code error;
  const fs::path place = fs::canonical(run, error);
  const fs::path folder = config.output.folder;
  const std::string& name = config.output.name;  // "": it has the time of day
  return !error && (name.empty() ? fs::equivalent(folder, place.parent_path(), error)
                                 : fs::equivalent(folder / name, place, error));
}

bool has_moved(const CheckpointState& then, const RunConfig& now) {
  const auto device_then = then.configuration.find("parallel.device");
  return !std::cmp_equal(then.ranks, now.parallel.ranks) ||
         (device_then != then.configuration.end() &&
          device_then->second.find(now.parallel.device) == std::string::npos);
}

DataPosition data_position(
    std::int64_t items,
    std::string fingerprint,
    const std::vector<std::vector<std::int64_t>>& steps,
    std::int64_t step) {
  DataPosition position{.fingerprint = std::move(fingerprint), .drawn = {}};
  Xxh64 drawn;
  for (std::size_t s = 0; std::cmp_less(s, step); ++s) {
    for (const std::int64_t d : steps[s]) {
      drawn.add({reinterpret_cast<const char*>(&d), sizeof(d)});
    }
    drawn.add("|");
    position.draws += static_cast<std::int64_t>(steps[s].size());
  }
  position.drawn = drawn.hex();
  position.documents = items;
  position.epoch = position.draws / position.documents;
  if (std::cmp_less(step, steps.size())) {
    position.next = steps[idx(step)].front();
  }
  return position;
}

std::optional<Resumed> first_whole(
    const std::vector<fs::path>& checkpoints,
    Communicator& world,
    std::vector<std::string>& broken) {
  std::vector<std::int64_t> steps;
  for (const fs::path& checkpoint : checkpoints) {
    steps.push_back(step_of(checkpoint));
  }
  const std::string mine = fmt::format("{}", fmt::join(steps, ", "));
  const std::string of_first = broadcast_text(mine, "checkpoints", world);
  const std::string differs = first_text(
      mine == of_first ? ""
                       : fmt::format(
                             "rank {} finds the checkpoints of steps {}, and rank 0 those of {}: "
                             "all ranks must see the same run folder",
                             world.rank(),
                             mine.empty() ? "none" : mine,
                             of_first.empty() ? "none" : of_first),
      world);
  if (!differs.empty()) {
    throw std::runtime_error(differs);
  }
  for (const fs::path& checkpoint : checkpoints) {
    CheckpointState state;
    std::string why;
    try {
      state = open_checkpoint(checkpoint);
      expect_whole(checkpoint, state, world.rank(), world.size());
    } catch (const std::runtime_error& error) {
      why = error.what();
    }
    why = first_text(why, world);
    if (why.empty()) {
      return Resumed{checkpoint, std::move(state)};
    }
    broken.push_back(std::move(why));
  }
  return std::nullopt;
}

namespace {

// Those that `which` allows, the newest first.
std::vector<fs::path> candidates(const fs::path& run, const std::string& which) {
  std::vector<fs::path> all = checkpoints_in(run / "checkpoints");
  if (all.empty()) {
    throw std::invalid_argument(fmt::format(
        "--resume: {} has no checkpoint: the run ended before its first, or wrote none "
        "(checkpoint.keep = 0); start again with paradyse train -c {}",
        run.string(),
        (run / "config.toml").string()));
  }
  if (which == "newest") {
    return all;
  }
  std::vector<std::int64_t> steps;
  for (const fs::path& checkpoint : all) {
    steps.push_back(step_of(checkpoint));
  }
  if (which == "previous" && all.size() > 1) {
    return {all[1]};
  }
  for (const fs::path& checkpoint : all) {
    if (which == std::to_string(step_of(checkpoint))) {
      return {checkpoint};
    }
  }
  throw std::invalid_argument(fmt::format(
      "--resume-from {}: {} has the checkpoint{} of step{} {}; accepted is newest, previous or one "
      "of these numbers",
      which,
      run.string(),
      all.size() == 1 ? "" : "s",
      all.size() == 1 ? "" : "s",
      fmt::join(steps, ", ")));
}

}  // namespace

Resumed resumed(
    const fs::path& run,
    const std::string& which,
    int ranks,
    Backend& backend,
    const std::function<void(const std::string& line)>& note) {
  const std::vector<fs::path> wanted = candidates(run, which);
  std::optional<Resumed> found;
  std::vector<std::string> broken;
  backend.run(ranks, [&](Communicators& communicators) {
    std::vector<std::string> of_rank;
    std::optional<Resumed> whole = first_whole(wanted, communicators.world(), of_rank);
    if (communicators.rank() == backend.first_rank()) {
      found = std::move(whole);
      broken = std::move(of_rank);
    }
  });
  if (!found) {
    throw std::invalid_argument(fmt::format(
        "--resume: {}; {}",
        fmt::join(broken, "; "),
        which == "newest" ? "no checkpoint of the run is whole: restore the file, or start again"
                          : "restore the file, or resume from another one with --resume-from"));
  }
  for (const std::string& why : broken) {
    note(why);
  }
  if (!broken.empty()) {
    note("the run resumes from the one before: " + found->checkpoint.string());
  }
  return *std::move(found);
}

std::vector<std::string> settings_of(const CheckpointState& state) {
  std::vector<std::string> settings;
  settings.reserve(state.configuration.size());
  for (const auto& [key, value] : state.configuration) {
    settings.push_back(fmt::format("{}={}", key, value));
  }
  return settings;
}

std::vector<std::string> saved_configuration(const fs::path& run) {
  for (const fs::path& checkpoint : checkpoints_in(run / "checkpoints")) {
    try {
      return settings_of(open_checkpoint(checkpoint));
    } catch (const std::runtime_error&) {  // said where the run resumes
      continue;
    }
  }
  return {};
}

void expect_steps(const std::string& key, std::int64_t steps, const Resumed& from) {
  if (steps < from.state.step) {
    throw std::invalid_argument(fmt::format(
        "{} is {}, but the run has done {}; give as many or more", key, steps, from.state.step));
  }
}

std::vector<std::string> expect_same_run(const LoadedConfig& now, const Resumed& from, bool again) {
  const CheckpointState& state = from.state;
  const RunConfig& config = now.config;
  const std::vector<ConfigKey> keys = config_keys();
  std::vector<std::string> changes;
  const fs::path run = from.checkpoint.parent_path().parent_path();
  const std::string file = (run / "config.toml").string();
  const bool by_its_file = std::ranges::any_of(
      now.entries, [&](const ConfigEntry& entry) { return entry.origin.starts_with(file + ":"); });
  for (const ConfigEntry& entry : now.entries) {
    const auto before = state.configuration.find(entry.key);
    if (before == state.configuration.end()) {
      continue;
    }
    const bool is_same = before->second == entry.value;
    if (entry.key == "optimizer.path") {
      const bool is_asked_for = entry.origin == "--set" && !again;
      // A command that starts the run again names what it began with, which may be gone by now.
      std::error_code error;
      const bool began_with = again && before->second != toml_text(std::string()) &&
                              !fs::exists(config.optimizer.path, error);
      if (is_asked_for || !(is_same || began_with)) {
        throw std::invalid_argument(fmt::format(
            "{} is {} ({}): only a new run begins with the moments of another program, and this "
            "one has its own in {}; leave it out, or start a new run from its weights with --model "
            "{}",
            entry.key,
            entry.value,
            entry.origin,
            from.checkpoint.string(),
            (run / "model").string()));
      }
    }
    if (is_same) {
      continue;
    }
    if (by_its_file && entry.origin == "default") {  // a run's file has all keys
      throw std::invalid_argument(fmt::format(
          "{}: does not have {}, which is {} in {}: the file was cut short. Restore it, or delete "
          "it: it is then written again from the checkpoint",
          file,
          entry.key,
          before->second,
          from.checkpoint.string()));
    }
    const bool is_moved = entry.key.starts_with("output.") && is_its_place(config, run);
    const bool is_fixed = std::ranges::find(keys, entry.key, &ConfigKey::key)->fixed;
    if (is_fixed && !is_moved && entry.key != "optimizer.path") {
      throw std::invalid_argument(fmt::format(
          "{} is {} ({}), but the run has {}: this key cannot change in a run; leave it, or start "
          "a new run from its weights with --model {}",
          entry.key,
          entry.value,
          entry.origin,
          before->second,
          (run / "model").string()));
    }
    changes.push_back(fmt::format("{} = {} (was {})", entry.key, entry.value, before->second));
  }
  if (config.train.epochs == 0) {
    expect_steps("train.steps", config.train.steps, from);
  }
  for (const ConfigEntry& entry : now.entries) {
    const auto before = state.configuration.find(entry.key);
    const bool length = entry.key == "train.steps" || entry.key == "train.epochs";
    if (config.data.order == "curriculum" && length && before != state.configuration.end() &&
        before->second != entry.value) {
      throw std::invalid_argument(fmt::format(
          "{} is {}, but the run was for {}: a curriculum is sorted for its number of steps, which "
          "cannot change",
          entry.key,
          entry.value,
          before->second));
    }
  }
  return changes;
}

void expect_same_model(const std::string& fingerprint, const Resumed& from) {
  if (fingerprint != from.state.model_sha256) {
    throw std::invalid_argument(
        "model.path: has another shape than the model of " + from.checkpoint.string() +
        "; restore the model of the run, or give its new place with --model");
  }
}

std::map<std::string, std::string> dropout_rates(const Model& model) {
  std::map<std::string, std::string> rates;
  for (const ModelPart& one : model.parts) {
    const Part& part = *one.part;
    for (const auto& [name, rate] :
         {std::pair{"dropout", part.shape.dropout},
          std::pair{"attention_dropout", part.shape.attention_dropout}}) {
      if (rate > 0) {
        rates.emplace(fmt::format("{} of {}", name, part.name), fmt::format("{}", rate));
      }
    }
  }
  return rates;
}

void expect_same_dropout(const std::map<std::string, std::string>& now, const Resumed& from) {
  if (!from.state.dropout) {
    return;
  }
  const std::map<std::string, std::string>& before = *from.state.dropout;
  const auto rate = [](const std::map<std::string, std::string>& rates, const std::string& what) {
    const auto found = rates.find(what);
    return found == rates.end() ? std::string("0") : found->second;
  };
  std::map<std::string, std::string> all = now;
  all.insert(before.begin(), before.end());
  for (const auto& [what, value] : all) {
    if (rate(now, what) != rate(before, what)) {
      throw std::invalid_argument(fmt::format(
          "model.path: the {} is {}, but {} was trained with {}: a rate cannot change in a run; "
          "restore the model's configuration, or give its new place with --model",
          what,
          rate(now, what),
          from.checkpoint.string(),
          rate(before, what)));
    }
  }
}

void expect_same_frozen(
    const std::string& fingerprint, const std::string& path, const Resumed& from) {
  if (fingerprint != from.state.frozen) {
    throw std::invalid_argument(fmt::format(
        "model.path: {} has other weights ({}) than the adapters of {} were trained beside ({}); "
        "restore them, or give their new place with --model",
        path,
        fingerprint,
        from.checkpoint.string(),
        from.state.frozen));
  }
}

void expect_same_data(const DataPosition& now, const std::string& path, const Resumed& from) {
  const DataPosition& before = from.state.data;
  if (now.fingerprint != before.fingerprint) {
    throw std::invalid_argument(fmt::format(
        "data.path: {} has other documents ({}, XXH64 {}) than {} was trained on ({}, XXH64 {}); "
        "restore them, or give their new place with --data",
        path,
        now.documents,
        now.fingerprint,
        from.checkpoint.string(),
        before.documents,
        before.fingerprint));
  }
  if (now.drawn != before.drawn || now.draws != before.draws) {
    throw std::invalid_argument(fmt::format(
        "{}: this program uses the run's documents in another order (XXH64 {} of {} documents; it "
        "was {} of {}); resume with the program that wrote it",
        from.checkpoint.string(),
        now.drawn,
        now.draws,
        before.drawn,
        before.draws));
  }
}

}  // namespace paradyse
