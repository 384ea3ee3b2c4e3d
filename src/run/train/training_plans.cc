#include "src/run/train/training_plans.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "paradyse/plan/detail/index.h"
#include "src/plan/base/text_match.h"
#include "src/plan/config/fields.h"
#include "src/plan/plan/explain.h"
#include "src/plan/search/batch/document_planner.h"
#include "src/run/memory/reading.h"
#include "src/run/train/plan_or_throw.h"
#include "src/run/train/run_folder.h"
#include "src/run/train/run_inputs.h"

namespace paradyse {
namespace {

constexpr double kNeverLate = 1e6;  // seconds

// What becomes of costs and of what was learned where a run goes on with other ranks or devices.
std::string told_of_move(
    const CheckpointState& then, const RunConfig& now, const PlanningNumbers& numbers) {
  return fmt::format(
      "the run had {} rank{} and has {} now ({}): what it learned about time and memory is "
      "discarded, and {}",
      then.ranks,
      then.ranks == 1 ? "" : "s",
      now.parallel.ranks,
      now.parallel.device,
      !numbers.costs                 ? "plans use a closed form, measured anew"
      : numbers.extrapolated.empty() ? "plans use costs that were measured for these ranks"
                                     : numbers.extrapolated);
}

// What of a run that goes on with the same ranks is not still_true(), and why; "": all is.
std::string told_of_discarded(
    const CheckpointState& then,
    const BatchPlanner::Learned& kept,
    const RunConfig& now,
    const PlanningNumbers& numbers) {
  const BatchPlanner::Learned& learned = then.learned;
  const bool time = learned.ratios != kept.ratios || learned.machine != kept.machine;
  const bool memory = learned.caps != kept.caps;
  if (!time && !memory) {
    return "";
  }
  const std::string costs = numbers.costs_fingerprint();
  return fmt::format(
      "what the run learned about {} until its checkpoint is discarded: {}",
      time && memory ? "time and memory"
      : time         ? "time"
                     : "memory",
      then.costs == costs
          ? (time ? std::string("costs.correct is false") : "") + (time && memory ? ", and " : "") +
                (memory ? "parallel.memory_per_rank is " + now.parallel.memory_per_rank : "")
      : costs.empty()      ? "it was learned with measured costs, and plans use a closed form now"
      : then.costs.empty() ? "it was learned with a closed form, and plans use measured costs now"
                           : "it was learned with other measured costs");
}

// Keys of [parallel] that say how ranks run, whoever plans; all others, and [costs], are planners'.
constexpr const char* kOfRanks[] = {
    "parallel.ranks",
    "parallel.memory_per_rank",
    "parallel.weight_domain",
    "parallel.timeout_seconds",
    "parallel.backend",
    "parallel.device",
    "parallel.rendezvous",
    "parallel.interface"};

// Of a run that goes on by given plans: what was changed of its configuration and does not change
// them.
std::string told_of_given(const LoadedConfig& now, const CheckpointState& then) {
  std::vector<std::string> keys;
  for (const ConfigEntry& entry : now.entries) {
    const std::string section = section_of(entry.key);
    const bool plans =
        section == "costs" ||
        (section == "parallel" && std::ranges::find(kOfRanks, entry.key) == std::end(kOfRanks));
    const auto was = then.configuration.find(entry.key);
    if (plans && was != then.configuration.end() && was->second != entry.value) {
      keys.push_back(entry.key);
    }
  }
  return keys.empty() ? "" : "; " + joined(keys, ", ") + " cannot change them";
}

}  // namespace

BatchPlanner::Learned still_true(
    const CheckpointState& then, const LoadedConfig& now, const PlanningNumbers& numbers) {
  if (has_moved(then, now.config)) {
    return {};
  }
  if (then.costs != numbers.costs_fingerprint()) {  // the speeds of ranks are in no costs
    return {.speeds = then.learned.speeds, .slow_since = then.learned.slow_since};
  }
  BatchPlanner::Learned learned = then.learned;
  if (!now.config.costs.correct) {
    learned.ratios.clear();
    learned.machine = 1;
  }
  const std::string memory = "parallel.memory_per_rank";
  const auto was = then.configuration.find(memory);
  for (const ConfigEntry& entry : now.entries) {
    if (entry.key == memory && (was == then.configuration.end() || was->second != entry.value)) {
      learned.caps.clear();
    }
  }
  return learned;
}

std::string why_not_repeatable(
    const RunConfig& config, const PlanningNumbers& numbers, const TrainFrom& from) {
  const char* const remedy =
      "; with costs.correct = false, or --replay RUN, every start gives the same plans";
  if (config.parallel.device != "cpu") {
    return "GPU kernels add in no fixed order";
  }
  if (!from.replay.empty() || !from.plan.empty() || !config.costs.correct) {
    return "";
  }
  return std::string(
             numbers.costs ? "measured step times correct the plans"
                           : "plans use speeds that are measured at the start") +
         remedy;
}

std::unique_ptr<StepPlans> training_plans(
    const LoadedConfig& loaded,
    const TrainHooks& hooks,
    const TrainingInputs& inputs,
    const PlanningNumbers& numbers,
    const TrainFrom& from,
    bool leads) {
  const RunConfig& config = loaded.config;
  const std::optional<Costs>& costs = numbers.costs;
  const auto note = [&hooks](const std::string& line) {
    if (hooks.note) {
      hooks.note(line);
    }
  };
  const Model& model = inputs.model.model;
  const bool grid = model.of_samples();
  auto plans = std::make_unique<StepPlans>(
      planners_of(
          planning_task(config, model, /*training=*/true, numbers),
          hooks.planner ? hooks.planner : batch_planner),
      StepPlans::Options{
          .steps = inputs.steps.size(),
          .batch = [&inputs](std::size_t step) { return inputs.batch(step); },
          .replay = from.replay,
          .plan = from.plan,
          .correct = costs && config.costs.correct,
          // else which plans are late would go by a clock
          .planning_seconds = config.costs.correct ? config.parallel.planning_seconds : kNeverLate,
          .decided = leads && inputs.from && !inputs.moved(config)
                         ? plans_were_late(from.resume, inputs.first_step(), note)
                         : std::map<std::size_t, bool>(),
          .note = note});
  if (!leads) {
    return plans;
  }
  if (inputs.moved(config)) {
    note(told_of_move(inputs.from->state, config, numbers));
  }
  const bool given = !from.replay.empty() || !from.plan.empty();
  note(
      given ? "plans are those that were given" +
                  (inputs.from ? told_of_given(loaded, inputs.from->state) : "")
      : costs ? fmt::format(
                    "plans use the {} model of measured costs{}",
                    grid ? "structured" : costs->best,
                    config.costs.correct ? ", corrected by measured step times" : "")
              : fmt::format(
                    "plans use a closed form{}; measured costs are more accurate: run paradyse "
                    "profile, then paradyse fit, with this configuration",
                    config.costs.correct ? "" : " with nominal speeds"));
  const std::string varies = why_not_repeatable(config, numbers, from);
  note("repeatable: " + (varies.empty() ? std::string("yes") : "no, " + varies));
  auto* const documents = dynamic_cast<DocumentPlanner*>(&plans->known());
  if (hooks.planned && documents != nullptr && !given) {
    hooks.planned(documents->documents().table(inputs.typical_lengths()));
  }
  // What fits not even by itself, or is no plan of this run, shows before the first step.
  if (plans->given() && std::cmp_less(inputs.first_step(), inputs.steps.size())) {
    reading([&] {
      const Plan first = plans->take(idx(inputs.first_step())).plan;
      if (const std::string tiles = note_of_tiles(first, model.tiles()); !grid && !tiles.empty()) {
        note("note: " + tiles);
      }
      plans->take(inputs.steps.size() - 1);
    });
  } else if (!plans->given()) {
    for (const BatchSizes& alone : inputs.largest()) {
      plan_or_throw(plans->planner(), alone);
    }
  }
  if (inputs.from) {
    const CheckpointState& then = inputs.from->state;
    const BatchPlanner::Learned kept = still_true(then, loaded, numbers);
    const std::string discarded = told_of_discarded(then, kept, config, numbers);
    if (!discarded.empty() && !given && !inputs.moved(config)) {
      note(discarded);
    }
    plans->learn(kept);
  }
  return plans;
}

}  // namespace paradyse
