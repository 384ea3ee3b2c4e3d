#include "src/plan/profile/run_costs.h"

#include <algorithm>
#include <stdexcept>
#include <system_error>

#include <fmt/format.h>

namespace paradyse {
namespace {

std::filesystem::path stem(const RunConfig& config, const ProfileHeader& header) {
  return std::filesystem::path(config.output.folder) / "costs" /
         (header.model + "-" + header.model_sha256.substr(0, 8) + "-" +
          header.machine_sha256.substr(0, 8) + "-" + std::to_string(header.ranks) + header.backend +
          "-" + header.device + "-" + to_string(header.dtype));
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
  return stem(config, header).string() + ".profile.jsonl";
}

std::filesystem::path costs_file(const RunConfig& config, const ProfileHeader& header) {
  return stem(config, header).string() + ".costs.json";
}

std::optional<Costs> costs_of(const RunConfig& config, const ProfileHeader& header) {
  const std::string& named = config.costs.file;
  if (named == "none") {
    return std::nullopt;
  }
  const bool ours = named == "auto" || named == "measure";
  const std::filesystem::path file =
      ours ? costs_file(config, header) : std::filesystem::path(named);
  std::error_code error;
  if (ours && !std::filesystem::exists(file, error)) {
    return std::nullopt;
  }
  Costs costs = read_costs(file);
  expect_same(file, costs.header, header);
  return costs;
}

std::string note_of_other(
    const std::filesystem::path& file, const Costs& costs, ProfileHeader asked) {
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
  if (!matters.empty() && !costs.model().by_work()) {
    throw std::invalid_argument(fmt::format(
        "{}: {}: its {} model predicts only what was measured; {}",
        file.string(),
        matters,
        costs.best,
        remedy));
  }
  if (!matters.empty() && matters != difference) {
    difference += ", " + matters;
  }
  return file.string() + ": " + difference + "; the " + costs.best +
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
