// paradyse train: the main job.
#include "paradyse/run/train.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <set>
#include <stdexcept>

#include <fmt/format.h>

#include "paradyse/plan/strategy.h"
#include "src/cli/commands.h"
#include "src/cli/inputs.h"
#include "src/cli/interrupt.h"
#include "src/cli/progress.h"
#include "src/cli/run_options.h"
#include "src/cli/tell.h"
#include "src/plan/base/bytes_text.h"
#include "src/plan/base/disk_file.h"
#include "src/plan/base/number_text.h"
#include "src/plan/base/printable.h"
#include "src/plan/base/shell_word.h"
#include "src/plan/base/wrapped_text.h"
#include "src/plan/config/fields.h"
#include "src/plan/report/prediction_error.h"
#include "src/plan/report/run_report.h"
#include "src/run/train/kept_plans.h"
#include "src/run/train/summary_json.h"

namespace paradyse::cli {
namespace {

void print_table(const std::vector<OptionRow>& table, const Common& common) {
  tell(
      "predicted seconds for one document (forward, backward, recompute) and\n"
      "memory on the rank with the highest peak, by tokens:\n");
  // One column a length.  Of all options those that are among the three fastest that fit somewhere,
  // and each strategy as it is without recomputation.
  std::vector<std::int64_t> lengths;
  std::vector<std::string> options;
  std::map<std::pair<std::string, std::int64_t>, std::string> cells;
  std::map<std::int64_t, std::vector<std::pair<double, std::string>>> fitting;
  for (const OptionRow& row : table) {
    if (lengths.empty() || lengths.back() != row.length) {
      lengths.push_back(row.length);
    }
    if (lengths.size() == 1) {
      options.push_back(row.option);
    }
    if (row.fits) {
      fitting[row.length].emplace_back(row.seconds, row.option);
    }
    cells[{row.option, row.length}] = fmt::format(
        "{:.3f} s {}{}", row.seconds, bytes_text(row.peak_bytes), row.fits ? "" : " (no)");
  }
  std::set<std::string> shown;
  for (const Strategy& s : strategies("attention")) {
    shown.insert(s.name + "+" + to_string(s.verb));
  }
  for (auto& [length, candidates] : fitting) {
    std::sort(candidates.begin(), candidates.end());
    for (std::size_t i = 0; i < std::min<std::size_t>(3, candidates.size()); ++i) {
      shown.insert(candidates[i].second);
    }
  }
  std::vector<std::vector<std::string>> rows = {{"strategy"}};
  for (const std::int64_t n : lengths) {
    rows.front().push_back(fmt::format("{}", n));
  }
  for (const std::string& option : options) {
    if (!shown.contains(option)) {
      continue;
    }
    std::vector<std::string> row = {option};
    for (const std::int64_t n : lengths) {
      row.push_back(cells[{option, n}]);
    }
    rows.push_back(row);
  }
  // The longest and the shortest are left out last: memory decides at the one, most have the other.
  std::vector<std::string> drop;
  if (lengths.size() > 1) {
    drop.assign(rows.front().begin() + 2, rows.front().end() - 1);
    drop.push_back(rows.front()[1]);
  }
  const std::string text = common.table(rows, {.drop = drop});
  tell(
      "{}{}{} of {} options are shown\n",
      text,
      text.find("(no)") == std::string::npos ? "" : "(no): does not fit the memory budget; ",
      rows.size() - 1,
      options.size());
}

Json to_json(const TrainSummary& s) {
  Json json = {{"folder", s.folder.string()}};
  json.update(json_of(s));
  return json;
}

// The last loss beside the first, where they are of different steps.
std::string loss_text(const TrainSummary& s) {
  if (!std::isfinite(s.first_loss)) {
    return "none: no step has a loss";
  }
  if (s.loss_steps == 0) {
    return fmt::format("{:.4f} (of the one step that has a loss)", s.last_loss);
  }
  const std::string steps =
      s.loss_steps == 1
          ? "the first and the last step"
          : fmt::format("means of the first {0} and the last {0} steps", s.loss_steps);
  return fmt::format(
      "{:.4f} -> {:.4f} ({}; {:.0f} % of the first)",
      s.first_loss,
      s.last_loss,
      steps,
      100 * s.last_loss / s.first_loss);
}

// How one step was planned, and why so.
void print_plan(const TrainSummary& s) {
  constexpr std::size_t kLookedAt = 20;  // steps, for one that shows most
  try {
    const ReportedRun run = read_run(s.folder);
    const ChosenPlans chosen = chosen_plans(run, kLookedAt);
    if (!chosen.plans.empty()) {
      const auto& [step, plan] = chosen.plans[chosen.first];
      fmt::print("{}", printable(step_text(run, run.steps[step], plan)));
    }
  } catch (const std::exception& error) {  // the run is over and saved
    tell("no plan is shown: {}\n", message_of(error));
  }
}

// A name, and in a column beside it what there is to say, in lines of 80.
void print_fact(const std::string& name, const std::string& text) {
  const std::string margin(16, ' ');
  std::string lines = wrapped_text(text, margin, 80);
  lines.replace(0, name.size(), name);
  std::fputs(lines.c_str(), stdout);
}

void print_summary(const TrainSummary& s, const RunConfig& config) {
  const RunConfig::Output& output = config.output;
  fmt::print(
      "{} after {} steps, {:.1f} s\n", s.interrupted ? "interrupted" : "done", s.steps, s.seconds);
  if (s.steps > 0) {
    print_fact("loss", loss_text(s));
    if (s.steps_without_label > 0) {
      print_fact(
          "no label",
          fmt::format(
              "in {} of {} steps no label counted: the weights did not change",
              s.steps_without_label,
              s.steps));
    }
    fmt::print(
        "tokens/s        {:.0f}\npredicted       {:.3g} s for {:.3g} s of "
        "steps\nidle            {} of the ranks' time, waiting for slower groups\n",
        static_cast<double>(s.tokens) / s.seconds,
        s.predicted_seconds,
        s.seconds,
        percent_text(s.idle_share));
  }
  if (s.best_static) {
    const bool unclear = within_error(s.best_static->ratio(), s.prediction_error);
    print_fact(
        "best static",
        fmt::format(
            "only {}, with the recomputation it needs: predicted {:.3g} s for {} of {} steps; this "
            "run's plans: {:.3g} s, ratio {:.2f} (costs at the end). Measured steps took {:.2f} "
            "times as long as predicted (geometric mean) and are off by a factor of {:.2f}: {}",
            s.best_static->strategy,
            s.best_static->seconds,
            s.best_static->batches,
            s.steps,
            s.best_static->ours,
            s.best_static->ratio(),
            s.measured_over_predicted,
            1 + s.prediction_error,
            verdict(
                unclear ? "within the prediction error" : "beyond the prediction error",
                unclear || s.best_static->ratio() > 1)));
  }
  if (s.compared) {
    print_fact("compared", text_of(*s.compared));
  }
  if (s.late_plans > 0) {
    fmt::print(
        "late plans      {} steps ran with a simpler plan, since theirs was late\n", s.late_plans);
  }
  if (std::isfinite(s.eval_loss)) {
    fmt::print("held-out loss   {:.4f}\n", s.eval_loss);
  }
  fmt::print("peak memory     {} on the rank with the highest peak\n", bytes_text(s.peak_bytes));
  fmt::print("steps that used each strategy (a step may use several):\n");
  for (const auto& [name, steps] : s.steps_by_strategy) {
    fmt::print("  {:<50} {}\n", printable(name), steps);
  }
  fmt::print("run folder      {}\n", printable(s.folder.string()));
  const std::string folder = shell_word(s.folder.string());
  fmt::print(
      "  config.toml (resolved), plans/ (one a step), metrics.jsonl, summary.json{}{}\n{}",
      output.model ? ",\n  model/ (a Hugging Face folder)" : "",
      config.checkpoint.keep > 0 ? ", checkpoints/" : "",
      s.trace.empty()
          ? ""
          : fmt::format("  {}: open it at https://ui.perfetto.dev\n", s.trace.filename().string()));
  print_plan(s);
  fmt::print("next\n  see the run     paradyse report {}\n", folder);
  // A run of epochs that is through ends in a step of what was left, so it cannot be longer.
  if (config.checkpoint.keep > 0 && (s.interrupted || config.train.epochs == 0)) {
    fmt::print(
        "  continue        paradyse train --resume {}{}\n",
        folder,
        s.interrupted ? "" : fmt::format(" --set train.steps={}", 2 * config.train.steps));
  }
  if (output.model) {
    fmt::print(
        "  evaluate        paradyse eval --model {} --data DATA\n",
        shell_word((s.folder / "model").string()));
  }
}

int train_on(
    Backend& backend, const LoadedConfig& config, const RunOptions& options, const Common& common) {
  Progress progress;
  TrainHooks hooks;
  hooks.begins = catch_interrupts;
  hooks.saving = count_saving;
  hooks.stop = &interrupted();
  hooks.stop_reason = &interrupted_by();
  hooks.save = &save_asked();
  hooks.note = [&](const std::string& line) {
    progress.finish();
    say(line);
  };
  if (!common.json) {
    hooks.planned = [&common](const std::vector<OptionRow>& table) { print_table(table, common); };
    hooks.profiling = [&](const ProfileProgress& now) { progress.show(now); };
    hooks.evaluating = progress.hook(/*quiet=*/false);
    hooks.step = [&](const StepReport& report) { progress.show(report); };
  }
  const TrainSummary summary = train(
      config,
      hooks,
      backend,
      {.resume = resumed_run(options, config.config),
       .checkpoint = options.resume_from,
       .starts_over = !options.auto_resume.empty(),
       .replay = options.replay,
       .plan = options.plan});
  progress.finish();
  const int code = summary.interrupted ? 128 + summary.stop_reason : kOk;
  if (!backend.leads()) {
    return code;
  }
  try {
    if (common.json) {
      print_json(to_json(summary));
    } else {
      print_summary(summary, config.config);
    }
  } catch (const std::runtime_error& error) {  // the run is over and saved
    tell(
        "the summary is not shown ({}); it is in {}\n",
        error.what(),
        (summary.folder / "summary.json").string());
  }
  return code;
}

// A plan file is compared by what is in it.  A run folder is one that all ranks see, which those
// do not that have another file system there: ranks would take other ways.
std::vector<Given> given_by(const LoadedConfig& config, const RunOptions& options) {
  std::vector<Given> given = paradyse::given_by(config);
  if (!options.resume.empty()) {
    given.push_back({"--resume", "given"});
  }
  if (!options.auto_resume.empty()) {
    const bool none = resumed_run(options, config.config).empty();
    given.push_back({"--auto-resume", none ? "without a checkpoint" : "with checkpoints"});
  }
  if (!options.replay.empty()) {
    const bool plans = std::filesystem::exists(first_plan_of(options.replay));
    given.push_back({"--replay", plans ? "with plans" : "without " + first_plan_of("").string()});
  }
  given.push_back({"--resume-from", options.resume_from});
  if (!options.plan.empty()) {
    given.push_back(given_file("the file of --plan", options.plan));
  }
  return given;
}

int run_train(const RunOptions& options, const Common& common) {
  catch_save_wishes();
  if (!options.print_config) {
    outlive_readers();
  }
  const LoadedConfig config = load(options);
  if (options.print_config) {
    print_config(config, common);
    return kOk;
  }
  return on_backend(
      backend_options(config.config, options),
      given_by(config, options),
      [&](const std::shared_ptr<Backend>& backend) {
        return train_on(*backend, config, options, common);
      });
}

}  // namespace

void add_train(CLI::App& app, Common& common) {
  auto [command, options] = add_command<RunOptions>(
      app,
      common,
      "train",
      "Train a model with a plan for the document lengths of every batch",
      run_train);
  add_run_options(*command, *options);
  command
      ->add_option(
          "--resume",
          options->resume,
          "Continue the run in this folder from its newest checkpoint, with its configuration; "
          "--set may change " +
              changeable_keys())
      ->option_text("RUN");
  command
      ->add_option(
          "--resume-from",
          options->resume_from,
          "Checkpoint of --resume: newest (default; a damaged one is replaced by the one before "
          "it), previous, or the number of its step")
      ->option_text("CHECKPOINT");
  command
      ->add_option(
          "--auto-resume",
          options->auto_resume,
          "Name of the run (output.name). If it has a checkpoint it is resumed, otherwise it is "
          "started: the same command for every start of a job")
      ->option_text("NAME");
  command
      ->add_option(
          "--replay",
          options->replay,
          "Start a new run with the configuration and the plans of the run in this folder")
      ->option_text("RUN");
  command
      ->add_option(
          "--plan",
          options->plan,
          "Use this plan file for every step; each step draws documents of its lengths")
      ->option_text("FILE");
  command
      ->add_option(
          "--compare",
          options->compare,
          "Every N steps also run the best static plan and report the measured ratio: short for "
          "--set train.compare=...")
      ->type_name("N")
      ->transform(whole_numbers(0));
}

}  // namespace paradyse::cli
