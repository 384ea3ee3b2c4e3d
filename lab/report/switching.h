// What `paradyse-lab switching` measured: every run over the same documents, and what a report
// makes of it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "src/plan/profile/fit.h"

namespace paradyse {

// One step of a run: the documents it takes together (one, unless packed).
struct SwitchingStep {
  std::int64_t tokens = 0;       // of all its documents
  std::int64_t longest = 0;      // of them
  bool fits = true;              // else it was not run: no plan of this run fits the memory
  std::vector<double> seconds;   // measured, one a repeat; the whole step, planning apart
  double planning_seconds = 0;   // the first time
  double predicted_seconds = 0;  // 0: not predicted
  std::int64_t peak_bytes = 0;   // measured, of the fullest rank
  std::int64_t predicted_peak_bytes = 0;
  std::vector<std::string> programs = {};  // of its micro-batches: "3 x METP+pass; 1 x ..."

  friend bool operator==(const SwitchingStep&, const SwitchingStep&) = default;
};

struct SwitchingRun {
  std::string name;  // "ours", "static METP", "published heuristic", "ours without METP"
  std::string kind;  // "ours", "static", "published", "ablation"
  std::vector<SwitchingStep> steps;  // in the corpus' order; all runs of a corpus have the same

  friend bool operator==(const SwitchingRun&, const SwitchingRun&) = default;
};

struct SwitchingCorpus {
  std::string name;   // "code", "dna", "GitHubCode bins"
  std::string order;  // "sorted", "shuffled"
  bool packed = false;
  std::vector<SwitchingRun> runs;

  friend bool operator==(const SwitchingCorpus&, const SwitchingCorpus&) = default;
};

// Tokens of the longest document that a run can train on, by the budget.
struct LongestDocument {
  std::string run;
  std::int64_t tokens = 0;

  friend bool operator==(const LongestDocument&, const LongestDocument&) = default;
};

struct SwitchingResult {
  std::string command;  // that reproduces it
  std::string machine;
  std::string model;  // "gpt: 4 layers, hidden 192, ..."
  std::string backend;
  int ranks = 1;
  std::int64_t memory_per_rank = 0;
  std::string costs;  // what plans went by: "structured, measured", "closed form"
  std::vector<HeldOutError> errors = {};  // of those costs, on lengths that they had not seen
  std::vector<SwitchingCorpus> corpora;
  std::vector<LongestDocument> longest;

  friend bool operator==(const SwitchingResult&, const SwitchingResult&) = default;
};

// JSON ("paradyse-switching", version 1; docs/internals/switching_report.md).  Both throw
// std::invalid_argument naming file and JSON path for what is no such result; what write_ takes
// read_ gives back.  write_ throws std::runtime_error for a file that cannot be written: what was
// there stays.
void write_switching(const SwitchingResult& result, const std::filesystem::path& file);
SwitchingResult read_switching(const std::filesystem::path& file);

// What a run took against others, over the same steps.  NaN: there is no such number.
struct SwitchingSummary {
  std::string run;
  std::int64_t steps = 0;
  std::int64_t steps_that_fit = 0;
  double seconds = 0;  // median over the repeats of the sum over its steps that fit
  double least = 0;    // of that sum
  double most = 0;
  // Over the steps that every static run fits, as the next two; NaN: there are none, or this run
  // does not fit all of them.
  double seconds_on_common = 0;
  double common_least = 0;
  double common_most = 0;
  // Mean of |predicted / measured - 1| over its steps that fit and are predicted; NaN: none is.
  // Measured seconds are the median of the repeats.
  double time_error = 0;
  double memory_error = 0;
  // Mean over its steps of its seconds over those of the fastest run of that step, less one: what
  // better choices could gain.  The fastest is picked on other repeats than it is judged on, or it
  // were the least of many noisy numbers; by chance it may be below 0.  NaN: of one repeat.
  double over_fastest = 0;
};
std::vector<SwitchingSummary> summaries(const SwitchingCorpus& corpus);
// Of the static runs that fit as many steps as any: the fastest on the steps that all of them fit.
// "": no static run fits a step.
std::string best_static(const SwitchingCorpus& corpus);

// What the page of it shows (page.h): for each corpus cumulative seconds and seconds a step against
// length, totals, time by length bin, prediction errors and plan choices; longest lengths; errors
// of the costs; and the command that reproduces it.
nlohmann::ordered_json page_data(const SwitchingResult& result);

}  // namespace paradyse
