// paradyse plan layers --model: what each layer of a model runs for a document of some length.
#include <array>
#include <cmath>

#include <fmt/format.h>

#include "paradyse/run/weights.h"
#include "src/cli/inputs.h"
#include "src/cli/plan_layers.h"
#include "src/cli/tell.h"
#include "src/plan/base/bytes_text.h"
#include "src/plan/base/number_text.h"
#include "src/plan/plan/group_timeline.h"
#include "src/plan/profile/run_costs.h"
#include "src/plan/search/batch/document_plans.h"
#include "src/plan/search/batch/document_request.h"
#include "src/plan/search/layers/layer_planner.h"
#include "src/run/measure/machine.h"
#include "src/run/measure/profiler.h"

namespace paradyse::cli {
namespace {

// What --capacity says, bytes; "": 0, no limit.
std::int64_t capacity_of(const PlanLayersOptions& options) {
  if (options.capacity.empty()) {
    return 0;
  }
  std::int64_t bytes = 0;
  try {
    bytes = parse_bytes(options.capacity);
  } catch (const std::invalid_argument& error) {
    throw std::invalid_argument(std::string("--capacity: ") + error.what());
  }
  if (bytes == 0) {
    throw std::invalid_argument(
        "--capacity is 0: give the bytes of a rank, or leave it out where there is no limit");
  }
  return bytes;
}

// `note`: of costs that were measured for something else.
PlanningTask planning_task(const PlanLayersOptions& options, std::string& note) {
  const Dtype dtype = dtype_option(options.dtype);
  const Model model = open_planned(options.model, "--model").model;
  if (options.length == 0) {
    throw std::invalid_argument("plan layers: --model takes --length TOKENS of the document");
  }
  PlanningTask task = paradyse::planning_task(
      {.model = model,
       .length = options.length,
       .ranks = options.ranks,
       .dtype = dtype,
       .attention = options.attention,
       .mlp = options.mlp,
       .recompute = options.recompute,
       .offload = options.offload,
       .optimizer_offload = options.optimizer_offload,
       .memory_per_rank = capacity_of(options),
       .planner = options.planner});
  if (options.fitted.empty()) {
    const auto backend = local_backend();
    task.machine = measure_machine(task.model, dtype, options.ranks, *backend);
  } else {
    const Costs costs = read_costs(options.fitted);
    note = note_of_other(
        options.fitted,
        costs,
        profile_header(task.model, options.ranks, dtype, *local_backend(), c10::Device(c10::kCPU)),
        task.model);
    go_by(costs, task);
  }
  return task;
}

Json to_json(const LayerRun& run) {
  Json json = {{"layers", run.layers}};
  for (const PartChoice& choice : run.choice) {
    json[choice.part] = choice.strategy;
    json[choice.part + "_recompute"] =
        to_string(LayerRecompute{.parts = choice.recompute, .layer = choice.with_layer});
    json[choice.part + "_offload"] = choice.offload;
  }
  return json;
}

// A step with the document alone; messages travel as memory allows.
Plan plan_of(
    const DocumentPlan& document,
    std::int64_t length,
    const PlanningTask& task,
    const std::string& layer_planner) {
  Plan plan = uniform_plan(task.model, {length}, task.ranks, choices(document.program));
  plan.planner_name = layer_planner;
  let_messages_travel(plan, task.model, task.precision, Keeps::optimizer, task.memory_per_rank);
  return plan;
}

}  // namespace

int plan_layers_of_model(const PlanLayersOptions& options, const Common& common) {
  std::string note;
  DocumentPlans plans(planning_task(options, note));
  const PlanningTask& task = plans.task();
  expect_counted("--length", task.model, std::array{options.length});
  const std::vector<LayerCost> ways = named(plans.choices(options.length, task.ranks).ways).costs;
  if (ways.empty()) {
    throw std::invalid_argument(
        "plan layers: '" + options.attention + "' runs only on groups of one rank; give --ranks 1");
  }
  const std::optional<DocumentPlan> found = plans.best(options.length, task.ranks);
  const std::int64_t longest = plans.longest().value_or(-1);  // -1: no limit
  Json json = {
      {"feasible", found.has_value()},
      {"length", options.length},
      {"ranks", options.ranks},
      {"planner", layer_planner(options.planner).name},
      {"longest_length", longest >= 0 ? Json(longest) : Json(nullptr)}};
  if (!note.empty()) {
    json["note"] = note;
    if (!common.json) {
      tell("paradyse: note: {}\n", note);
    }
  }
  if (!found) {
    const DocumentPlans::Shortage least = plans.shortage(options.length);
    json["least_program"] = least.program;
    json["least_peak_bytes"] = least.bytes.total();
    json["static_bytes"] = least.bytes.static_bytes;
    json["saved_bytes"] = least.bytes.saved;
    json["transient_bytes"] = least.bytes.transient;
    json["budget_bytes"] = least.budget;
    json["missing_bytes"] = least.missing();
    if (common.json) {
      print_json(json);
    } else {
      fmt::print(
          "no plan fits {}: the one that needs the least memory{} needs {} ({} for parameters, "
          "gradients and optimizer, {} saved for the backward pass, {} while it computes), {} too "
          "many; {}\n",
          bytes_text(least.budget),
          least.program.empty() ? "" : ", " + least.program,
          bytes_text(least.bytes.total()),
          bytes_text(least.bytes.static_bytes),
          bytes_text(least.bytes.saved),
          bytes_text(least.bytes.transient),
          bytes_text(least.missing()),
          longest > 0 ? "the longest document that fits has " + counted(longest, "token")
                      : "no document fits, however short");
    }
    return kOk;
  }
  if (!options.out.empty()) {
    write_plan(options.out, plan_of(*found, options.length, task, plans.layer_planner().name));
  }
  const PredictedBytes& bytes = found->bytes;
  std::vector<RejectedWay> rejected;
  if (options.explain) {
    rejected = plans.rejected(options.length, task.ranks);
  }
  json["seconds"] = found->seconds;
  json["seconds_by"] = task.seconds ? task.seconds->name() : "closed form";
  json["bytes"] = {
      {"static", bytes.static_bytes},
      {"saved", bytes.saved},
      {"transient", bytes.transient},
      {"peak", bytes.total()}};
  json["program"] = Json::array();
  for (const LayerRun& run : found->program) {
    json["program"].push_back(to_json(run));
  }
  if (options.explain) {
    json["rejected"] = Json::array();
    for (const RejectedWay& way : rejected) {
      json["rejected"].push_back(
          {{"name", ways[way.way].name},
           {"uniform_seconds", way.uniform_seconds},
           {"uniform_peak_bytes", way.uniform_peak_bytes},
           {"with_one_layer_seconds", way.with_one_seconds},
           {"why", why_not(way)}});
    }
  }
  if (common.json) {
    print_json(json);
    return kOk;
  }
  for (const LayerRun& run : found->program) {
    fmt::print("{} x {}\n", run.layers, name(run.choice));
  }
  fmt::print(
      "{:.6g} s by the {}; {}: {} static, {} saved, {} transient\n",
      found->seconds,
      json["seconds_by"].get<std::string>() +
          (task.seconds ? " model of measured costs" : " of this machine's numbers"),
      bytes_text(bytes.total()),
      bytes_text(bytes.static_bytes),
      bytes_text(bytes.saved),
      bytes_text(bytes.transient));
  fmt::print(
      "These seconds leave out the optimizer step, waiting and overlap; paradyse simulate includes "
      "them\n(docs/internals/planning.md).\n");
  if (longest >= 0) {
    fmt::print("the longest document that fits has {}\n", counted(longest, "token"));
  }
  print_rejected(rejected, ways, common);
  return kOk;
}

}  // namespace paradyse::cli
