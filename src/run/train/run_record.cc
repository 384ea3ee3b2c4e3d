#include "src/run/train/run_record.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <stdexcept>

#include <fmt/format.h>

#include "src/plan/base/disk_file.h"
#include "src/plan/search/batch/document_planner.h"
#include "src/run/train/checkpoint.h"
#include "src/run/train/files.h"
#include "src/run/train/kept_plans.h"

namespace paradyse {
namespace {

// Steps by which a run is compared.
constexpr std::int64_t kCompared = 32;
// Losses that the next one is held against, how many it takes at least, and when it is a spike.
constexpr std::size_t kRecent = 32;
constexpr std::size_t kEnough = 8;
constexpr double kSpike = 3;
constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

double mean(const std::vector<double>& values, std::size_t begin, std::size_t end) {
  return end <= begin ? kNone
                      : std::accumulate(
                            values.begin() + static_cast<std::ptrdiff_t>(begin),
                            values.begin() + static_cast<std::ptrdiff_t>(end),
                            0.0) /
                            static_cast<double>(end - begin);
}

}  // namespace

RunRecord::RunRecord(const LoadedConfig& loaded, const TrainHooks& hooks, bool leads)
    : loaded_(loaded), hooks_(hooks), leads_(leads) {
  summary_.eval_loss = kNone;
}

void RunRecord::reopen(const std::filesystem::path& run) {
  if (leads_) {
    const std::string why = std::filesystem::is_directory(run) ? why_no_file_in(run) : "";
    if (!why.empty()) {
      throw std::invalid_argument("--resume: " + why);
    }
    folder_.emplace(run);
    note_unlocked();
  }
}

void RunRecord::expect_room(bool starts_over) const {
  if (!leads_) {
    return;
  }
  RunFolder::expect_name(loaded_);  // nothing outside output.folder is moved
  const RunConfig::Output& output = loaded_.config.output;
  const std::filesystem::path there = std::filesystem::path(output.folder) / output.name;
  if (starts_over && RunFolder::is_begun(there)) {
    const RunFolder held(there);  // throws where another program is training there
    const std::filesystem::path aside = free_name(there);
    move_path(there, aside);
    note(fmt::format(
        "{} has no checkpoint: the run starts again, and what was there is in {}",
        there.string(),
        aside.string()));
  }
  RunFolder::expect_room(loaded_, starts_over);
}

void RunRecord::begin(const DataCounts& data, const ModelReport& model, bool repeatable) {
  summary_.of_steps = loaded_.config.train.steps;
  summary_.data = data;
  summary_.model = model;
  summary_.repeatable = repeatable;
}

void RunRecord::make_folder(const TrainFrom& from) {
  if (!folder_) {
    folder_.emplace(loaded_, from.starts_over);
    note_unlocked();
    naming_complete(
        folder_->checkpoints(), [&] { given_plans_ = keep_plans(from, folder_->path()); });
  }
  summary_.folder = folder_->path();
  if (group_sizes_) {
    folder_->write_group_sizes(*group_sizes_, memory_per_rank_);
  }
  tell_unwritten();
}

void RunRecord::group_sizes(std::vector<GroupSize> sizes, std::int64_t memory_per_rank) {
  group_sizes_ = std::move(sizes);
  memory_per_rank_ = memory_per_rank;
}

RunFolder::Rewound RunRecord::go_back(const CheckpointState& state) {
  sweep_checkpoints(folder_->checkpoints());
  RunFolder::Rewound rewound;
  naming_complete(folder_->checkpoints(), [&] { rewound = folder_->rewind(state.step, loaded_); });
  losses_.clear();
  compared_.clear();
  idle_seconds_ = 0;
  summary_.seconds = 0;
  summary_.predicted_seconds = 0;
  prediction_error_ = {};
  summary_.prediction_error = prediction_error_.error();
  summary_.measured_over_predicted = prediction_error_.ratio();
  summary_.steps_without_label = 0;
  summary_.steps = 0;
  summary_.late_plans = 0;
  summary_.peak_bytes = 0;
  summary_.steps_by_strategy.clear();
  summary_.evaluations.clear();
  summary_.eval_loss = kNone;
  for (const StepReport& report : rewound.reports) {
    count(report);
  }
  summary_.tokens = state.tokens;
  summary_.steps = state.step;
  return rewound;
}

void RunRecord::rewind(const Resumed& from, const std::vector<std::string>& changes) {
  const CheckpointState& state = from.state;
  const RunFolder::Rewound rewound = go_back(state);
  // On other ranks they are not used, and the next resume has no such plans.
  given_plans_ =
      std::cmp_equal(state.ranks, loaded_.config.parallel.ranks) ? state.given_plans : "";
  summary_.resumed_at = state.step;
  note(fmt::format(
      "resumed {} after step {} of {}, from {}",
      folder_->path().string(),
      state.step,
      loaded_.config.train.steps,
      from.checkpoint.string()));
  if (!rewound.put_aside.empty()) {
    note("results of later steps were moved to " + rewound.put_aside.string());
  }
  if (const auto known = std::ssize(rewound.reports); known < state.step) {
    note(fmt::format(
        "metrics.jsonl has {} of the {} steps before: the summary counts no losses and seconds of "
        "the others",
        known,
        state.step));
  }
  for (const std::string& change : changes) {
    note("from here on " + change);
  }
  if (rewound.config_made) {
    note(fmt::format(
        "{} was missing: it was written again from the checkpoint",
        (folder_->path() / "config.toml").string()));
  }
  if (!rewound.config_aside.empty()) {
    note("the configuration up to here is in " + rewound.config_aside.string());
  }
}

void RunRecord::roll_back(const CheckpointState& state) {
  const RunFolder::Rewound rewound = go_back(state);
  note(
      fmt::format("training continues after step {}", state.step) +
      (rewound.put_aside.empty()
           ? ""
           : "; results of later steps were moved to " + rewound.put_aside.string()));
}

void RunRecord::write_plan(const Plan& plan, std::int64_t step) {
  naming_complete(folder_->checkpoints(), [&] { folder_->write_plan(plan, step); });
  tell_unwritten();
}

std::filesystem::path RunRecord::write_bad_step(std::int64_t step, const std::string& lines) {
  return folder_->write_bad_step(step, lines);
}

void RunRecord::add(const StepReport& report) {
  naming_complete(folder_->checkpoints(), [&] { folder_->write_step(report); });
  tell_unwritten();
  if (const double factor = above_median(report.loss);
      factor > kSpike && loaded_.config.train.loss_spike == 0) {
    note(fmt::format(
        "step {}: the loss {:.4g} is {:.1f} times the median of the {} before",
        report.step,
        report.loss,
        factor,
        std::min(kRecent, losses_.size())));
  }
  count(report);
  if (hooks_.step) {
    hooks_.step(report);
  }
}

double RunRecord::above_median(double loss) const {
  if (losses_.size() < kEnough) {
    return 0;
  }
  const std::size_t recent = std::min(kRecent, losses_.size());
  std::vector<double> last(losses_.end() - static_cast<std::ptrdiff_t>(recent), losses_.end());
  const auto middle = last.begin() + static_cast<std::ptrdiff_t>(recent / 2);
  std::nth_element(last.begin(), middle, last.end());
  return *middle > 0 ? loss / *middle : 0;
}

void RunRecord::tell_unwritten() {
  const std::string why = folder_->flush();
  const std::string refused = folder_->refused();
  if (why.empty() && !unwritten_ && !refused.empty()) {
    note(fmt::format("{}; it was tried again, and is written now", refused));
  }
  if (why.empty() != unwritten_) {
    return;  // as it was
  }
  unwritten_ = !why.empty();
  note(
      unwritten_ ? fmt::format(
                       "{}; {}. Training continues: the unwritten data is kept in memory, and the "
                       "write is retried at every step and before the next checkpoint",
                       why,
                       complete_text(folder_->checkpoints()))
                 : "the data that was kept in memory is written");
}

void RunRecord::evaluated(const EvalResult& result) {
  summary_.eval_data = result.data;
  if (!result.interrupted && result.predicted_tokens == 0) {
    note("no held-out token has a label that counts: there is no held-out loss");
  }
  summary_.eval_loss = result.interrupted ? kNone : result.loss;
}

void RunRecord::compare(BatchPlanner& known) {
  if (!leads_ || summary_.interrupted || summary_.steps == 0) {
    return;
  }
  const std::int64_t steps = std::min(kCompared, summary_.steps);
  std::vector<Plan> plans;
  try {
    for (std::int64_t i = 0; i < steps; ++i) {
      Plan plan = folder_->read_plan(1 + i * summary_.steps / steps);
      // before the run was resumed there may have been others
      if (plan.ranks == known.task().ranks) {
        plans.push_back(std::move(plan));
      }
    }
    if (!plans.empty()) {
      summary_.best_static = compared_to_static(known, plans);
    }
  } catch (const std::exception& error) {  // of plans made by hand, or not there any more
    note(fmt::format("plans are not compared with the best static run: {}", message_of(error)));
  }
}

void RunRecord::note_unlocked() const {
  if (!folder_->not_locked().empty()) {
    note(folder_->not_locked());
  }
}

void RunRecord::note(const std::string& line) const {
  if (hooks_.note) {
    hooks_.note(line);
  }
}

TrainSummary RunRecord::finish(const Trace& trace) {
  if (!folder_) {
    return summary_;
  }
  sweep_checkpoints(folder_->checkpoints());  // one that failed: its space may be wanted
  const std::size_t n = losses_.size();
  const std::size_t compared = std::min<std::size_t>(10, n / 2);  // never a step with itself
  const std::size_t of = std::max<std::size_t>(1, compared);
  summary_.loss_steps = static_cast<std::int64_t>(compared);
  summary_.first_loss = mean(losses_, 0, std::min(of, n));
  summary_.last_loss = mean(losses_, n - std::min(of, n), n);
  summary_.idle_share = summary_.seconds > 0 ? idle_seconds_ / summary_.seconds : 0;
  summary_.compared = measured_comparison(compared_);
  std::string wrong = folder_->flush();
  const auto writing = [&](const auto& body) {
    try {
      body();
    } catch (const std::runtime_error& error) {
      wrong = wrong.empty() ? message_of(error) : wrong;
    }
  };
  writing([&] { folder_->write_summary(summary_); });
  wrong = wrong.empty() ? folder_->flush() : wrong;
  if (loaded_.config.output.trace) {
    const std::filesystem::path file = folder_->trace_file(summary_.resumed_at);
    summary_.trace = file;
    writing([&] { trace.write(file, "paradyse train " + folder_->path().filename().string()); });
    if (const std::optional<std::int64_t> steps = trace.ended_after()) {
      note(fmt::format(
          "{} ends after step {} of {}: it has reached output.trace_limit = {}",
          file.filename().string(),
          *steps,
          summary_.steps,
          loaded_.config.output.trace_limit));
    }
  }
  if (!wrong.empty()) {
    throw std::runtime_error(fmt::format("{}; {}", wrong, complete_text(folder_->checkpoints())));
  }
  return summary_;
}

void RunRecord::count(const StepReport& report) {
  summary_.steps_without_label += report.labels == 0 && !report.skipped ? 1 : 0;
  if (std::isfinite(report.loss)) {
    losses_.push_back(report.loss);
  }
  if (report.compared) {
    compared_.push_back(*report.compared);
  }
  if (report.eval_loss) {
    summary_.eval_loss = *report.eval_loss;
    summary_.evaluations.push_back({.step = report.step, .loss = *report.eval_loss});
  }
  ++summary_.steps;
  if (!report.skipped) {
    summary_.tokens += report.tokens;
    summary_.seconds += report.seconds;
    summary_.late_plans += report.late ? 1 : 0;
    summary_.predicted_seconds += report.predicted_seconds;
    prediction_error_.add(report.predicted_seconds, report.seconds);
  }
  summary_.prediction_error = prediction_error_.error();
  summary_.measured_over_predicted = prediction_error_.ratio();
  for (const double share : report.idle) {
    idle_seconds_ += report.seconds * share / static_cast<double>(report.idle.size());
  }
  summary_.peak_bytes = std::max(summary_.peak_bytes, report.peak_bytes);
  for (const auto& [name, micro_batches] : report.micro_batches) {
    ++summary_.steps_by_strategy[name];
  }
}

}  // namespace paradyse
