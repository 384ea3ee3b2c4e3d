#include "src/plan/profile/run_costs.h"

#include <algorithm>
#include <stdexcept>
#include <system_error>
#include <utility>

#include <fmt/format.h>

namespace paradyse {
namespace {

std::filesystem::path folder_of(const RunConfig& config) {
  return std::filesystem::path(config.output.folder) / "costs";
}

std::string stem(const ProfileHeader& header) {
  return header.model + "-" + header.model_sha256.substr(0, 8) + "-" +
         header.machine_sha256.substr(0, 8) + "-" + std::to_string(header.ranks) + header.backend +
         "-" + header.device + "-" + to_string(header.dtype);
}

// Layers are alike, so their number may differ.
void expect_same(const std::filesystem::path& file, ProfileHeader costs, const ProfileHeader& run) {
  costs.layers = run.layers;
  if (const auto differs = first_difference(costs, run)) {
    throw std::invalid_argument(
        file.string() + ": " + differs->field + " is " + differs->there + ", but this run has " +
        differs->here +
        "; measure it with paradyse profile and paradyse fit, or set costs.file = \"none\"");
  }
}

}  // namespace

std::filesystem::path profile_file(const RunConfig& config, const ProfileHeader& header) {
  return folder_of(config) / (stem(header) + ".profile.jsonl");
}

std::filesystem::path costs_file(const RunConfig& config, const ProfileHeader& header) {
  return folder_of(config) / (stem(header) + ".costs.json");
}

std::vector<std::filesystem::path> costs_files(
    const RunConfig& config, const ProfileHeader& header, const FormerCosts& former) {
  std::vector<std::filesystem::path> files = {costs_file(config, header)};
  for (const std::filesystem::path& folder : former.folders) {
    const std::filesystem::path file = folder / files.front().filename();
    std::error_code error;
    const bool known = std::ranges::any_of(files, [&](const std::filesystem::path& other) {
      return std::filesystem::absolute(other).lexically_normal() ==
                 std::filesystem::absolute(file).lexically_normal() ||
             std::filesystem::equivalent(other, file, error);
    });
    if (!known) {
      files.push_back(file);
    }
  }
  return files;
}

std::optional<FoundCosts> costs_of(
    const RunConfig& config, const ProfileHeader& header, const FormerCosts& former) {
  const std::string& named = config.costs.file;
  if (named == "none") {
    return std::nullopt;
  }
  std::optional<FoundCosts> found;
  if (named != "auto" && named != "measure") {
    found = {.costs = read_costs(named), .file = named};
  } else {
    for (const std::filesystem::path& file : costs_files(config, header, former)) {
      std::error_code error;
      if (!std::filesystem::exists(file, error)) {
        continue;
      }
      FoundCosts one{.costs = read_costs(file), .file = file};
      const bool its = fingerprint(one.costs) == former.fingerprint;
      if (!found || its) {
        found = std::move(one);
      }
      if (its) {
        break;
      }
    }
  }
  if (found) {
    expect_same(found->file, found->costs.header, header);
  }
  return found;
}

namespace {

constexpr const char* kStructured = "structured";

}  // namespace

std::string note_of_other(
    const std::filesystem::path& file,
    const Costs& costs,
    ProfileHeader asked,
    const Model& model) {
  const ProfileHeader& there = costs.header;
  asked.layers = there.layers;
  asked.backend = there.backend;
  asked.device = there.device;
  asked.cores = there.cores;
  std::string difference = difference_of(there, asked);
  if (difference.empty()) {
    return "";
  }
  const char* remedy =
      "measure this case with paradyse profile and paradyse fit, or leave the costs out";
  ProfileHeader typed = there;
  typed.dtype = asked.dtype;
  if (typed != there) {
    throw std::invalid_argument(fmt::format(
        "{}: {}: seconds of one data type do not predict another; {}",
        file.string(),
        difference_of(there, typed),
        remedy));
  }
  ProfileHeader elsewhere = asked;
  elsewhere.machine = there.machine;
  elsewhere.machine_sha256 = there.machine_sha256;
  const std::string matters = difference_of(there, elsewhere);
  const std::string goes_by = model.of_samples() ? kStructured : costs.best;  // as go_by()
  if (!matters.empty() && goes_by != kStructured && !costs.model().by_work()) {
    throw std::invalid_argument(fmt::format(
        "{}: {}: its {} model predicts only what was measured; {}",
        file.string(),
        matters,
        goes_by,
        remedy));
  }
  if (!matters.empty() && matters != difference) {
    difference += ", " + matters;
  }
  return file.string() + ": " + difference + "; the " + goes_by +
         " model extrapolates its seconds " +
         "to this case, which may be far off: paradyse profile and paradyse fit measure it";
}

void go_by(const Costs& costs, PlanningTask& task) {
  // the other models know lengths, and samples have several dims
  task.seconds = task.model.of_samples() ? costs.structured : costs.model("");
  task.by_work = costs.structured;
  task.memory_overhead = costs.memory_overhead;
  task.machine.cores = costs.header.cores;
  Precision precision = task.precision;
  precision.optimizer_on_host = false;  // an update touches them wherever they are
  precision.snapshot = false;           // and no snapshot
  task.step_seconds =
      costs.update_seconds(most_static_bytes(task.model, task.domain(), precision, task.keeps()));
}

}  // namespace paradyse
