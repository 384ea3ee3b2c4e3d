#include "src/run/train/measured_costs.h"

#include <filesystem>
#include <stdexcept>

#include <fmt/format.h>

#include "paradyse/run/accountant.h"
#include "src/plan/profile/run_costs.h"
#include "src/run/device/device.h"
#include "src/run/execute/gather.h"
#include "src/run/measure/links.h"
#include "src/run/train/agreement.h"

namespace paradyse {
namespace {

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

std::optional<Costs> costs_of_other_ranks(
    const RunConfig& config, const ProfileHeader& header, int ranks, std::string& how) {
  const std::string& named = config.costs.file;
  if (named == "none") {
    return std::nullopt;
  }
  ProfileHeader before = header;
  before.ranks = ranks;
  const bool ours = named == "auto" || named == "measure";
  const std::filesystem::path file =
      ours ? costs_file(config, before) : std::filesystem::path(named);
  std::error_code error;
  if (!std::filesystem::exists(file, error)) {
    return std::nullopt;
  }
  Costs costs = read_costs(file);
  try {
    how = note_of_other(file, costs, header);
  } catch (const std::invalid_argument&) {  // they predict only what was measured
    return std::nullopt;
  }
  return costs;
}

std::optional<Costs> measured_costs(
    const RunConfig& config, ProfileRequest request, const TrainHooks& hooks, int ranks_before) {
  const auto note = [&](const std::string& line) {
    if (hooks.note) {
      hooks.note(line);
    }
  };
  Backend& backend = *request.backend;
  const ProfileHeader header = profile_header(request);
  const bool named =
      config.costs.file != "auto" && config.costs.file != "measure" && config.costs.file != "none";
  std::optional<Costs> there;
  if (!named || ranks_before == 0 || read_costs(config.costs.file).header.ranks != ranks_before) {
    there = costs_of(config, header);
  }
  expect_same_costs(there ? fingerprint(*there) : "", request.ranks, backend);
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
  // That costs were measured on before the run went on with other ranks.
  const int costs_of_ranks = !inputs.from                         ? ranks
                             : inputs.from->state.costs_ranks > 0 ? inputs.from->state.costs_ranks
                                                                  : inputs.from->state.ranks;
  const int ranks_before = costs_of_ranks != ranks ? costs_of_ranks : 0;
  numbers.machine = inputs.from && !moved ? inputs.from->state.machine
                                          : machine_for(config, inputs.model, backend);
  const GridData* const samples = inputs.data.samples();
  const ProfileRequest request = profile_request(
      config,
      inputs.model,
      samples != nullptr ? 0 : inputs.typical_lengths().back(),
      samples != nullptr ? samples->sizes() : BatchSizes(),
      backend);
  numbers.costs = measured_costs(config, request, hooks, ranks_before);
  if (ranks_before > 0 && config.costs.file != "measure") {
    std::optional<Costs> before;
    if (!numbers.costs) {
      before =
          costs_of_other_ranks(config, profile_header(request), ranks_before, numbers.extrapolated);
    }
    expect_same_costs(before ? fingerprint(*before) : "", ranks, backend);
    if (before) {
      numbers.costs = std::move(before);
    }
  }
  numbers.ranks_per_node = backend.ranks_per_node(ranks);
  if (config.costs.correct) {  // else plans would go by a clock
    numbers.links = measure_links(ranks, backend, device_named(config.parallel.device));
  }
  return numbers;
}

}  // namespace paradyse
