#include "src/cli/planned_batch.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <optional>

#include <fmt/format.h>

#include "src/cli/inputs.h"
#include "src/cli/progress.h"
#include "src/plan/base/bytes_text.h"
#include "src/plan/base/lengths_file.h"
#include "src/plan/base/number_text.h"
#include "src/plan/base/rank_limits.h"
#include "src/plan/base/text_match.h"
#include "src/plan/plan/size_limits.h"
#include "src/plan/search/layouts/samples_file.h"

namespace paradyse::cli {
namespace {

// The documents of the batch, in the order of the file.
ListedLengths batch_of(const BatchOptions& options) {
  ListedLengths batch = read_lengths(options.lengths, options.batch, options.context);
  if (batch.tokens.empty()) {
    throw std::invalid_argument(fmt::format(
        "{}: all {} documents are longer than the context of {} tokens; give a larger --context",
        options.lengths,
        batch.dropped,
        options.context));
  }
  return batch;
}

// What is said of the batch itself, beside the plan.
struct BatchWords {
  std::string text;                      // "40 documents (2 dropped: longer than 192000)"
  Json json;                             // the same
  std::vector<std::int64_t> lines = {};  // of the file: where each stands
};

Json rivals_json(const std::vector<RivalPlan>& rivals) {
  Json json = Json::array();
  for (const RivalPlan& rival : rivals) {
    json.push_back(
        {{"planner", rival.planner},
         {"seconds", rival.seconds ? Json(*rival.seconds) : Json(nullptr)}});
    if (!rival.seconds) {
      json.back()["why_not"] = rival.why_not;
    }
  }
  return json;
}

void print_rivals(
    const std::string& planner,
    double seconds,
    const std::vector<RivalPlan>& rivals,
    const Common& common) {
  std::vector<std::vector<std::string>> rows = {
      {"planner", "seconds", "of this plan"}, {planner, fmt::format("{:.6g}", seconds), "1.000"}};
  std::size_t best = 1;  // row
  double least = seconds;
  std::string without;
  for (const RivalPlan& rival : rivals) {
    if (!rival.seconds) {
      without += fmt::format("{}: {}\n", rival.planner, rival.why_not);
      continue;
    }
    rows.push_back(
        {rival.planner,
         fmt::format("{:.6g}", *rival.seconds),
         fmt::format("{:.3f}", *rival.seconds / seconds)});
    if (*rival.seconds < least) {
      least = *rival.seconds;
      best = rows.size() - 1;
    }
  }
  fmt::print("{}{}", common.table(rows, {.left = 1, .best = best}), without);
}

}  // namespace

void add_batch_options(Command& command, BatchOptions& options) {
  command.add_option(
      "--lengths",
      options.lengths,
      "File with one document length (tokens) a line, may be compressed with gzip; -: standard "
      "input");
  command
      .add_option(
          "--context", options.context, "Longest document in tokens; longer ones are dropped.")
      ->transform(whole_numbers(1))
      ->capture_default_str();
  command
      .add_option(
          "--batch",
          options.batch,
          "Number of documents or samples: the first ones that are not dropped")
      ->transform(whole_numbers(1, kMostSamples))
      ->capture_default_str();
  command
      .add_option(
          "--space",
          options.space,
          "Search space.  flexsp: that of the FlexSP paper, Ulysses on 1, 2, 4, ... ranks; full: "
          "groups of any size, any attention strategy and recompute level.  Of samples, only the "
          "sizes of groups differ")
      ->capture_default_str();
  const std::string names = joined(grouping_planners(), "; ", [](const GroupingPlannerRow& row) {
    return fmt::format("{} ({})", row.name, row.summary);
  });
  command.add_option("--planner", options.planner, names)->capture_default_str();
  command.add_flag(
      "--exact", options.exact, "Find the optimum of a small batch; short for --planner exact");
  command.add_option("--ranks", options.ranks, "Number of ranks instead of the cluster's")
      ->transform(whole_numbers(1, kMostPlannedRanks));
  command.add_option(
      "--memory", options.memory, "Memory of a rank, as in 40GiB, instead of the cluster's");
  command.add_flag(
      "--overlap",
      options.overlapped,
      "With --space full: weight gathers and rings overlap with computation");
  command
      .add_option(
          "--weight-domain",
          options.domain,
          "With --space full: ranks that shard the weights together, world or node; auto: the "
          "faster one")
      ->capture_default_str();
  command.add_option("--seed", options.how.seed, "Random seed of the planner")
      ->transform(whole_numbers(0))
      ->capture_default_str();
  command
      .add_option(
          "--moves",
          options.how.moves,
          "With --planner fast: search budget, as a multiple of the default")
      ->check(numbers(0, kMostMoves))
      ->capture_default_str();
  command
      .add_option(
          "--threads",
          options.how.threads,
          "With --planner fast: number of threads; the plan does not depend on it")
      ->transform(whole_numbers(1, kMostThreads))
      ->capture_default_str();
  command.add_option("--out", options.out, "Write the plan file")->check(plan_to_write());
  command.add_flag("--explain", options.explain, "Explain what limits the plan's time");
  command.add_flag("--compare", options.compare, "Print what the other planners' plans would take");
  command.add_flag(
      "--stream",
      options.stream,
      "Each line of --lengths is a batch, as in 512 8192 300: prints its plan on a line, as soon "
      "as "
      "the line is read");
}

std::int64_t memory_of(const BatchOptions& options) {
  if (options.memory.empty()) {
    return 0;
  }
  std::int64_t bytes = 0;
  try {
    bytes = parse_bytes(options.memory);
  } catch (const std::invalid_argument& error) {
    throw std::invalid_argument(std::string("--memory: ") + error.what());
  }
  if (bytes < 1) {
    throw std::invalid_argument("--memory " + options.memory + ": must be at least one byte");
  }
  return bytes;
}

namespace {

// Plans what `ask` asks, writes the plan, prints the answer.
int answered(
    const BatchOptions& options,
    const Common& common,
    const BatchWords& batch,
    const std::function<BatchQuestion()>& ask) {
  const GroupingPlannerRow& planner = grouping_planner(options.exact ? "exact" : options.planner);
  const auto begin = std::chrono::steady_clock::now();
  std::optional<Waiting> waiting(std::in_place, "planning", common.json);
  const BatchQuestion asked = ask();
  PlannedBatch planned = answer(asked, planner, options.how);
  // All that came between lengths and plan, what groups cost included.
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  planned.plan->planner_seconds = seconds;
  planned.plan->source = batch.lines;
  if (!options.out.empty()) {
    write_plan(options.out, *planned.plan);
  }
  // what the planner adds up, played with what waits and what travels beside work
  const double simulated = asked.simulated_seconds ? asked.simulated_seconds(*planned.plan) : 0;
  const std::vector<RivalPlan> others =
      options.compare ? rivals(asked, planner, options.how) : std::vector<RivalPlan>{};
  waiting.reset();
  const std::string played = simulated > 0
                                 ? fmt::format(
                                       "simulated {:.6g} s,\nwhich includes waiting and overlapped "
                                       "communication (docs/internals/simulate.md)",
                                       simulated)
                                 : "";
  const GroupSpace& space = asked.spaces[planned.space];
  const std::size_t micro_batches = planned.plan->micro_batches.size();
  if (common.json) {
    Json json = {
        {"planner", planner.name},
        {"space", space.name},
        {"ranks", planned.plan->ranks},
        {"weight_domain", planned.plan->weight_domain}};
    json.update(batch.json);
    json.update(Json{
        {"seconds", planned.seconds},
        {"simulated_seconds", simulated > 0 ? Json(simulated) : Json(nullptr)},
        {"lower_bound_seconds", planned.plan->predicted.lower_bound_seconds.value_or(0)},
        {"bound", planned.bound.name},
        {"gap", planned.gap()},
        {"area_bound_seconds", area_bound(space.task).seconds + space.batch_seconds},
        {"optimal", planned.optimal},
        {"planner_seconds", seconds},
        {"search_seconds", planned.search_seconds},
        {"micro_batches", micro_batches},
        {"hash", hash(*planned.plan)}});
    if (options.explain) {
      json["explanation"] = explained(space, planned.grouping);
    }
    if (options.compare) {
      json["rivals"] = rivals_json(others);
    }
    print_json(json);
    return kOk;
  }
  fmt::print(
      "{:.6g} s for {} on {},\nsharding group {}, in {}: predicted, "
      "without overlap{}\nlower bound {:.6g} s ({}): gap {}{}; {} took {:.1f} ms\n",
      planned.seconds,
      batch.text,
      counted(planned.plan->ranks, "rank"),
      planned.plan->weight_domain,
      counted(std::ssize(planned.plan->micro_batches), "micro-batch"),
      played.empty() ? "" : "; " + played,
      planned.bound.seconds,
      planned.bound.name,
      percent_text(planned.gap(), 2),
      planned.optimal ? ", optimal" : "",
      planner.name,
      1000 * seconds);
  if (options.explain) {
    fmt::print("{}", explained(space, planned.grouping));
  }
  if (options.compare) {
    print_rivals(planner.name, planned.seconds, others, common);
  }
  return kOk;
}

}  // namespace

int planned_batch(const BatchOptions& options, const Common& common, const AskBatch& ask) {
  if (options.lengths.empty()) {
    throw std::invalid_argument(
        "--lengths FILE is missing: a file with one document length (tokens) a line");
  }
  if (options.stream) {
    return streamed_batches(options, common, ask);
  }
  const ListedLengths batch = batch_of(options);
  const BatchWords words{
      .text = fmt::format(
          "{} ({} dropped: longer than {})",
          counted(std::ssize(batch.tokens), "document"),
          batch.dropped,
          options.context),
      .json = {{"documents", batch.tokens.size()}, {"dropped", batch.dropped}},
      .lines = batch.lines};
  return answered(options, common, words, [&] { return ask(batch.tokens); });
}

int planned_samples(
    const BatchOptions& options, const Model& model, const Common& common, const AskSamples& ask) {
  const ListedSamples batch = read_samples(options.samples, model, options.batch);
  const BatchWords words{
      .text = counted(std::ssize(batch.lines), "sample"),
      .json = {{"samples", batch.lines.size()}},
      .lines = batch.lines};
  return answered(options, common, words, [&] { return ask(batch.sizes); });
}

}  // namespace paradyse::cli
