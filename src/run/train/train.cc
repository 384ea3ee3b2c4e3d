#include "paradyse/run/train.h"

#include <iterator>
#include <limits>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "src/plan/base/bytes_text.h"
#include "src/plan/base/disk_file.h"
#include "src/plan/search/batch/document_planner.h"
#include "src/plan/search/layouts/sample_planner.h"
#include "src/run/execute/trace.h"
#include "src/run/train/kept_plans.h"
#include "src/run/train/measured_costs.h"
#include "src/run/train/rank_training.h"
#include "src/run/train/run_inputs.h"
#include "src/run/train/run_record.h"
#include "src/run/train/static_plans.h"
#include "src/run/train/training_inputs.h"
#include "src/run/train/training_plans.h"
#include "src/run/train/training_run.h"
#include "src/run/train/weight_domain.h"

namespace paradyse {
namespace {

// Bytes that the trace may take; 0: any.
std::int64_t trace_limit(const RunConfig& config) {
  try {
    return parse_bytes(config.output.trace_limit);
  } catch (const std::invalid_argument& error) {
    throw std::invalid_argument(std::string("output.trace_limit: ") + error.what());
  }
}

// Nothing, and a note of it, where no strategy has room for all documents.
std::optional<StaticPlans> static_plans_of(
    const TrainingInputs& inputs, const PlanningTask& task, const RunRecord& record) {
  StaticPlans plans(task, inputs.largest(/*evaluated=*/false));
  if (!plans.empty()) {
    return plans;
  }
  record.note(fmt::format(
      "train.compare: no step is compared, since no single strategy has room for the longest "
      "{} ({} {}); give more memory with parallel.memory_per_rank",
      task.model.of_samples() ? "sample" : "document",
      inputs.longest(),
      task.model.of_samples() ? "rows" : "tokens"));
  return std::nullopt;
}

// How long the run is by its data.
std::string epochs_line(const RunConfig& config, const TrainingInputs& inputs) {
  std::int64_t last = 0;  // tokens
  for (const std::int64_t item : inputs.steps.back()) {
    last += inputs.data.length(item);
  }
  return fmt::format(
      "epochs: {} of {} documents make {} steps; the last has {} tokens",
      config.train.epochs,
      inputs.data.size(),
      inputs.steps.size(),
      last);
}

// On groups of the sizes that `named` tries, by `planner`; of one of a user's own nothing is known.
std::vector<GroupSize> sizes_alone(
    BatchPlanner& planner, const std::string& named, const TrainingInputs& inputs) {
  const std::vector<int> tried = batch_planner_row(named).sizes(planner.task().ranks);
  if (auto* const samples = dynamic_cast<SamplePlanner*>(&planner)) {
    return samples->group_sizes(tried, inputs.typical_sizes());
  }
  if (auto* const documents = dynamic_cast<DocumentPlanner*>(&planner)) {
    return group_sizes(documents->documents(), tried, inputs.typical_lengths());
  }
  return {};
}

}  // namespace

TrainSummary train(
    const LoadedConfig& given,
    const TrainHooks& hooks,
    Backend& backend,
    const TrainFrom& given_from) {
  LoadedConfig asked = with_absolute_paths(given);  // it may go on from another folder
  const std::int64_t limit = trace_limit(asked.config);
  RunRecord record(asked, hooks, backend.leads());
  TrainFrom from = given_from;
  if (!from.resume.empty()) {
    record.reopen(from.resume);  // before all else: nobody shall be at the folder
  } else {
    record.expect_room(from.starts_over);  // before what may take long
  }
  const auto note = [&](const std::string& line) {
    if (backend.leads()) {
      record.note(line);
    }
  };
  const TrainingInputs inputs = training_inputs(asked, from, backend, note);
  if (inputs.from) {
    from = with_kept_plans(
        std::move(from), *inputs.from, static_cast<int>(asked.config.parallel.ranks), note);
  }
  asked.config.train.steps = std::ssize(inputs.steps);  // also of epochs
  expect_comparable(asked.config, backend, from);
  if (backend.leads()) {
    for (const std::string& line : inputs.data.lines("data")) {
      record.note(line);
    }
    if (inputs.evaluation) {
      const bool held_out = asked.config.data.held_out > 0;
      for (const std::string& line :
           inputs.evaluation->lines(held_out ? "held out" : "evaluation data")) {
        record.note(line);
      }
    }
    if (asked.config.train.epochs > 0) {
      record.note(epochs_line(asked.config, inputs));
    }
  }
  expect_same_inputs(inputs, asked.config, backend);
  LoadedConfig config = asked;  // its entries, which are written down, stay as they were
  config.config = with_budget(asked.config, backend);
  PlanningNumbers numbers = planning_numbers(config.config, inputs, backend, hooks);
  numbers.weight_domain = weight_domain(config.config, inputs, numbers, from, backend, hooks);
  const std::unique_ptr<StepPlans> plans =
      training_plans(config, hooks, inputs, numbers, from, backend.leads());
  std::optional<StaticPlans> static_plans;
  if (config.config.train.compare > 0 && backend.leads()) {
    static_plans = static_plans_of(inputs, plans->known().task(), record);
  }
  // Each process has its ranks' share of the file.
  const std::int64_t sharers = backend.name() == "local" ? 1 : config.config.parallel.ranks;
  Trace trace(limit == 0 ? std::numeric_limits<std::int64_t>::max() : limit / sharers);
  const TrainingRun run{
      .loaded = config,
      .hooks = hooks,
      .from = from,
      .inputs = inputs,
      .numbers = numbers,
      .plans = *plans,
      .record = record,
      .static_plans = static_plans ? &*static_plans : nullptr,
      .trace = trace,
      .first_rank = backend.first_rank()};
  ModelReport model = report_of(inputs.weights);
  model.random = model.random && !inputs.from;
  if (backend.leads()) {
    tell(model, hooks.note);
  }
  record.begin(
      inputs.data.counts(), model, why_not_repeatable(config.config, numbers, from).empty());
  if (backend.leads()) {
    BatchPlanner& known = plans->known();
    if (std::vector<GroupSize> sizes =
            sizes_alone(known, config.config.parallel.batch_planner, inputs);
        !sizes.empty()) {
      record.group_sizes(std::move(sizes), known.task().memory_per_rank);
    }
  }
  try {
    backend.run(static_cast<int>(config.config.parallel.ranks), [&](Communicators& communicators) {
      train_rank(run, communicators);
    });
  } catch (...) {
    try {
      record.finish(trace);                  // what was measured until then is kept
    } catch (const std::exception& error) {  // a full disk: the first failure says more
      record.note(message_of(error));
    }
    throw;
  }
  record.compare(plans->known());
  return record.finish(trace);
}

}  // namespace paradyse
