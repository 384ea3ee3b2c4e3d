// paradyse report: what `paradyse bench switching` measured as a page to read (docs/report.md).
#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "src/cli/commands.h"
#include "src/plan/base/number_text.h"
#include "src/plan/report/switching.h"

namespace paradyse::cli {
namespace {

struct ReportOptions {
  std::string file;
  std::string out;  // "": file with .html
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

std::string percent(double part) { return percent_text(part); }

void print(const SwitchingCorpus& corpus) {
  const std::string best = best_static(corpus);
  fmt::print(
      "{}, {}{}{}\n",
      corpus.name,
      corpus.order,
      corpus.packed ? ", packed" : "",
      best.empty() ? "" : "; best static run: " + best);
  std::vector<std::vector<std::string>> rows = {
      {"run",
       "fit",
       "seconds",
       "on common",
       "time off by",
       "memory off by",
       "over the fastest of each step"}};
  for (const SwitchingSummary& summary : summaries(corpus)) {
    rows.push_back(
        {summary.run,
         std::to_string(summary.steps_that_fit) + " of " + std::to_string(summary.steps),
         number(summary.seconds),
         number(summary.seconds_on_common),
         percent(summary.time_error),
         percent(summary.memory_error),
         percent(summary.over_fastest)});
  }
  fmt::print("{}\n", aligned(rows, 1));
}

int run_report(const ReportOptions& options, const Common& common) {
  const std::filesystem::path out =
      options.out.empty() ? std::filesystem::path(options.file).replace_extension(".html")
                          : std::filesystem::path(options.out);
  expect_writable("--out", out.string());
  const SwitchingResult result = read_switching(options.file);
  write_html_report(result, out);
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
    print(corpus);
  }
  fmt::print("page: {}\n", out.string());
  return kOk;
}

}  // namespace

void add_report(CLI::App& app, Common& common) {
  auto [command, options] = add_command<ReportOptions>(
      app,
      common,
      "report",
      "Make an HTML page of what `paradyse bench switching` measured",
      run_report);
  command->add_option("file", options->file, "JSON file of paradyse bench switching")
      ->type_name("FILE")
      ->required();
  command
      ->add_option(
          "--out",
          options->out,
          "The page; FILE with .html when left out. Replaces only such pages")
      ->check(writable_file());
}

}  // namespace paradyse::cli
