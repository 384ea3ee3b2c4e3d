// What the folder of a run says (src/run/train/run_folder.h writes it).
#include "src/plan/report/run_report.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include "paradyse/plan/config.h"
#include "src/plan/base/disk_file.h"
#include "src/plan/base/json_node.h"
#include "src/plan/base/number_text.h"
#include "src/plan/base/shell_word.h"
#include "src/plan/base/text_match.h"
#include "src/plan/report/prediction_error.h"

namespace paradyse {
namespace fs = std::filesystem;

namespace {

constexpr double kNoNumber = std::numeric_limits<double>::quiet_NaN();

double number_or_none(const JsonNode& node, const std::string& key) {
  return node.is_null(key) ? kNoNumber : node.at(key).number();
}

ReportedStep step_from(const JsonNode& line) {
  ReportedStep step{
      .step = line.at("step").integer<std::int64_t>(1),
      .loss = number_or_none(line, "loss"),
      .learning_rate = number_or_none(line, "learning_rate"),
      .tokens = line.at("tokens").integer<std::int64_t>(0),
      .seconds = line.at("seconds").number_from_0(),
      .predicted_seconds = line.at("predicted_seconds").number_from_0(),
      .late = line.has("late") && line.at("late").truth(),
      .peak_bytes = line.at("peak_bytes").integer<std::int64_t>(0)};
  const auto optional = [&](const char* key, std::int64_t& value) {
    if (line.has(key)) {
      value = line.at(key).integer<std::int64_t>(0);
    }
  };
  optional("retries", step.retries);
  optional("predicted_peak_bytes", step.predicted_peak_bytes);
  optional("memory_per_rank", step.memory_per_rank);
  if (line.has("idle")) {
    step.idle_of_ranks = line.at("idle").numbers();
    for (const double share : step.idle_of_ranks) {
      step.idle += share / static_cast<double>(step.idle_of_ranks.size());
    }
  }
  if (line.has("groups")) {
    for (const JsonNode& micro : line.at("groups").elements()) {
      std::vector<double>& seconds = step.group_seconds.emplace_back();
      for (const JsonNode& group : micro.elements()) {
        seconds.push_back(group.at("seconds").number_from_0());
      }
    }
  }
  if (line.has("compared_strategy")) {
    step.compared = {
        .strategy = line.at("compared_strategy").text(),
        .seconds = number_or_none(line, "compared_seconds"),
        .predicted_seconds = number_or_none(line, "compared_predicted_seconds"),
        .ours = step.seconds};
  }
  return step;
}

// The lines of metrics.jsonl; of the last one perhaps only a part was written.
void read_steps(ReportedRun& run) {
  const fs::path file = run.folder / "metrics.jsonl";
  const std::string text = content_of(file, kMostMetrics).value_or("");
  std::size_t number = 0;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::string line = text.substr(begin, end - begin);
    begin = end + 1;
    const JsonSource source{
        .name = file.string() + ":" + std::to_string(++number), .whole = "the line"};
    nlohmann::json json;
    try {
      json = parse_json(line, source);
    } catch (const std::invalid_argument&) {
      if (end < text.size()) {
        throw;
      }
      run.notes.emplace_back("The last line of metrics.jsonl is incomplete and is left out.");
      return;
    }
    ReportedStep step = step_from({json, source});
    if (!run.steps.empty() && step.step <= run.steps.back().step) {
      throw std::invalid_argument(
          source.name + ": step " + std::to_string(step.step) + " after step " +
          std::to_string(run.steps.back().step) + ": the file was changed after it was written");
    }
    run.steps.push_back(std::move(step));
  }
}

void read_facts(ReportedRun& run, const RunConfig& config) {
  run.ranks = config.parallel.ranks;
  run.facts = {
      {"Run folder", run.folder.string()},
      {"Model", config.model.path},
      {"Data", joined(config.data.path, ", ")},
      {"Ranks", std::to_string(run.ranks)},
      {"Memory of a rank",
       config.parallel.memory_per_rank == "0" ? "no limit" : config.parallel.memory_per_rank},
      {"Tokens of a step", "at least " + std::to_string(config.train.tokens_per_step)},
      {"Data type", to_string(config.train.dtype)},
      {"Plans", config.parallel.batch_planner + " (parallel.batch_planner)"}};
}

// Whether a program trains in the folder: it holds a lock on it.
bool is_locked(const fs::path& folder) {
  const int descriptor = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) {
    return false;
  }
  const bool locked = ::flock(descriptor, LOCK_SH | LOCK_NB) != 0;
  ::close(descriptor);
  return locked;
}

