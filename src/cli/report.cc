// paradyse report: a training run as a page to read (docs/reference/report.md).
#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "src/cli/commands.h"
#include "src/plan/base/bytes_text.h"
#include "src/plan/base/number_text.h"
#include "src/plan/base/printable.h"
#include "src/plan/report/compared_json.h"
#include "src/plan/report/page.h"
#include "src/plan/report/run_report.h"
#include "src/run/memory/reading.h"

namespace paradyse::cli {
namespace {

struct ReportOptions {
  std::string of;  // a run's folder
  std::string out;
  std::int64_t step = 0;  // 0: the one that shows most
  std::vector<std::string> beside;
};

// The step whose plan is shown on the terminal, by its place in the run's steps.
std::size_t shown_step(
    const ReportOptions& options, const ReportedRun& run, const ChosenPlans& chosen) {
  if (options.step == 0) {
    return chosen.plans.at(chosen.first).first;
  }
  const auto found = std::ranges::find(run.steps, options.step, &ReportedStep::step);
  if (found == run.steps.end()) {
    throw std::invalid_argument(fmt::format(
        "--step {}: the run has no such step; it has {}",
        options.step,
        run.steps.empty() ? "none" : fmt::format("1 to {}", run.steps.back().step)));
  }
  return static_cast<std::size_t>(found - run.steps.begin());
}

// What is read, all of it before anything is written.
struct Reported {
  ReportedRun run;
  std::vector<ReportedRun> beside = {};
  ChosenPlans chosen;
  std::string plan = {};  // of the step that is shown
};

Reported read_reported(const ReportOptions& options) {
  Reported found{.run = read_run(options.of), .chosen = {}};
  const ReportedRun& run = found.run;
  for (const std::string& other : options.beside) {
    found.beside.push_back(read_run(other));
  }
  found.chosen = chosen_plans(run);
  const ChosenPlans& chosen = found.chosen;
  if (options.step > 0 || !chosen.plans.empty()) {
    const ReportedStep& step = run.steps[shown_step(options, run, chosen)];
    const std::optional<Plan> its = run.plan_of(step);
    if (!its) {
      throw std::invalid_argument(fmt::format("--step {}: its plan file is missing", step.step));
    }
    found.plan = printable(step_text(run, step, *its));
  }
  return found;
}

int report_run(
    const ReportOptions& options, const std::filesystem::path& out, const Common& common) {
  const auto [run, beside, chosen, plan] = reading([&] { return read_reported(options); });
  write_page(page_data(run, chosen, beside), out);
  const RunTotals all = totals(run);
  const std::optional<MeasuredComparison> compared = measured_comparison(run);
  if (common.json) {
    print_json(
        {{"page", out.string()},
         {"state", run.state},
         {"notes", run.notes},
         {"steps", all.steps},
         {"tokens", all.tokens},
         {"seconds", all.seconds},
         {"predicted_seconds", all.predicted_seconds},
         {"prediction_error", all.error},
         {"measured_over_predicted", all.ratio},
         {"idle_share", all.idle_share},
         {"late_plans", all.late},
         {"peak_bytes", all.peak_bytes},
         {"eval_loss", run.eval_loss},
         {"compared", json_of(compared)},
         {"plan", plan}});
    return kOk;
  }
  fmt::print("{}\n", printable(run.state));
  for (const std::string& note : run.notes) {
    fmt::print("{}\n", printable(note));
  }
  if (all.steps > 0) {
    fmt::print(
        "{:.0f} tokens/s; steps took {:.3g} s (predicted: {:.3g} s)\npeak memory {}; ranks were "
        "idle {} of the time\n{}",
        static_cast<double>(all.tokens) / all.seconds,
        all.seconds,
        all.predicted_seconds,
        bytes_text(all.peak_bytes),
        percent_text(all.idle_share),
        plan);
  }
  if (compared) {
    fmt::print("{}\n", text_of(*compared));
  }
  fmt::print("page: {}\n", out.string());
  return kOk;
}

int run_report(const ReportOptions& options, const Common& common) {
  if (!std::filesystem::is_directory(options.of)) {
    throw std::invalid_argument(
        options.of + ": is " + (std::filesystem::exists(options.of) ? "no folder" : "not there") +
        "; give the folder of a training run");
  }
  const std::filesystem::path out = options.out.empty()
                                        ? std::filesystem::path(options.of) / "report.html"
                                        : std::filesystem::path(options.out);
  expect_writable("--out", out.string());
  return report_run(options, out, common);
}

}  // namespace

void add_report(CLI::App& app, Common& common) {
  auto [command, options] = add_command<ReportOptions>(
      app, common, "report", "Make an HTML page of a training run", run_report);
  command->add_option("run", options->of, "Folder of a training run")->type_name("RUN")->required();
  command
      ->add_option(
          "--out",
          options->out,
          "Page to write (default: RUN/report.html). Only a report page is replaced")
      ->check(writable_file());
  command
      ->add_option(
          "--step",
          options->step,
          "Step whose plan is printed (default: the one with most kinds of groups)")
      ->transform(whole_numbers(1));
  command
      ->add_option(
          "--beside",
          options->beside,
          "Other runs to compare on the page, such as a static strategy's")
      ->type_name("RUN");
}

}  // namespace paradyse::cli
