// What the page of a switching report shows, as JSON: sums and choices, which page.js draws.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <numeric>
#include <utility>

#include "lab/report/totals.h"
#include "src/plan/base/bytes_text.h"
#include "src/plan/profile/held_out_json.h"

namespace paradyse {
namespace {

using Json = nlohmann::ordered_json;  // NaN is written as null

struct Bin {
  std::int64_t low = 0;  // longest document of a step, from `low` to below 4 times that
  StepNumbers steps;
};

// Steps by the power of 4 beneath their longest document.
std::vector<Bin> bins_of(const SwitchingRun& run) {
  std::map<std::int64_t, StepNumbers> by_power;
  for (std::size_t i = 0; i < run.steps.size(); ++i) {
    std::int64_t low = 1;
    while (low <= run.steps[i].longest / 4) {
      low *= 4;
    }
    by_power[low].push_back(i);
  }
  std::vector<Bin> bins;
  bins.reserve(by_power.size());
  for (auto& [low, steps] : by_power) {
    bins.push_back({.low = low, .steps = std::move(steps)});
  }
  return bins;
}

// All that runs of a corpus are judged by.
struct Yardsticks {
  const SwitchingCorpus& corpus;
  const SwitchingRun* best;     // of the static runs: best_static(); or nullptr
  const SwitchingRun* metp;     // static METP, or nullptr
  StepNumbers common;           // that every static run fits
  const SwitchingRun* fastest;  // of the static runs on those, or nullptr
  StepNumbers order;            // from the shortest longest document to the longest
  std::vector<Bin> bins;
};

Yardsticks yardsticks(const SwitchingCorpus& corpus) {
  Yardsticks by{
      .corpus = corpus,
      .best = run_named(corpus, best_static(corpus)),
      .metp = nullptr,
      .common = common_steps(corpus),
      .fastest = nullptr,
      .order = {},
      .bins = bins_of(corpus.runs.front())};
  for (const SwitchingRun& run : corpus.runs) {
    if (run.kind != "static") {
      continue;
    }
    if (by.metp == nullptr && run.name.find("METP") != std::string::npos) {
      by.metp = &run;
    }
    if (fits_all(run, by.common) &&
        (by.fastest == nullptr ||
         total(run, by.common).median < total(*by.fastest, by.common).median)) {
      by.fastest = &run;
    }
  }
  const std::vector<SwitchingStep>& steps = corpus.runs.front().steps;
  by.order.resize(steps.size());
  std::iota(by.order.begin(), by.order.end(), std::size_t{0});
  std::stable_sort(by.order.begin(), by.order.end(), [&](std::size_t a, std::size_t b) {
    return steps[a].longest < steps[b].longest;
  });
  return by;
}

Json name_of(const SwitchingRun* run) { return run == nullptr ? Json(nullptr) : Json(run->name); }

// A run beside another one over these steps, which both fit; null where there are none.
Json beside(const SwitchingRun& run, const SwitchingRun* other, const StepNumbers& steps) {
  if (other == nullptr || !fits_all(run, steps) || !fits_all(*other, steps)) {
    return nullptr;
  }
  return {
      {"steps", steps.size()},
      {"seconds", total(run, steps).median},
      {"of", total(*other, steps).median}};
}

Json beside(const SwitchingRun& run, const SwitchingRun* other) {
  return other == nullptr ? Json(nullptr)
                          : beside(run, other, shared(fitting_steps(run), fitting_steps(*other)));
}

// The steps of a run's line, which ends before the first that does not fit.
StepNumbers steps_of(const Yardsticks& by, const SwitchingRun& run) {
  const auto end = std::find_if(
      by.order.begin(), by.order.end(), [&](std::size_t i) { return !run.steps[i].fits; });
  return {by.order.begin(), end};
}

// [tokens, seconds] after each step: the median over the repeats of what was spent up to there; the
// last point is total().
Json cumulative(const SwitchingRun& run, const StepNumbers& steps) {
  Json points = Json::array();
  std::vector<double> spent;
  for (const std::size_t i : steps) {
    const SwitchingStep& step = run.steps[i];
    spent.resize(
        points.empty() ? step.seconds.size() : std::min(spent.size(), step.seconds.size()));
    for (std::size_t repeat = 0; repeat < spent.size(); ++repeat) {
      spent[repeat] += step.seconds[repeat];
    }
    points.push_back({step.longest, median(spent)});
  }
  return points;
}

// Medians of steps of about the same length: four groups from a length to its double.
Json each_step(const SwitchingRun& run, const StepNumbers& steps) {
  constexpr double kGroups = 4;
  std::map<int, std::pair<std::vector<double>, std::vector<double>>> groups;
  for (const std::size_t i : steps) {
    const auto length = static_cast<double>(run.steps[i].longest);
    auto& [lengths, seconds] = groups[static_cast<int>(std::floor(std::log2(length) * kGroups))];
    lengths.push_back(length);
    seconds.push_back(median(run.steps[i].seconds));
  }
  Json points = Json::array();
  for (const auto& [number, group] : groups) {
    points.push_back({median(group.first), median(group.second)});
  }
  return points;
}

// Which programs a run chose in a bin, the most frequent first.
Json choices_in(const SwitchingRun& run, const StepNumbers& steps) {
  std::map<std::string, std::size_t> times;
  for (const std::size_t i : steps) {
    for (const std::string& program : run.steps[i].programs) {
      ++times[program];
    }
  }
  std::vector<std::pair<std::string, std::size_t>> choices(times.begin(), times.end());
  std::stable_sort(choices.begin(), choices.end(), [](const auto& a, const auto& b) {
    return a.second > b.second;
  });
  return choices;
}

Json json_of(const Spread& spread) { return {spread.median, spread.least, spread.most}; }

Json json_of(const SwitchingError& error) {
  return {{"absolute", error.absolute}, {"mean", error.mean}, {"worst", error.worst}};
}

Json json_of(const Yardsticks& by, const SwitchingRun& run, const SwitchingSummary& summary) {
  const StepNumbers fitting = fitting_steps(run);
  const StepNumbers drawn = steps_of(by, run);
  double planning = 0;
  std::int64_t peak = 0;
  for (const SwitchingStep& step : run.steps) {
    planning += step.planning_seconds;
    peak = std::max(peak, step.peak_bytes);
  }
  Json bins = Json::array();
  Json choices = Json::array();
  for (const Bin& bin : by.bins) {
    const StepNumbers steps = shared(bin.steps, fitting);
    bins.push_back(
        {{"fit", steps.size()},
         {"seconds", steps.empty() ? Json() : Json(total(run, steps).median)}});
    choices.push_back(choices_in(run, bin.steps));
  }
  return {
      {"name", run.name},
      {"kind", run.kind},
      {"fit", fitting.size()},
      {"steps", run.steps.size()},
      {"seconds", fitting.empty() ? Json() : json_of(total(run, fitting))},
      {"common", fits_all(run, by.common) ? json_of(total(run, by.common)) : Json()},
      {"beside",
       {{"best", beside(run, by.best)},
        {"metp", beside(run, by.metp)},
        {"fastest", beside(run, by.fastest, by.common)},
        {"metp_on_common", beside(run, by.metp, by.common)}}},
      {"over_fastest", summary.over_fastest},
      {"bins", std::move(bins)},
      {"planning", planning},
      {"peak_bytes", peak},
      {"time_error", json_of(time_error(run))},
      {"memory_error", json_of(memory_error(run))},
      {"cut", drawn.size() < run.steps.size()},
      {"cumulative", cumulative(run, drawn)},
      {"each", each_step(run, drawn)},
      {"choices", std::move(choices)}};
}

Json page_of(const SwitchingCorpus& corpus) {
  Json json = {{"name", corpus.name}, {"order", corpus.order}, {"packed", corpus.packed}};
  if (corpus.runs.empty() || corpus.runs.front().steps.empty()) {
    json["runs"] = Json::array();
    return json;
  }
  const Yardsticks by = yardsticks(corpus);
  std::vector<double> lengths;
  std::int64_t tokens = 0;
  for (const SwitchingStep& step : corpus.runs.front().steps) {
    lengths.push_back(static_cast<double>(step.longest));
    tokens += step.tokens;
  }
  std::size_t repeats = 0;
  for (const SwitchingRun& run : corpus.runs) {
    repeats = std::max(repeats, sums(run, {}).size());
  }
  json["tokens"] = tokens;
  json["lengths"] = {
      {"least", std::ranges::min(lengths)},
      {"most", std::ranges::max(lengths)},
      {"median", median(lengths)}};
  json["repeats"] = repeats;
  json["reordered"] = !std::ranges::is_sorted(by.order);
  json["best"] = name_of(by.best);
  json["metp"] = name_of(by.metp);
  json["fastest"] = name_of(by.fastest);
  json["common"] = by.common.size();
  for (const Bin& bin : by.bins) {
    json["bins"].push_back({{"low", bin.low}, {"steps", bin.steps.size()}});
  }
  const std::vector<SwitchingSummary> all = summaries(corpus);
  for (std::size_t i = 0; i < all.size(); ++i) {
    json["runs"].push_back(json_of(by, corpus.runs[i], all[i]));
  }
  return json;
}

}  // namespace

Json page_data(const SwitchingResult& result) {
  Json json = {
      {"kind", "switching"},
      {"state", ""},
      {"facts",
       {{"Model", result.model},
        {"Machine", result.machine},
        {"Backend", result.backend},
        {"Ranks", std::to_string(result.ranks)},
        {"Memory of a rank",
         result.memory_per_rank > 0 ? bytes_text(result.memory_per_rank) : "no limit"},
        {"Costs", result.costs}}},
      {"command", result.command},
      {"model", result.model},
      {"memory_per_rank", result.memory_per_rank},
      {"corpora", Json::array()},
      {"longest", Json::array()},
      {"errors", Json::array()}};
  for (const SwitchingCorpus& corpus : result.corpora) {
    json["corpora"].push_back(page_of(corpus));
  }
  for (const LongestDocument& longest : result.longest) {
    json["longest"].push_back({{"run", longest.run}, {"tokens", longest.tokens}});
  }
  for (const HeldOutError& error : result.errors) {
    json["errors"].push_back(json_of(error));
  }
  return json;
}

}  // namespace paradyse
