// paradyse-lab switching-report: what `paradyse-lab switching` measured as a page to read
// (docs/internals/switching_report.md).
#include <cmath>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "lab/cli/commands.h"
#include "lab/report/switching.h"
#include "src/plan/base/number_text.h"
#include "src/plan/base/printable.h"
#include "src/plan/report/page.h"
#include "src/run/memory/reading.h"

namespace paradyse::cli {
namespace {

struct SwitchingReportOptions {
  std::string file;
  std::string out;
};

Json json_of(const SwitchingCorpus& corpus) {
  Json json = {
      {"name", corpus.name},
      {"order", corpus.order},
      {"packed", corpus.packed},
      {"best_static", best_static(corpus)},
      {"runs", Json::array()}};
  for (const SwitchingSummary& summary : summaries(corpus)) {
    json["runs"].push_back(
        {{"run", summary.run},
         {"steps", summary.steps},
         {"steps_that_fit", summary.steps_that_fit},
         {"seconds", summary.seconds},
         {"least", summary.least},
         {"most", summary.most},
         {"seconds_on_common",
          summary.seconds_on_common},  // NaN is written as null, here and below
         {"common_least", summary.common_least},
         {"common_most", summary.common_most},
         {"time_error", summary.time_error},
         {"memory_error", summary.memory_error},
         {"over_fastest", summary.over_fastest}});
  }
  return json;
}

std::string number(double value) { return std::isnan(value) ? "-" : fmt::format("{:.4g}", value); }

void print(const SwitchingCorpus& corpus, const Common& common) {
  const std::string best = best_static(corpus);
  fmt::print(
      "{}, {}{}{}\n",
      printable(corpus.name),
      printable(corpus.order),
      corpus.packed ? ", packed" : "",
      best.empty() ? "" : "; best static run: " + printable(best));
  std::vector<std::vector<std::string>> rows = {
      {"run",
       "fit",
       "seconds",
       "on common steps",
       "time off by",
       "memory off by",
       "over the fastest of each step"}};
  for (const SwitchingSummary& summary : summaries(corpus)) {
    rows.push_back(
        {printable(summary.run),
         std::to_string(summary.steps_that_fit) + " of " + std::to_string(summary.steps),
         number(summary.seconds),
         number(summary.seconds_on_common),
         percent_text(summary.time_error),
         percent_text(summary.memory_error),
         percent_text(summary.over_fastest)});
  }
  fmt::print("{}\n", common.table(rows, {.drop = {"on common steps", "memory off by"}}));
}

int report_of(const std::string& file, const std::filesystem::path& out, const Common& common) {
  const SwitchingResult result = read_switching(file);
  write_page(page_data(result), out);
  if (common.json) {
    Json json = {{"page", out.string()}, {"corpora", Json::array()}, {"longest", Json::array()}};
    for (const SwitchingCorpus& corpus : result.corpora) {
      json["corpora"].push_back(json_of(corpus));
    }
    for (const LongestDocument& longest : result.longest) {
      json["longest"].push_back({{"run", longest.run}, {"tokens", longest.tokens}});
    }
    print_json(json);
    return kOk;
  }
  for (const SwitchingCorpus& corpus : result.corpora) {
    print(corpus, common);
  }
  fmt::print("page: {}\n", out.string());
  return kOk;
}

int run_switching_report(const SwitchingReportOptions& options, const Common& common) {
  const std::filesystem::path file = options.file;
  if (!std::filesystem::exists(file)) {
    throw std::invalid_argument(
        options.file + ": is not there; give a file that `paradyse-lab switching` made");
  }
  const std::filesystem::path out = options.out.empty()
                                        ? std::filesystem::path(file).replace_extension(".html")
                                        : std::filesystem::path(options.out);
  expect_writable("--out", out.string());
  return reading([&] { return report_of(options.file, out, common); });
}

}  // namespace

void add_switching_report(CLI::App& app, Common& common) {
  auto [command, options] = add_command<SwitchingReportOptions>(
      app,
      common,
      "switching-report",
      "Make an HTML page of a result of `switching`",
      run_switching_report);
  command->add_option("file", options->file, "Result file")->type_name("FILE")->required();
  command
      ->add_option(
          "--out",
          options->out,
          "Page to write (default: FILE with .html). Only a report page is replaced")
      ->check(writable_file());
}

}  // namespace paradyse::cli
