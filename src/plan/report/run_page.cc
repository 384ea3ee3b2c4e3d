// What the page of a run shows, as JSON that page.js draws.
#include <algorithm>
#include <cctype>
#include <cmath>
#include <map>
#include <utility>

#include "paradyse/plan/detail/index.h"
#include "src/plan/report/prediction_error.h"
#include "src/plan/report/run_report.h"

namespace paradyse {
namespace {

using Json = nlohmann::ordered_json;  // NaN is written as null

constexpr std::size_t kMostPoints = 3000;     // of a chart
constexpr std::size_t kMostNumbers = 300000;  // in them, which a browser has to read

// So many of `all`, evenly, the first and the last too.
std::vector<std::size_t> spread_over(std::size_t all, std::size_t most) {
  const std::size_t count = std::min(all, most);
  std::vector<std::size_t> chosen;
  chosen.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    chosen.push_back(count == 1 ? all - 1 : i * (all - 1) / (count - 1));
  }
  return chosen;
}

Json columns(const ReportedRun& run, const std::vector<std::size_t>& points) {
  Json json = Json::object();
  const auto column = [&](const char* name, const auto& value) {
    Json& values = json[name] = Json::array();
    for (const std::size_t i : points) {
      values.push_back(value(run.steps[i]));
    }
  };
  column("step", [](const ReportedStep& s) { return s.step; });
  column("loss", [](const ReportedStep& s) { return s.loss; });
  column("learning_rate", [](const ReportedStep& s) { return s.learning_rate; });
  column("tokens", [](const ReportedStep& s) { return s.tokens; });
  column("seconds", [](const ReportedStep& s) { return s.seconds; });
  column("predicted_seconds", [](const ReportedStep& s) { return s.predicted_seconds; });
  column("peak_bytes", [](const ReportedStep& s) { return s.peak_bytes; });
  column("predicted_peak_bytes", [](const ReportedStep& s) { return s.predicted_peak_bytes; });
  column("memory_per_rank", [](const ReportedStep& s) { return s.memory_per_rank; });
  return json;
}

Json json_of(const Plan& plan, const ReportedStep& step) {
  Json micros = Json::array();
  for (std::size_t m = 0; m < plan.micro_batches.size(); ++m) {
    const std::vector<PlanGroup>& groups = plan.micro_batches[m].groups;
    const bool measured =
        m < step.group_seconds.size() && step.group_seconds[m].size() == groups.size();
    Json& all = micros.emplace_back(Json::array());
    for (std::size_t g = 0; g < groups.size(); ++g) {
      const PlanGroup& group = groups[g];
      all.push_back(
          {{"ranks", group.ranks},
           {"documents", group.documents},
           {"program", group.program},
           {"predicted", group.predicted.seconds ? Json(*group.predicted.seconds) : Json()},
           {"bytes", group.predicted.bytes ? Json(group.predicted.bytes->total()) : Json()},
           {"seconds", measured ? Json(step.group_seconds[m][g]) : Json()}});
    }
  }
  return {
      {"step", step.step},
      {"planner", plan.planner_name},
      {"late", step.late},
      {"predicted", step.predicted_seconds},
      {"seconds", step.seconds},
      {"idle", step.idle_of_ranks},
      {"lengths", plan.lengths},
      {"micro_batches", std::move(micros)}};
}

std::size_t numbers_in(const Plan& plan) {
  std::size_t numbers = 2 * plan.lengths.size();
  for (const PlanMicroBatch& micro : plan.micro_batches) {
    for (const PlanGroup& group : micro.groups) {
      numbers += 12 + group.ranks.size();
    }
  }
  return numbers;
}

// How much of planning a step shows: groups, micro-batches, lengths far apart.
double shown_by(const Plan& plan) {
  std::size_t groups = 0;
  for (const PlanMicroBatch& micro : plan.micro_batches) {
    groups = std::max(groups, micro.groups.size());
  }
  const double apart = plan.lengths.empty()
                           ? 0
                           : std::log2(
                                 static_cast<double>(std::ranges::max(plan.lengths)) /
                                 static_cast<double>(std::ranges::min(plan.lengths)));
  return static_cast<double>(groups + plan.micro_batches.size()) + apart;
}

Json beside(const ReportedRun& run, const ReportedRun& other) {
  std::map<std::int64_t, double> mine;
  for (const ReportedStep& step : run.steps) {
    mine.emplace(step.step, step.seconds);
  }
  std::int64_t steps = 0;
  double own = 0;
  double its = 0;
  for (std::size_t i = 1; i < other.steps.size(); ++i) {  // the first has to warm up
    if (const auto found = mine.find(other.steps[i].step); found != mine.end()) {
      ++steps;
      own += found->second;
      its += other.steps[i].seconds;
    }
  }
  Json json = columns(other, spread_over(other.steps.size(), kMostPoints));
  json["name"] = other.name;
  json["both"] = {{"steps", steps}, {"own", own}, {"its", its}};
  return json;
}

}  // namespace

