// A training run as its folder tells it: finished, stopped, killed or still going on.
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "paradyse/plan/detail/compared_steps.h"
#include "paradyse/plan/detail/static_strategy.h"
#include "paradyse/plan/plan.h"
#include "src/plan/search/batch/group_sizes.h"

namespace paradyse {

// A line of metrics.jsonl (docs/reference/runs.md), as far as reports tell it.
struct ReportedStep {
  std::int64_t step = 0;
  double loss = 0;  // NaN: none of its tokens counts
  double learning_rate = 0;
  std::int64_t tokens = 0;
  double seconds = 0;
  double predicted_seconds = 0;
  bool late = false;
  std::int64_t retries = 0;
  std::int64_t peak_bytes = 0;
  std::int64_t predicted_peak_bytes = 0;
  std::int64_t memory_per_rank = 0;  // 0: no limit, or a run of before this was written
  double idle = 0;                   // the mean over the ranks, a share of the step
  std::vector<double> idle_of_ranks = {};
  std::vector<std::vector<double>> group_seconds = {};  // as in its plan; none: not measured
  std::optional<ComparedStep> compared = {};
};

struct ReportedRun {
  std::filesystem::path folder;
  std::string name;
  std::string state;  // a sentence
  nlohmann::ordered_json facts = nlohmann::ordered_json::object();
  std::vector<std::string> notes = {};  // what is missing, or was put aside
  std::int64_t ranks = 1;
  std::vector<ReportedStep> steps = {};
  std::vector<GroupSize> sizes = {};  // none: the folder does not tell
  std::int64_t memory_per_rank = 0;   // that those go by
  // Of summary.json; a run that goes on, or was killed, has none.
  bool has_summary = false;
  std::int64_t of_steps = 0;  // that it is to have, by the summary; 0: that does not say
  bool interrupted = false;
  double eval_loss = std::numeric_limits<double>::quiet_NaN();
  std::optional<StaticComparison> best_static = {};

  // The plan of a step of `steps`; nothing where its file is gone.  Throws std::invalid_argument.
  [[nodiscard]] std::optional<Plan> plan_of(const ReportedStep& step) const;
};

// Throws std::invalid_argument, naming file and line, for what is no run folder or is broken; a
// last line that is cut off, as of a program that was killed, is left out.
ReportedRun read_run(const std::filesystem::path& folder);

// Sums over all steps.
struct RunTotals {
  std::int64_t steps = 0;
  std::int64_t tokens = 0;
  double seconds = 0;
  double predicted_seconds = 0;
  double error = 0;  // PredictionError::error(), and ::ratio()
  double ratio = 1;
  double idle_share = 0;  // of the ranks' seconds
  std::int64_t late = 0;
  std::int64_t retried = 0;  // steps
  std::int64_t peak_bytes = 0;
};
RunTotals totals(const ReportedRun& run);

// Of its steps so far, where some were measured beside the best static plan (train.compare).
std::optional<MeasuredComparison> measured_comparison(const ReportedRun& run);

// Whether the plan is of samples of several dims, whose lengths are rows.
bool has_samples(const Plan& plan);

// Plans of some steps, evenly over the run.
struct ChosenPlans {
  std::vector<std::pair<std::size_t, Plan>> plans = {};  // index into steps, and its plan
  std::size_t first = 0;    // of `plans`: the one that shows most of planning
  std::size_t missing = 0;  // looked for, and not there
};
ChosenPlans chosen_plans(const ReportedRun& run, std::size_t most = 200);

// What the page shows (page.h): columns of all steps, thinned where they are many; the chosen
// plans; and the steps of other runs beside them.
nlohmann::ordered_json page_data(
    const ReportedRun& run, const ChosenPlans& chosen, const std::vector<ReportedRun>& others = {});

// The plan of a step in about ten lines of at most 80 columns, with the reason.
std::string step_text(const ReportedRun& run, const ReportedStep& step, const Plan& plan);

}  // namespace paradyse
