#include "src/run/train/training_step.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "paradyse/plan/detail/index.h"
#include "src/plan/base/bytes_text.h"
#include "src/run/device/host_copies.h"
#include "src/run/device/stopwatch.h"
#include "src/run/execute/gather.h"
#include "src/run/execute/within_memory.h"
#include "src/run/measure/measure.h"
#include "src/run/measure/micro_batch_seconds.h"
#include "src/run/memory/device_memory.h"
#include "src/run/train/run_inputs.h"

namespace paradyse {
namespace {

using Clock = std::chrono::steady_clock;

// For lack of memory, all ranks agree on a plan that needs less.  A run by given plans has none.
Plan leaner(
    const TrainingRun& run,
    std::int64_t step,
    const StepPlans::Step& planned,
    const std::string& reason,
    RankSession& session) {
  if (run.plans.given()) {
    throw OutOfMemory(reason);
  }
  std::optional<Plan> less;
  if (session.rank() == 0) {
    less = run.plans.leaner(idx(step), planned);
    run.record.note(fmt::format(
        "step {}: {}; {}",
        step + 1,
        reason,
        less ? "the step is repeated with a plan that needs less" : "and no plan needs less"));
    if (less) {
      run.record.write_plan(*less, step + 1);
    }
  }
  less = session.broadcast(std::move(less));
  if (!less) {
    throw OutOfMemory(reason);
  }
  return *std::move(less);
}

// A batch that is through.
struct Played {
  BatchResult batch;
  int retries = 0;
};

// Runs the batch; where memory does not suffice in spite of the plan, by leaner ones.  The weights
// are not touched, and no document is left out or comes twice: what was done is thrown away.
// `planned` becomes the plan that it went by at last.
Played play_batch(
    const TrainingRun& run,
    std::int64_t step,
    StepPlans::Step& planned,
    const LossScale& scale,
    RankSession& session) {
  const auto s = idx(step);
  for (int retries = 0;; ++retries) {
    session.parameters().zero_gradients();
    const BatchItems items =
        run.inputs.items(s, run.config().data.seed, planned.plan, session.rank());
    const Batch batch = items.batch(run.dropout_seed(step));
    BatchResult result;
    std::optional<std::string> lack;
    try {
      lack = within_memory(session.communicators(), [&] {
        result = session.play(planned.plan, batch, /*backward=*/true, scale.value());
      });
    } catch (const NotFinite& error) {
      throw BadStep(error.what(), error.documents());
    }
    if (!lack) {
      return {.batch = std::move(result), .retries = retries};
    }
    planned.plan = leaner(run, step, planned, *lack, session);
  }
}

// A loss far above those before it, which rank 0 knows.
void expect_no_spike(const TrainingRun& run, const BatchResult& batch, RankSession& session) {
  const double limit = run.config().train.loss_spike;
  if (limit == 0 || batch.predicted_tokens == 0) {
    return;
  }
  const double factor = session.rank() == 0 ? run.record.above_median(batch.loss) : 0;
  if (broadcast_number(factor > limit ? 1 : 0, "loss spike", session.world()) != 0) {
    std::vector<std::int64_t> highest;  // the document with the highest loss of a token
    double most = 0;
    for (std::size_t d = 0; d < batch.loss_sums.size(); ++d) {
      const double mean =
          batch.counts[d] > 0 ? batch.loss_sums[d] / static_cast<double>(batch.counts[d]) : 0;
      if (mean > most) {
        most = mean;
        highest = {static_cast<std::int64_t>(d)};
      }
    }
    throw BadStep(
        fmt::format(
            "the loss is {:.6g}, more than train.loss_spike = {} times the median of the steps "
            "before",
            batch.loss,
            limit),
        std::move(highest));
  }
}

// What the update of the weights came to.
struct Update {
  double learning_rate = 0;
  double gradient_norm = 0;
  double loss_scale = 1;  // that the gradients were of
};

Update update(
    const TrainingRun& run,
    std::int64_t step,
    const BatchResult& batch,
    RankSession& session,
    AdamW& optimizer,
    LossScale& scale) {
  const RunConfig& config = run.config();
  const auto begin = Clock::now();
  const double loss_scale = scale.value();
  const double rate = learning_rate(config.optimizer, step, config.train.steps);
  const bool scored = batch.predicted_tokens > 0;
  const at::Tensor scaled_norm = gradient_norm(session.parameters(), session.domain());
  if (scored) {
    optimizer.step(rate, gradient_factor(scaled_norm, config.optimizer.max_grad_norm, loss_scale));
  }
  // Read when the update is queued; it changed nothing where this is not finite.
  const double norm = *HostRead(scaled_norm).get().const_data_ptr<double>() / loss_scale;
  const bool counts = scale.update(!std::isfinite(norm));
  if (!scored) {
    if (session.rank() == 0) {
      run.record.note(fmt::format(
          "step {}: none of its tokens has a label that counts: it has no loss, and the weights do "
          "not change",
          step + 1));
    }
  } else if (!counts) {
    optimizer.uncount();
    if (config.train.dtype != Dtype::float16 || loss_scale <= 1) {
      throw BadStep(fmt::format("the norm of the gradients is {}", norm), {});
    }
  }
  session.note("optimizer", "optimizer", begin);
  return {.learning_rate = rate, .gradient_norm = norm, .loss_scale = loss_scale};
}

// Of the ranks' GPUs the most of each number.
std::map<std::string, std::int64_t> allocator_of_ranks(
    const TrainingRun& run, RankSession& session) {
  std::map<std::string, std::int64_t> numbers = allocator_numbers(run.inputs.device);
  if (numbers.empty()) {
    return numbers;
  }
  std::vector<std::int64_t> mine;
  for (const auto& [name, number] : numbers) {
    mine.push_back(number);
  }
  for (const std::vector<std::int64_t>& of_rank : gather(mine, session.world())) {
    auto number = of_rank.begin();
    for (auto& [name, most] : numbers) {
      most = std::max(most, *number++);
    }
  }
  return numbers;
}

// What each group of the plan was to take and took.
std::vector<std::vector<GroupReport>> group_reports(
    const Plan& plan, const RankNumbers& measured, const std::vector<std::vector<double>>& idle) {
  std::vector<std::vector<GroupReport>> reports;
  for (std::size_t m = 0; m < plan.micro_batches.size(); ++m) {
    std::vector<GroupReport>& of_micro = reports.emplace_back();
    for (const PlanGroup& group : plan.micro_batches[m].groups) {
      GroupReport& report = of_micro.emplace_back(GroupReport{
          .ranks = group.ranks,
          .documents = static_cast<std::int64_t>(group.documents.size()),
          .predicted_seconds = group.predicted.seconds.value_or(0)});
      for (const std::int64_t document : group.documents) {
        report.tokens += plan.lengths[idx(document)];
      }
      for (const int rank : group.ranks) {
        const auto r = idx(rank);
        report.seconds = std::max(report.seconds, measured.rank_seconds[m][r] - idle[m][r]);
      }
    }
  }
  return reports;
}

StepReport step_report(
    const TrainingRun& run,
    const TrainingStep& step,
    const Played& played,
    const Update& update,
    double update_seconds,
    const RankNumbers& measured,
    std::map<std::string, std::int64_t> allocator) {
  const Plan& plan = step.planned.plan;
  const BatchResult& batch = played.batch;
  StepReport report{
      .step = step.step + 1,
      .steps = run.config().train.steps,
      .loss = batch.predicted_tokens == 0 ? std::numeric_limits<double>::quiet_NaN() : batch.loss,
      .labels = batch.predicted_tokens,
      .learning_rate = update.learning_rate,
      .gradient_norm = update.gradient_norm,
      .loss_scale = update.loss_scale,
      .documents = static_cast<std::int64_t>(plan.lengths.size()),
      .tokens = std::accumulate(plan.lengths.begin(), plan.lengths.end(), std::int64_t{0}),
      .seconds = seconds_since(step.begin),
      .update_seconds = update_seconds,
      .predicted_seconds = plan.predicted.seconds.value_or(0),
      .planning_seconds = plan.planner_seconds.value_or(0),
      .late = step.planned.late,
      .switching_seconds = step.switching_seconds + batch.switching_seconds,
      .retries = played.retries,
      .peak_bytes = measured.peak_bytes,
      .memory_per_rank = parse_bytes(run.config().parallel.memory_per_rank),
      .micro_batches = {},
      .micro_batch_seconds = measured.mean_seconds(),
      .predicted_micro_batch_seconds = {},
      .plan_sha256 = batch.plan_sha256};
  report.allocator = std::move(allocator);
  for (const PlanMicroBatch& micro : plan.micro_batches) {
    std::set<std::string> programs;  // of its groups
    for (const PlanGroup& group : micro.groups) {
      programs.insert(group.program);
      if (group.predicted.bytes) {
        report.predicted_peak_bytes =
            std::max(report.predicted_peak_bytes, group.predicted.bytes->total());
      }
    }
    for (const std::string& program : programs) {
      ++report.micro_batches[program];
    }
    report.predicted_micro_batch_seconds.push_back(micro.predicted.seconds.value_or(0));
  }
  const std::vector<std::vector<double>> idle = measured.idle_seconds();
  report.idle.resize(idx(plan.ranks));
  for (const std::vector<double>& of_ranks : idle) {
    for (std::size_t r = 0; r < of_ranks.size(); ++r) {
      report.idle[r] += of_ranks[r] / report.seconds;
    }
  }
  if (run.config().train.metrics_groups) {
    report.groups = group_reports(plan, measured, idle);
  }
  return report;
}

}  // namespace

StepReport skipped_step(const TrainingRun& run, const TrainingStep& step) {
  const Plan& plan = step.planned.plan;
  constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
  return {
      .step = step.step + 1,
      .steps = run.config().train.steps,
      .loss = kNone,
      .gradient_norm = kNone,
      .documents = static_cast<std::int64_t>(plan.lengths.size()),
      .tokens = std::accumulate(plan.lengths.begin(), plan.lengths.end(), std::int64_t{0}),
      .seconds = seconds_since(step.begin),
      .predicted_seconds = plan.predicted.seconds.value_or(0),
      .planning_seconds = plan.planner_seconds.value_or(0),
      .late = step.planned.late,
      .switching_seconds = step.switching_seconds,
      .skipped = true,
      .micro_batches = {},
      .plan_sha256 = hash(plan)};
}

std::optional<StepReport> train_step(
    const TrainingRun& run,
    TrainingStep step,
    RankSession& session,
    AdamW& optimizer,
    LossScale& scale) {
  Played played;
  Update updated;
  Stopwatch rest;
  try {
    played = play_batch(run, step.step, step.planned, scale, session);
    expect_no_spike(run, played.batch, session);
    rest.start();
    updated = update(run, step.step, played.batch, session, optimizer, scale);
  } catch (BadStep& bad) {
    if (session.rank() == 0) {
      bad.report = skipped_step(run, step);
    }
    throw;
  }
  RankNumbers numbers = numbers_of_ranks(played.batch, session);
  auto allocator = allocator_of_ranks(run, session);
  rest.stop();
  if (session.rank() != 0) {
    return std::nullopt;
  }
  StepReport report =
      step_report(run, step, played, updated, rest.seconds(), numbers, std::move(allocator));
  run.plans.took(idx(step.step), step.planned.plan, numbers.part_seconds, numbers.computed_seconds);
  return report;
}

}  // namespace paradyse