// The summary, unless it is of before the run went on.
void read_summary(ReportedRun& run) {
  const fs::path file = run.folder / "summary.json";
  const std::optional<std::string> text = content_of(file);
  if (!text) {
    return;
  }
  const JsonSource source{.name = file.string(), .whole = "the summary"};
  const nlohmann::json json = parse_json(*text, source);
  const JsonNode summary(json, source);
  const std::int64_t last = run.steps.empty() ? 0 : run.steps.back().step;
  if (summary.at("steps").integer<std::int64_t>(0) != last) {
    return;
  }
  run.has_summary = true;
  if (summary.has("of_steps")) {
    run.of_steps = summary.at("of_steps").integer<std::int64_t>(0);
  }
  run.interrupted = summary.at("interrupted").truth();
  run.eval_loss = number_or_none(summary, "eval_loss");
  if (!summary.is_null("best_static")) {
    const JsonNode best = summary.at("best_static");
    run.best_static = {
        .strategy = best.at("strategy").text(),
        .seconds = best.at("seconds").number_from_0(),
        .ours = best.at("ours").number_from_0(),
        .batches = best.at("steps").integer<std::int64_t>(1)};
  }
}

// What was put aside when the run went on from a checkpoint: undone-000050, config-until-000050.
void read_resumptions(ReportedRun& run) {
  std::vector<std::string> names;
  for (const fs::directory_entry& entry : fs::directory_iterator(run.folder)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("undone-") || name.starts_with("config-until-")) {
      names.push_back(name);
    }
  }
  std::ranges::sort(names);
  for (const std::string& name : names) {
    const bool undone = name.starts_with("undone-");
    const std::string after = name.substr(name.find_last_of('-') + 1);
    const std::string digits = after.substr(0, after.find_first_not_of("0123456789"));
    const std::size_t first = digits.find_first_not_of('0');
    std::string note = "The run was resumed after step ";
    note += first == std::string::npos ? "0" : digits.substr(first);
    note += undone ? ": results of later steps are in " : ": its configuration before that is ";
    run.notes.push_back(note + name + ".");
  }
}

std::string state_of(const ReportedRun& run, std::int64_t of) {
  const std::int64_t done = run.steps.empty() ? 0 : run.steps.back().step;
  const std::string steps =  // a run by epochs says how many when it ends
      of == 0 ? counted(done, "step") : std::to_string(done) + " of " + counted(of, "step");
  const std::string resume =
      " Continue with: paradyse train --resume " + shell_word(run.folder.string());
  if (is_locked(run.folder)) {
    return "Still running: " + steps + " so far.";
  }
  if (!run.has_summary) {
    return "Ended without a summary after " + steps + ": it was killed or failed." + resume;
  }
  if (run.interrupted) {
    return "Interrupted after " + steps + "." + resume;
  }
  return done < of ? "Stopped by an error after " + steps + "." + resume
                   : "Finished: " + counted(done, "step") + ".";
}

}  // namespace

ReportedRun read_run(const fs::path& folder) {
  ReportedRun run;
  run.folder = fs::weakly_canonical(folder);
  run.name = run.folder.filename().string();
  if (!fs::is_regular_file(run.folder / "config.toml")) {
    throw std::invalid_argument(
        folder.string() +
        ": is not the folder of a training run (it has no config.toml); give a folder that "
        "`paradyse train` made");
  }
  const RunConfig config = load_config(run.folder / "config.toml", {}).config;
  read_facts(run, config);
  read_resumptions(run);
  read_steps(run);
  read_summary(run);
  const fs::path sizes = run.folder / "group_sizes.json";
  if (const std::optional<std::string> text = content_of(sizes)) {
    const JsonSource source{.name = sizes.string(), .whole = "the file"};
    const nlohmann::json json = parse_json(*text, source);
    const JsonNode root(json, source);
    run.sizes = group_sizes_from(root.at("sizes"));
    run.memory_per_rank = root.at("memory_per_rank").integer<std::int64_t>(0);
  }
  run.state = state_of(run, run.of_steps > 0 ? run.of_steps : config.train.steps);
  return run;
}

std::optional<Plan> ReportedRun::plan_of(const ReportedStep& step) const {
  const fs::path file = folder / "plans" / fmt::format("step-{:05}.json", step.step);
  if (!fs::exists(file)) {
    return std::nullopt;
  }
  Plan plan = read_plan(file);
  if (const std::vector<std::string> wrong = problems(plan); !wrong.empty()) {
    throw std::invalid_argument(fmt::format("{}: {}", file.string(), wrong.front()));
  }
  return plan;
}

RunTotals totals(const ReportedRun& run) {
  RunTotals all{.steps = static_cast<std::int64_t>(run.steps.size())};
  double idle = 0;
  PredictionError error;
  for (const ReportedStep& step : run.steps) {
    all.tokens += step.tokens;
    all.seconds += step.seconds;
    all.predicted_seconds += step.predicted_seconds;
    all.late += step.late ? 1 : 0;
    all.retried += step.retries > 0 ? 1 : 0;
    all.peak_bytes = std::max(all.peak_bytes, step.peak_bytes);
    idle += step.idle * step.seconds;
    error.add(step.predicted_seconds, step.seconds);
  }
  all.error = error.error();
  all.ratio = error.ratio();
  all.idle_share = all.seconds > 0 ? idle / all.seconds : 0;
  return all;
}

std::optional<MeasuredComparison> measured_comparison(const ReportedRun& run) {
  std::vector<ComparedStep> steps;
  for (const ReportedStep& step : run.steps) {
    if (step.compared) {
      steps.push_back(*step.compared);
    }
  }
  return measured_comparison(steps);
}

}  // namespace paradyse
