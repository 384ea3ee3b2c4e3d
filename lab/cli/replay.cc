// paradyse-lab replay: the ParaDySe publication played again from its own numbers.
#include <cstdint>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "lab/cli/commands.h"
#include "lab/replay/paradyse.h"
#include "src/plan/base/number_text.h"

namespace paradyse::cli {
namespace {

struct ReplayOptions {
  std::int64_t sequences = 20000;
  std::uint64_t seed = 1;
};

std::string percent(double fraction) { return signed_percent_text(fraction); }

Json to_json(const std::vector<PublishedReduction>& reductions) {
  Json rows = Json::array();
  for (const PublishedReduction& one : reductions) {
    rows.push_back(
        {{"model", one.model},
         {"corpus", one.corpus},
         {"best_against_worst", one.against_worst(one.best_seconds)},
         {"best_against_best", one.against_best(one.best_seconds)},
         {"heuristic_against_worst", one.against_worst(one.heuristic_seconds)},
         {"heuristic_against_best", one.against_best(one.heuristic_seconds)},
         {"published_against_worst", one.published ? Json(*one.published) : Json(nullptr)},
         {"static_seconds", one.static_seconds},
         {"best_seconds", one.best_seconds},
         {"heuristic_seconds", one.heuristic_seconds}});
  }
  return rows;
}

Json to_json(const std::vector<PublishedAblation>& ablations) {
  Json rows = Json::array();
  for (const PublishedAblation& one : ablations) {
    Json row = {{"without", one.without}};
    if (one.found) {
      row["longest"] = one.found->longest;
      row["seconds"] = one.found->seconds;
      row["full_seconds_to_there"] = one.full_seconds;
      row["switches"] = one.found->switches;
    }
    if (one.published_longest > 0) {
      row["published_longest"] = one.published_longest;
      row["published_seconds"] = one.published_seconds;
    }
    if (one.published_full_seconds > 0) {
      row["published_full_seconds_to_there"] = one.published_full_seconds;
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

Json lengths_to_json() {
  Json rows = Json::array();
  for (const PublishedModel& model : published_models()) {
    Json longest = Json::object();
    for (std::size_t i = 0; i < model.strategies.size(); ++i) {
      longest[model.strategies[i].name] = model.longest(i);
    }
    rows.push_back(
        {{"model", model.name}, {"longest", std::move(longest)}, {"gain", model.length_gain()}});
  }
  return rows;
}

Json to_json(const std::vector<PublishedShare>& shares) {
  Json rows = Json::array();
  for (const PublishedShare& one : shares) {
    rows.push_back(
        {{"up_to", one.up_to},
         {"share", one.found},
         {"share_of_short_even_bins", one.of_short_even_bins},
         {"published", one.published}});
  }
  return rows;
}

void print_shares(const std::vector<PublishedShare>& shares, const Common& common) {
  std::vector<std::vector<std::string>> rows = {
      {"sequences up to", "share of seconds", "short, even bins", "published"}};
  for (const PublishedShare& one : shares) {
    auto& row = rows.emplace_back();
    row.push_back(std::to_string(one.up_to));
    for (const double share : {one.found, one.of_short_even_bins, one.published}) {
      row.push_back(fmt::format("{:.3f}", share));
    }
  }
  fmt::print(
      "\nGPT on GRCh38, the heuristic's seconds by length; short, even bins: lengths spread evenly "
      "in\ntheir bins, without those for which no plan fits\n{}",
      common.table(rows, {}));
}

void print_reductions(const std::vector<PublishedReduction>& reductions, const Common& common) {
  std::vector<std::vector<std::string>> rows = {
      {"model",
       "corpus",
       "best of four: over the worst static",
       "the best static",
       "heuristic: the worst",
       "the best",
       "published: the worst"}};
  for (const PublishedReduction& one : reductions) {
    rows.push_back(
        {one.model,
         one.corpus,
         percent(one.against_worst(one.best_seconds)),
         percent(one.against_best(one.best_seconds)),
         percent(one.against_worst(one.heuristic_seconds)),
         percent(one.against_best(one.heuristic_seconds)),
         one.published ? signed_percent_text(*one.published, 2) : "-"});
  }
  fmt::print("seconds of all sequences\n{}", common.table(rows, {.left = 2}));
}

void print_lengths(const Common& common) {
  std::vector<std::vector<std::string>> rows = {{"model"}};
  for (const PublishedStrategy& strategy : published_models().front().strategies) {
    rows[0].push_back(strategy.name);
  }
  rows[0].emplace_back("gain");
  for (const PublishedModel& model : published_models()) {
    auto& row = rows.emplace_back();
    row.push_back(model.name);
    for (std::size_t i = 0; i < model.strategies.size(); ++i) {
      row.push_back(std::to_string(model.longest(i)));
    }
    row.push_back(percent(model.length_gain()));
  }
  fmt::print(
      "\nlongest sequence of each strategy (published: GPT 329728 switching, 117248 the best "
      "static, +181.22 %)\n{}",
      common.table(rows, {}));
}

void print_ablations(const std::vector<PublishedAblation>& ablations, const Common& common) {
  std::vector<std::vector<std::string>> rows = {
      {"without",
       "longest",
       "seconds",
       "full to there",
       "worth",
       "switches",
       "published: longest",
       "seconds",
       "full to there",
       "worth"}};
  for (const PublishedAblation& one : ablations) {
    auto& row = rows.emplace_back();
    row.push_back(one.without.empty() ? "nothing" : one.without);
    if (one.found) {
      row.push_back(std::to_string(one.found->longest));
      row.push_back(fmt::format("{:.2f}", one.found->seconds));
      row.push_back(fmt::format("{:.2f}", one.full_seconds));
      row.push_back(percent(one.found->seconds / one.full_seconds - 1));
      row.push_back(std::to_string(one.found->switches));
    } else {
      row.insert(row.end(), 5, "-");
    }
    const bool said = one.published_longest > 0;
    const bool compared = one.published_full_seconds > 0;
    row.push_back(said ? std::to_string(one.published_longest) : "-");
    row.push_back(said ? fmt::format("{:.2f}", one.published_seconds) : "-");
    row.push_back(compared ? fmt::format("{:.2f}", one.published_full_seconds) : "-");
    row.push_back(compared ? percent(one.published_seconds / one.published_full_seconds - 1) : "-");
  }
  fmt::print(
      "\nGPT on GRCh38, short to long: the heuristic with one of its parts left out\n{}",
      common.table(rows, {}));
}

int run_replay(const ReplayOptions& options, const Common& common) {
  const auto reductions = published_reductions(options.sequences, options.seed);
  const auto ablations = published_ablations(options.sequences, options.seed);
  const auto shares = published_shares(options.sequences, options.seed);
  if (common.json) {
    print_json(
        {{"sequences", options.sequences},
         {"seed", options.seed},
         {"reductions", to_json(reductions)},
         {"longest", lengths_to_json()},
         {"ablation", to_json(ablations)},
         {"shares", to_json(shares)},
         {"assumptions", published_assumptions()}});
    return kOk;
  }
  print_reductions(reductions, common);
  print_lengths(common);
  print_ablations(ablations, common);
  print_shares(shares, common);
  fmt::print("\nassumed ({} sequences, seed {}):\n", options.sequences, options.seed);
  for (const std::string& sentence : published_assumptions()) {
    fmt::print("  {}\n", sentence);
  }
  return kOk;
}

}  // namespace

void add_replay(CLI::App& app, Common& common) {
  auto [command, options] = add_command<ReplayOptions>(
      app,
      common,
      "replay",
      "Replay the ParaDySe paper from its published cost functions and length bins",
      run_replay);
  command->add_option("--sequences", options->sequences, "Number of sequences of each corpus")
      ->transform(whole_numbers(1))
      ->capture_default_str();
  command->add_option("--seed", options->seed, "Random seed of the lengths")
      ->transform(whole_numbers(0))
      ->capture_default_str();
}

}  // namespace paradyse::cli
