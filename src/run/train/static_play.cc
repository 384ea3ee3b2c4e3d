#include "src/run/train/static_play.h"

#include <atomic>
#include <chrono>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "paradyse/plan/detail/index.h"
#include "src/plan/search/batch/document_planner.h"
#include "src/run/device/stopwatch.h"
#include "src/run/execute/within_memory.h"
#include "src/run/train/run_inputs.h"

namespace paradyse {
namespace {

using Clock = std::chrono::steady_clock;

// Rank 0's: the plan, where there is one, and what is known of the comparison before it is played.
std::optional<ComparedStep> begun(
    const TrainingRun& run, std::int64_t step, std::optional<Plan>& plan) {
  const std::atomic<bool>* const stop = run.hooks.stop;
  if (run.static_plans == nullptr || (stop != nullptr && stop->load())) {
    return std::nullopt;
  }
  plan = run.static_plans->plan(
      run.inputs.batch(idx(step)), run.plans.learned(), run.record.compared_strategy());
  if (run.static_plans->strategy().empty()) {
    return std::nullopt;
  }
  ComparedStep compared{.strategy = run.static_plans->strategy()};
  if (plan) {
    compared.predicted_seconds = plan->predicted.seconds.value_or(ComparedStep::kNone);
  }
  return compared;
}

}  // namespace

StaticTurn static_turn(std::int64_t every, std::int64_t step, std::int64_t first_step) {
  if (every == 0 || (step + 1) % every != 0 || step == first_step) {
    return StaticTurn::none;
  }
  return (step + 1) / every % 2 == 1 ? StaticTurn::before : StaticTurn::after;
}

std::optional<ComparedStep> play_static(
    const TrainingRun& run, std::int64_t step, double loss_scale, RankSession& session) {
  std::optional<Plan> plan;
  std::optional<ComparedStep> compared;
  if (session.rank() == 0) {
    compared = begun(run, step, plan);
  }
  session.world().barrier({.op = "compare", .part = ""});  // else the clock counts that wait
  const auto begin = Clock::now();
  Stopwatch watch;
  watch.start();
  plan = session.broadcast(std::move(plan));
  if (!plan) {
    return compared;
  }
  const BatchItems items =
      run.inputs.items(idx(step), run.config().data.seed, *plan, session.rank());
  const Batch batch = items.batch(run.dropout_seed(step));
  std::optional<std::string> lack;
  bool finite = true;
  session.parameters().zero_gradients();
  try {
    lack = within_memory(session.communicators(), [&] {
      session.play(*plan, batch, /*backward=*/true, loss_scale);
    });
  } catch (const NotFinite&) {  // on all ranks alike
    finite = false;
  }
  watch.stop();
  const double seconds = watch.seconds();
  session.note("static plan, compared", "compare", begin);
  session.parameters().zero_gradients();
  session.memory().reset_peak();
  if (!compared || !finite) {
    return std::nullopt;
  }
  if (!lack) {
    compared->seconds = seconds;
  } else {
    run.record.note(fmt::format(
        "step {}: its static plan ({}) did not fit and is not compared: {}",
        step + 1,
        compared->strategy,
        *lack));
  }
  return compared;
}

}  // namespace paradyse
