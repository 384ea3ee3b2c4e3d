#include "src/run/train/measured_costs.h"

#include <filesystem>
#include <stdexcept>

#include <fmt/format.h>

#include "paradyse/run/accountant.h"
#include "src/plan/profile/run_costs.h"
#include "src/run/execute/gather.h"
#include "src/run/measure/profiler.h"
#include "src/run/train/run_inputs.h"

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

std::optional<Costs> measured_costs(
    const RunConfig& config,
    const ModelShape& model,
    std::int64_t longest,
    Backend& backend,
    c10::Device device,
    const TrainHooks& hooks) {
  const auto note = [&](const std::string& line) {
    if (hooks.note) {
      hooks.note(line);
    }
  };
  const auto ranks = static_cast<int>(config.parallel.ranks);
  const ProfileHeader header = profile_header(model, ranks, config.train.dtype, backend, device);
  std::optional<Costs> there = costs_of(config, header);
  if (config.costs.file != "measure" || agreed(there.has_value(), ranks, backend)) {
    return there;
  }
  const std::filesystem::path profile_path = profile_file(config, header);
  if (backend.leads()) {
    std::filesystem::create_directories(profile_path.parent_path());
    note(fmt::format(
        "measuring what strategies take here, once, for {:.0f} s (costs.profile_seconds; "
        "costs.file = \"none\" does without)",
        config.costs.profile_seconds));
  }
  const Profile measured = profile(
      {.model = model,
       .ranks = ranks,
       .lengths = profile_lengths(longest),
       .dtype = config.train.dtype,
       .moments_on_host = config.optimizer.offload,
       .memory_per_rank = parse_bytes(config.parallel.memory_per_rank),
       .seconds = config.costs.profile_seconds,
       .file = profile_path,
       .backend = {std::shared_ptr<Backend>(), &backend},  // it lives as long as the run
       .device = device,
       .progress = hooks.profiling,
       .stop = hooks.stop});
  if (!backend.leads()) {
    return std::nullopt;
  }
  try {
    write_costs(fit(measured), costs_file(config, header));
  } catch (const std::invalid_argument& error) {  // too little time, or stopped
    note(fmt::format("{}; until then plans go by a closed form", error.what()));
    return std::nullopt;
  }
  note("what was measured is in " + costs_file(config, header).string());
  return costs_of(config, header);
}

std::string PlanningNumbers::costs_fingerprint() const { return costs ? fingerprint(*costs) : ""; }

PlanningNumbers planning_numbers(
    const RunConfig& config,
    const TrainingInputs& inputs,
    Backend& backend,
    const TrainHooks& hooks) {
  PlanningNumbers numbers;
  numbers.machine =
      inputs.from ? inputs.from->state.machine : machine_for(config, inputs.model, backend);
  if (!inputs.model.grid) {
    numbers.costs = measured_costs(
        config, inputs.model.shape, inputs.typical_lengths().back(), backend, inputs.device, hooks);
  }
  return numbers;
}

}  // namespace paradyse
