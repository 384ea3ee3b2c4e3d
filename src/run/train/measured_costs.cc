#include "src/run/train/measured_costs.h"

#include <algorithm>
#include <filesystem>
#include <stdexcept>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "paradyse/run/accountant.h"
#include "src/run/device/device.h"
#include "src/run/execute/gather.h"
#include "src/run/measure/links.h"
#include "src/run/train/agreement.h"

namespace paradyse {
namespace {

bool by_their_place(const RunConfig& config) {
  return config.costs.file == "auto" || config.costs.file == "measure";
}

// Of a run that goes on.
FormerCosts former_costs(const TrainingInputs& inputs) {
  FormerCosts former;
  if (!inputs.from || inputs.from->state.costs.empty()) {
    return former;
  }
  const CheckpointState& state = inputs.from->state;
  former.fingerprint = state.costs;
  if (!state.costs_file.empty()) {
    former.folders.push_back(std::filesystem::path(state.costs_file).parent_path());
  }
  if (const auto folder = state.configuration.find("output.folder");
      folder != state.configuration.end()) {
    const RunConfig then = load_config("", {"output.folder=" + folder->second}).config;
    former.folders.push_back(std::filesystem::path(then.output.folder) / "costs");
  }
  return former;
}

// What became of the costs that a run went by until its checkpoint; "": nothing did.
std::string told_of_costs(
    const RunConfig& config,
    const ProfileHeader& header,
    const FormerCosts& former,
    const std::optional<FoundCosts>& found) {
  if (former.fingerprint.empty() || !by_their_place(config)) {
    return "";
  }
  const std::vector<std::filesystem::path> files = costs_files(config, header, former);
  if (found) {
    return found->file.parent_path() == files.front().parent_path()  // maybe of other ranks
               ? ""
               : fmt::format(
                     "measured costs are those of {}, where the run had them",
                     found->file.string());
  }
  std::vector<std::string> folders;
  for (const std::filesystem::path& file : files) {
    folders.push_back(file.parent_path().string());
  }
  return fmt::format(
      "the run went by measured costs until now, and there are none for this model, machine and "
      "number of ranks ({} in {}): from here on it goes by a closed form. Copy the file there, "
      "name "
      "it with --set costs.file=FILE, or measure them anew with paradyse profile and paradyse fit",
      files.front().filename().string(),
      fmt::join(folders, " or "));
}

// The word of the process that leads.
bool agreed(bool mine, int ranks, Backend& backend) {
  bool result = mine;
  backend.run(ranks, [&](Communicators& communicators) {
    const std::int64_t word =
        broadcast_number(mine ? 1 : 0, "costs are there", communicators.world());
    if (communicators.rank() == backend.first_rank()) {
      result = word != 0;
    }
  });
  return result;
}

}  // namespace

ProfileRequest profile_request(
    const RunConfig& config,
    const ModelFolder& model,
    std::int64_t longest,
    const BatchSizes& samples,
    Backend& backend) {
  ProfileRequest request{
      .model = model.model,
      .ranks = static_cast<int>(config.parallel.ranks),
      .dtype = config.train.dtype,
      .optimizer_on_host = config.optimizer.offload,
      .memory_per_rank = memory_of(config),
      .seconds = config.costs.profile_seconds,
      .backend = {std::shared_ptr<Backend>(), &backend},  // it lives as long as the run
      .device = device_named(config.parallel.device)};
  if (model.model.of_samples()) {
    request.sizes = profile_sizes(model.model, samples);
  } else {
    request.lengths = profile_lengths(longest);
  }
  return request;
}

std::optional<FoundCosts> costs_of_other_ranks(
    const RunConfig& config,
    const Model& model,
    const ProfileHeader& header,
    int ranks,
    const FormerCosts& former,
    std::string& how) {
  const std::string& named = config.costs.file;
  if (named == "none") {
    return std::nullopt;
  }
  ProfileHeader before = header;
  before.ranks = ranks;
  std::vector<std::filesystem::path> files = {named};
  if (by_their_place(config)) {
    files = costs_files(config, before, former);
  }
  const auto file = std::ranges::find_if(files, [](const std::filesystem::path& one) {
    std::error_code error;
    return std::filesystem::exists(one, error);
  });
  if (file == files.end()) {
    return std::nullopt;
  }
  FoundCosts found{.costs = read_costs(*file), .file = *file};
  try {
    how = note_of_other(found.file, found.costs, header, model);
  } catch (const std::invalid_argument&) {  // they predict only what was measured
    return std::nullopt;
  }
  return found;
}

std::optional<FoundCosts> measured_costs(
    const RunConfig& config,
    ProfileRequest request,
    const TrainHooks& hooks,
    int ranks_before,
    const FormerCosts& former) {
  const auto note = [&](const std::string& line) {
    if (hooks.note) {
      hooks.note(line);
    }
  };
  Backend& backend = *request.backend;
  const ProfileHeader header = profile_header(request);
  const bool named = !by_their_place(config) && config.costs.file != "none";
  std::optional<FoundCosts> there;
  if (!named || ranks_before == 0 || read_costs(config.costs.file).header.ranks != ranks_before) {
    there = costs_of(config, header, former);
  }
  expect_same_costs(there ? fingerprint(there->costs) : "", request.ranks, backend);
  if (config.costs.file != "measure" || agreed(there.has_value(), request.ranks, backend)) {
    return there;
  }
  request.file = profile_file(config, header);
  request.progress = hooks.profiling;
  request.stop = hooks.stop;
  if (backend.leads()) {
    std::filesystem::create_directories(request.file.parent_path());
    note(fmt::format(
        "measuring the strategies on this machine, once, for {:.0f} s (costs.profile_seconds; "
        "costs.file = \"none\" skips this)",
        config.costs.profile_seconds));
  }
  const Profile measured = profile(request);
  if (!backend.leads()) {
    return std::nullopt;
  }
  try {
    write_costs(fit(measured), costs_file(config, header));
  } catch (const std::invalid_argument& error) {  // too little time, or stopped
    note(fmt::format("{}; until then plans use a closed form", error.what()));
    return std::nullopt;
  }
  note("the measurements are in " + costs_file(config, header).string());
  return costs_of(config, header);
}

PlanningNumbers planning_numbers(
    const RunConfig& config,
    const TrainingInputs& inputs,
    Backend& backend,
    const TrainHooks& hooks) {
  PlanningNumbers numbers;
  const bool moved = inputs.moved(config);
  const auto ranks = static_cast<int>(config.parallel.ranks);
  // That costs were measured on before the run went on with other ranks.  Where it went by a closed
  // form since, since they do not extrapolate, a named file says so still.
  const bool named = !by_their_place(config) && config.costs.file != "none";
  const int costs_of_ranks = !inputs.from                         ? ranks
                             : inputs.from->state.costs_ranks > 0 ? inputs.from->state.costs_ranks
                             : named ? read_costs(config.costs.file).header.ranks
                                     : inputs.from->state.ranks;
  const int ranks_before = costs_of_ranks != ranks ? costs_of_ranks : 0;
  numbers.machine = inputs.from && !moved ? inputs.from->state.machine
                                          : machine_for(config, inputs.model, backend);
  const ProfileRequest request = profile_request(
      config, inputs.model, inputs.data.longest(), inputs.data.sample_sizes(), backend);
  const FormerCosts former = former_costs(inputs);
  std::optional<FoundCosts> found = measured_costs(config, request, hooks, ranks_before, former);
  if (ranks_before > 0 && config.costs.file != "measure") {
    std::optional<FoundCosts> before;
    if (!found) {
      before = costs_of_other_ranks(
          config,
          inputs.model.model,
          profile_header(request),
          ranks_before,
          former,
          numbers.extrapolated);
    }
    expect_same_costs(before ? fingerprint(before->costs) : "", ranks, backend);
    if (before) {
      found = std::move(before);
    }
  }
  const bool plans_are_made = !inputs.from || moved || inputs.from->state.given_plans.empty();
  const std::string told = told_of_costs(config, profile_header(request), former, found);
  if (!told.empty() && plans_are_made && backend.leads() && hooks.note) {
    hooks.note(told);
  }
  if (found) {
    numbers.costs_file = std::filesystem::absolute(found->file).lexically_normal().string();
    numbers.costs = std::move(found->costs);
  }
  numbers.ranks_per_node = backend.ranks_per_node(ranks);
  if (config.costs.correct) {  // else plans would go by a clock
    numbers.links = measure_links(ranks, backend, device_named(config.parallel.device));
  }
  return numbers;
}

}  // namespace paradyse
