#include "paradyse/run_costs.h"

#include <algorithm>
#include <stdexcept>
#include <system_error>

namespace paradyse {
namespace {

std::filesystem::path stem(const RunConfig& config, const ProfileHeader& header) {
  return std::filesystem::path(config.output.folder) / "costs" /
         (header.model + "-" + header.model_sha256.substr(0, 8) + "-" +
          header.machine_sha256.substr(0, 8) + "-" + std::to_string(header.ranks) + header.backend +
          "-" + header.device + "-" + header.dtype);
}

// Layers are alike, so their number may differ.
void expect_same(const std::filesystem::path& file, ProfileHeader costs, const ProfileHeader& run) {
  costs.layers = run.layers;
  if (const auto differs = first_difference(costs, run)) {
    throw std::invalid_argument(
        file.string() + ": " + differs->field + " is " + differs->there +
        ", and that of this run is " + differs->here +
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

void go_by(const Costs& costs, PlanningTask& task) {
  task.seconds = costs.model("");
  task.memory_overhead = costs.memory_overhead;
  task.machine.cores = costs.header.cores;
  std::int64_t most = 0;
  for (int r = 0; r < task.ranks; ++r) {
    most = std::max(most, stored_elements(task.model, task.ranks, r));
  }
  task.step_seconds =
      costs.step_seconds +
      costs.optimizer_seconds_per_byte * static_cast<double>(most * task.static_bytes_per_element);
}

}  // namespace paradyse