bool has_samples(const Plan& plan) {
  return !plan.dims.empty() || std::ranges::any_of(plan.micro_batches, [](const auto& micro) {
    return std::ranges::any_of(micro.groups, [](const auto& group) { return !group.dims.empty(); });
  });
}

ChosenPlans chosen_plans(const ReportedRun& run, std::size_t most) {
  ChosenPlans chosen;
  double shown = -1;
  std::size_t missing = 0;
  for (std::size_t i : spread_over(run.steps.size(), most)) {
    std::optional<Plan> plan = run.plan_of(run.steps[i]);
    if (!plan) {
      ++missing;
      continue;
    }
    if (chosen.plans.empty() && most > 1) {
      const std::size_t room = std::max<std::size_t>(8, kMostNumbers / numbers_in(*plan));
      if (room < std::min(most, run.steps.size())) {
        return chosen_plans(run, room);
      }
    }
    if (shown_by(*plan) > shown) {
      shown = shown_by(*plan);
      chosen.first = chosen.plans.size();
    }
    chosen.plans.emplace_back(i, *std::move(plan));
  }
  chosen.missing = missing;
  return chosen;
}

Json page_data(
    const ReportedRun& run, const ChosenPlans& chosen, const std::vector<ReportedRun>& others) {
  const std::vector<std::size_t> points = spread_over(run.steps.size(), kMostPoints);
  const RunTotals all = totals(run);
  std::vector<std::string> notes = run.notes;
  if (points.size() < run.steps.size()) {
    notes.push_back(
        "Charts show " + std::to_string(points.size()) + " of " + std::to_string(run.steps.size()) +
        " steps, evenly spaced; sums include all steps.");
  }
  if (chosen.missing > 0) {
    notes.push_back(
        std::to_string(chosen.missing) + " of the requested plans are missing in plans/.");
  }
  bool samples = false;
  std::int64_t ranks = run.ranks;
  Json plans = Json::array();
  for (const auto& [i, plan] : chosen.plans) {
    plans.push_back(json_of(plan, run.steps[i]));
    samples = samples || has_samples(plan);
    ranks = std::max<std::int64_t>(ranks, plan.ranks);
  }
  Json json = {
      {"name", run.name},
      {"state", run.state},
      {"facts", run.facts},
      {"command", ""},
      {"notes", notes},
      {"ranks", ranks},
      {"samples", samples},
      {"totals",
       {{"steps", all.steps},
        {"tokens", all.tokens},
        {"seconds", all.seconds},
        {"predicted_seconds", all.predicted_seconds},
        {"error", all.error},
        {"ratio", all.ratio},
        {"idle_share", all.idle_share},
        {"late", all.late},
        {"retried", all.retried},
        {"peak_bytes", all.peak_bytes}}},
      {"steps", columns(run, points)},
      {"eval_loss", run.eval_loss},
      {"sizes", nullptr},
      {"plans", std::move(plans)},
      {"first", chosen.first},
      {"best_static", nullptr},
      {"compared", nullptr},
      {"beside", Json::array()}};
  if (!run.sizes.empty()) {
    json["sizes"] = {{"memory_per_rank", run.memory_per_rank}, {"sizes", json_of(run.sizes)}};
  }
  if (run.best_static) {
    json["best_static"] = {
        {"strategy", run.best_static->strategy},
        {"seconds", run.best_static->seconds},
        {"ours", run.best_static->ours},
        {"steps", run.best_static->batches},
        {"ratio", run.best_static->ratio()},
        {"within_error", within_error(run.best_static->ratio(), all.error)}};
  } else {
    json["no_static"] =
        !run.has_summary ? "The comparison is made when a run ends, and this one has no summary."
        : run.interrupted
            ? "The comparison is made when all steps are done, and this run stopped early."
            : "No single strategy fits all batches, or the plans were given.";
  }
  if (const std::optional<MeasuredComparison> compared = measured_comparison(run)) {
    std::string sentence = text_of(*compared) + ".";
    sentence.front() = static_cast<char>(std::toupper(sentence.front()));
    json["compared"] = sentence;
  }
  for (const ReportedRun& other : others) {
    json["beside"].push_back(beside(run, other));
  }
  return json;
}

}  // namespace paradyse
