#include "src/run/train/evaluate.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <numeric>

#include <fmt/format.h>

#include "paradyse/plan/batch_planner.h"
#include "paradyse/plan/detail/index.h"
#include "src/plan/base/bytes_text.h"
#include "src/run/device/device.h"
#include "src/run/execute/gather.h"
#include "src/run/measure/measure.h"
#include "src/run/train/agreement.h"
#include "src/run/train/plan_or_throw.h"
#include "src/run/train/run_inputs.h"

namespace paradyse {
namespace {

using Clock = std::chrono::steady_clock;

// The largest of every rank's number.
std::int64_t largest(std::int64_t mine, Communicator& world) {
  const HostScope control;
  const at::Tensor all = at::zeros({world.size()}, at::kLong);
  all.mutable_data_ptr<std::int64_t>()[world.rank()] = mine;
  world.all_reduce(all, {.op = "largest", .part = ""});
  const auto* data = all.const_data_ptr<std::int64_t>();
  return *std::max_element(data, data + world.size());
}

}  // namespace

EvalResult evaluate_data(
    const Dataset& data,
    std::uint64_t seed,
    std::int64_t tokens_per_batch,
    BatchPlanner* planner,
    RankSession& session,
    const std::atomic<bool>* stop,
    const ProgressHook& progress,
    bool per_document) {
  EvalResult result;
  result.data = data.counts();
  const auto begin = Clock::now();
  double sum = 0;
  Communicator& world = session.world();
  for (std::int64_t next = 0; next < data.size();) {
    if (progress && world.rank() == 0) {
      progress(next, data.size(), fmt::format("loss of {} of {} documents", next, data.size()));
    }
    const std::int64_t first = next;
    std::vector<std::int64_t> items;
    std::int64_t tokens = 0;
    while (next < data.size() && (tokens < tokens_per_batch || items.empty())) {
      items.push_back(next);
      tokens += data.length(next++);
    }
    std::optional<Plan> plan;
    // Also without `stop`: those of other ranks may have one.
    const bool stops = on_any_rank(stop != nullptr && stop->load(), world);
    if (world.rank() == 0 && !stops) {
      plan = plan_or_throw(*planner, data.sizes(items));
    }
    plan = session.broadcast(std::move(plan));
    if (!plan) {
      result.interrupted = true;
      break;
    }
    const BatchItems drawn(
        data, items, seed, static_cast<std::uint64_t>(first), *plan, world.rank());
    const BatchResult batch = session.play(*plan, drawn.batch(), /*backward=*/false);
    sum += std::accumulate(batch.loss_sums.begin(), batch.loss_sums.end(), 0.0);
    result.predicted_tokens += batch.predicted_tokens;
    for (std::size_t i = 0; per_document && world.rank() == 0 && i < items.size(); ++i) {
      result.per_document.push_back(
          {.name = data.name(items[i]),
           .tokens = data.length(items[i]),
           .labels = batch.counts[i],
           .loss_sum = batch.loss_sums[i]});
    }
    result.documents += static_cast<std::int64_t>(items.size());
  }
  result.loss = result.predicted_tokens == 0 ? std::numeric_limits<double>::quiet_NaN()
                                             : sum / static_cast<double>(result.predicted_tokens);
  result.seconds = seconds_since(begin);
  result.peak_bytes = largest(session.memory().peak_bytes(), world);
  return result;
}

EvalResult evaluate(
    const LoadedConfig& loaded,
    Backend& backend,
    const std::function<void(const std::string& line)>& note,
    const ProgressHook& progress,
    bool per_document) {
  const ModelFolder model = model_at(loaded.config);
  const ModelWeights weights = weights_at(loaded.config, model);
  const ModelReport report = report_of(weights);
  Dataset data = data_at("data.path", loaded.config.data.path, loaded.config, model);
  const bool held_out = loaded.config.data.held_out > 0;  // those, as a run of this configuration
  if (held_out) {
    data = data.hold_out(loaded.config.data.held_out, loaded.config.data.seed);
  }
  if (backend.leads()) {
    tell(report, note);
    if (note) {
      for (const std::string& line : data.lines(held_out ? "held out" : "data")) {
        note(line);
      }
    }
  }
  const auto ranks = static_cast<int>(loaded.config.parallel.ranks);
  std::vector<Given> given = given_model("model.path", model, weights, ranks, backend);
  if (backend.name() != "local") {
    given.push_back(given_data("data.path", data));
  }
  expect_same_on_ranks(given, ranks, backend);
  const RunConfig config = with_budget(loaded.config, backend);
  const MachineNumbers machine = machine_for(config, model, backend);
  const std::unique_ptr<BatchPlanner> planner =
      batch_planner(planning_task(config, model.model, /*training=*/false, {.machine = machine}));
  const c10::Device device = device_named(config.parallel.device);
  EvalResult result;
  result.words = model.model.words;
  backend.run(static_cast<int>(config.parallel.ranks), [&](Communicators& communicators) {
    RankSession session(
        communicators,
        model.model,
        {.dtype = config.train.dtype,
         .gradients = false,
         .memory_bytes = parse_bytes(config.parallel.memory_per_rank),
         .device = device});
    weights.fill(session.parameters());
    session.world().barrier({.op = "model is there", .part = ""});
    const bool first = session.rank() == 0;
    const EvalResult mine = evaluate_data(
        data,
        config.data.seed,
        config.train.tokens_per_step,
        first ? planner.get() : nullptr,
        session,
        /*stop=*/nullptr,
        progress,
        per_document);
    if (first) {
      result = mine;
    }
  });
  result.model = report;
  return result;
}

}  // namespace paradyse
