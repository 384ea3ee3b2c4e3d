// What `paradyse-lab switching` measured, as a file: docs/internals/switching_report.md.
#include <algorithm>
#include <cstddef>
#include <optional>
#include <set>
#include <stdexcept>
#include <utility>

#include <nlohmann/json.hpp>

#include "lab/report/switching.h"
#include "src/plan/base/disk_file.h"
#include "src/plan/base/json_node.h"
#include "src/plan/base/json_text.h"
#include "src/plan/base/plan_path.h"
#include "src/plan/base/text_match.h"
#include "src/plan/profile/held_out_json.h"

namespace paradyse {
namespace {

using Json = nlohmann::ordered_json;  // keys in the order in which people read them

constexpr const char* kFormat = "paradyse-switching";
constexpr std::int64_t kVersion = 1;

// --- writing -------------------------------------------------------------------------------------

Json json_of(const SwitchingStep& step) {
  Json json = {{"tokens", step.tokens}, {"longest", step.longest}, {"fits", step.fits}};
  if (step.fits || !step.seconds.empty()) {
    json["seconds"] = step.seconds;
  }
  json["planning_seconds"] = step.planning_seconds;
  json["predicted_seconds"] = step.predicted_seconds;
  json["peak_bytes"] = step.peak_bytes;
  json["predicted_peak_bytes"] = step.predicted_peak_bytes;
  json["programs"] = step.programs;
  return json;
}

Json json_of(const SwitchingCorpus& corpus) {
  Json json = {
      {"name", corpus.name},
      {"order", corpus.order},
      {"packed", corpus.packed},
      {"runs", Json::array()}};
  for (const SwitchingRun& run : corpus.runs) {
    Json steps = Json::array();
    for (const SwitchingStep& step : run.steps) {
      steps.push_back(json_of(step));
    }
    json["runs"].push_back({{"name", run.name}, {"kind", run.kind}, {"steps", std::move(steps)}});
  }
  return json;
}

Json json_of(const SwitchingResult& result) {
  Json json = {
      {"format", kFormat},
      {"version", kVersion},
      {"command", result.command},
      {"machine", result.machine},
      {"model", result.model},
      {"backend", result.backend},
      {"ranks", result.ranks},
      {"memory_per_rank", result.memory_per_rank},
      {"costs", result.costs},
      {"errors", Json::array()},
      {"corpora", Json::array()},
      {"longest", Json::array()}};
  for (const HeldOutError& error : result.errors) {
    json["errors"].push_back(json_of(error));
  }
  for (const SwitchingCorpus& corpus : result.corpora) {
    json["corpora"].push_back(json_of(corpus));
  }
  for (const LongestDocument& longest : result.longest) {
    json["longest"].push_back({{"run", longest.run}, {"tokens", longest.tokens}});
  }
  return json;
}

// --- reading -------------------------------------------------------------------------------------

std::string name_from(const JsonNode& node) {
  std::string name = node.text();
  if (name.empty()) {
    node.fail("expected a name, found \"\"");
  }
  return name;
}

std::string one_of(const JsonNode& node, const std::vector<std::string>& accepted) {
  std::string word = node.text();
  if (std::find(accepted.begin(), accepted.end(), word) == accepted.end()) {
    node.fail(
        "expected one of " + joined(accepted, ", ") + ", found \"" + word + "\"" +
        did_you_mean(word, accepted));
  }
  return word;
}

SwitchingStep switching_step_from(const JsonNode& node) {
  node.allow(
      {"tokens",
       "longest",
       "fits",
       "seconds",
       "planning_seconds",
       "predicted_seconds",
       "peak_bytes",
       "predicted_peak_bytes",
       "programs"});
  SwitchingStep step{
      .tokens = node.at("tokens").integer<std::int64_t>(1),
      .longest = node.at("longest").integer<std::int64_t>(1),
      .fits = node.at("fits").truth(),
      .seconds = {},
      .planning_seconds = node.at("planning_seconds").number_from_0(),
      .predicted_seconds = node.at("predicted_seconds").number_from_0(),
      .peak_bytes = node.at("peak_bytes").integer<std::int64_t>(0),
      .predicted_peak_bytes = node.at("predicted_peak_bytes").integer<std::int64_t>(0)};
  if (step.longest > step.tokens) {
    node.at("longest").fail(
        "expected at most the " + std::to_string(step.tokens) + " tokens of the step, found " +
        std::to_string(step.longest));
  }
  const std::vector<JsonNode> seconds =
      node.has("seconds") ? node.at("seconds").elements() : std::vector<JsonNode>{};
  for (const JsonNode& one : seconds) {
    step.seconds.push_back(one.number_from_0());
    if (step.seconds.back() == 0) {
      one.fail("expected seconds above 0, found 0");
    }
  }
  if (step.fits && seconds.empty()) {
    (node.has("seconds") ? node.at("seconds") : node)
        .fail("a step that fits has the seconds of each repeat, at least of one");
  }
  if (!step.fits && !seconds.empty()) {
    node.at("seconds").fail(
        "a step that does not fit was not run: expected no seconds, found " +
        std::to_string(seconds.size()));
  }
  for (const JsonNode& program : node.at("programs").elements()) {
    step.programs.push_back(program.text());
  }
  return step;
}

SwitchingRun run_from(const JsonNode& node) {
  node.allow({"name", "kind", "steps"});
  SwitchingRun run{
      .name = name_from(node.at("name")),
      .kind = one_of(node.at("kind"), {"ours", "static", "published", "ablation"}),
      .steps = {}};
  std::size_t repeats = 0;  // of the first step that fits
  for (const JsonNode& one : node.at("steps").elements()) {
    run.steps.push_back(switching_step_from(one));
    if (!run.steps.back().fits) {
      continue;
    }
    const std::size_t found = run.steps.back().seconds.size();
    if (repeats != 0 && repeats != found) {
      one.at("seconds").fail(
          "expected " + std::to_string(repeats) + " repeats as in the steps before, found " +
          std::to_string(found));
    }
    repeats = found;
  }
  return run;
}

// Throws unless the run has the steps of the corpus' first.
void expect_steps(const JsonNode& node, const SwitchingRun& run, const SwitchingRun& first) {
  if (run.steps.size() != first.steps.size()) {
    node.at("steps").fail(
        "expected " + std::to_string(first.steps.size()) + " steps as in the run '" + first.name +
        "', found " + std::to_string(run.steps.size()));
  }
  const std::vector<JsonNode> steps = node.at("steps").elements();
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const auto expect = [&](const char* key, std::int64_t found, std::int64_t expected) {
      if (found != expected) {
        steps[i].at(key).fail(
            "expected " + std::to_string(expected) + " as in the run '" + first.name + "', found " +
            std::to_string(found));
      }
    };
    expect("tokens", run.steps[i].tokens, first.steps[i].tokens);
    expect("longest", run.steps[i].longest, first.steps[i].longest);
  }
}

SwitchingCorpus corpus_from(const JsonNode& node) {
  node.allow({"name", "order", "packed", "runs"});
  SwitchingCorpus corpus{
      .name = name_from(node.at("name")),
      .order = one_of(node.at("order"), {"sorted", "shuffled"}),
      .packed = node.at("packed").truth(),
      .runs = {}};
  std::set<std::string> names;
  for (const JsonNode& one : node.at("runs").elements()) {
    SwitchingRun run = run_from(one);
    if (!names.insert(run.name).second) {
      one.at("name").fail(
          "another run of this corpus has the name '" + run.name + "'; give each its own name");
    }
    expect_steps(one, run, corpus.runs.empty() ? run : corpus.runs.front());
    corpus.runs.push_back(std::move(run));
  }
  return corpus;
}

SwitchingResult result_from(const JsonNode& root) {
  expect_format(
      root, kFormat, kVersion, "give a file that `paradyse-lab switching` wrote", "measure again");
  root.allow(
      {"format",
       "version",
       "command",
       "machine",
       "model",
       "backend",
       "ranks",
       "memory_per_rank",
       "costs",
       "errors",
       "corpora",
       "longest"});
  SwitchingResult result{
      .command = root.at("command").text(),
      .machine = root.at("machine").text(),
      .model = root.at("model").text(),
      .backend = root.at("backend").text(),
      .ranks = root.at("ranks").integer<int>(1),
      .memory_per_rank = root.at("memory_per_rank").integer<std::int64_t>(0),
      .costs = root.at("costs").text(),
      .errors = {},
      .corpora = {},
      .longest = {}};
  if (root.has("errors")) {  // files of before have none
    for (const JsonNode& one : root.at("errors").elements()) {
      result.errors.push_back(held_out_error_from(one));
    }
  }
  std::set<std::tuple<std::string, std::string, bool>> corpora;
  for (const JsonNode& one : root.at("corpora").elements()) {
    SwitchingCorpus corpus = corpus_from(one);
    if (!corpora.insert({corpus.name, corpus.order, corpus.packed}).second) {
      one.at("name").fail(
          "another corpus has the name '" + corpus.name +
          "' and has the same order and packing; give each its own name");
    }
    result.corpora.push_back(std::move(corpus));
  }
  std::set<std::string> runs;
  for (const JsonNode& one : root.at("longest").elements()) {
    one.allow({"run", "tokens"});
    result.longest.push_back(
        {.run = name_from(one.at("run")), .tokens = one.at("tokens").integer<std::int64_t>(0)});
    if (!runs.insert(result.longest.back().run).second) {
      one.at("run").fail("'" + result.longest.back().run + "' appears twice; keep one");
    }
  }
  return result;
}

constexpr const char* kWhole = "the result";

}  // namespace

void write_switching(const SwitchingResult& result, const std::filesystem::path& file) {
  const Json json = json_of(result);
  // Who reads it refuses what is wrong: better now, while what was measured is at hand.
  const nlohmann::json same = json;
  const JsonSource source{.name = file.string(), .whole = kWhole};
  result_from({same, source});
  replace_file(file, json_text(json));
}

SwitchingResult read_switching(const std::filesystem::path& file) {
  const std::string text = content_of_named(
      file, "make it with `paradyse-lab switching` (docs/internals/switching_report.md)");
  const JsonSource source{.name = file.string(), .whole = kWhole};
  const nlohmann::json json = parse_json(text, source);
  return result_from({json, source});
}

}  // namespace paradyse
