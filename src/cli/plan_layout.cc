// paradyse plan layout: where the streams of a model lie, part after part.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <iterator>
#include <optional>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "paradyse/plan/batch_planner.h"
#include "paradyse/plan/cluster.h"
#include "paradyse/plan/detail/index.h"
#include "paradyse/plan/layout_planner.h"
#include "src/cli/commands.h"
#include "src/cli/grid_options.h"
#include "src/cli/inputs.h"
#include "src/plan/base/bytes_text.h"
#include "src/plan/base/number_text.h"
#include "src/plan/base/rank_limits.h"
#include "src/plan/base/text_match.h"
#include "src/plan/plan/size_limits.h"
#include "src/plan/simulate/additive.h"

namespace paradyse::cli {
namespace {

struct PlanLayoutOptions : GridOptions {
  int ranks = 0;
  std::string recompute;
  bool offload = false;
  std::string objective = "elements";
  std::string cluster;
  std::string dtype = "bfloat16";
  std::string memory_per_rank;
  std::int64_t tiles = 1;
  bool explain = false;
  std::string layout = "planned";
  std::string out;
};

Json placements(const std::map<std::string, Placement>& places) {
  Json json = Json::object();
  for (const auto& [stream, place] : places) {
    json[stream] = to_string(place);
  }
  return json;
}

// Of what a part exchanges and of the moves in front of it: "all_to_all (m), all_gather"; "-".
std::string collectives(const PlannedPart& part) {
  std::string text;
  const auto add = [&](const std::string& one) { text += (text.empty() ? "" : ", ") + one; };
  for (const PlannedMove& move : part.moves) {
    if (move.collective != "keep" && move.collective != "permute") {
      add(move.collective + " (" + move.stream + ")");
    }
  }
  for (const std::string& one : part.collectives) {
    if (one != "permute" && one != "slice") {
      add(one);
    }
  }
  return text.empty() ? "-" : text;
}

// "USP, ulysses_degree 8".
std::string strategy_text(const PartChoice& choice) {
  std::string text = choice.strategy;
  for (const auto& [option, value] : choice.options) {
    text += fmt::format(", {} {}", option, value);
  }
  return text;
}

Json json_of(const PlannedPart& part, const std::map<std::string, Placement>& out) {
  Json json = {
      {"part", part.choice.part},
      {"strategy", part.choice.strategy},
      {"in", placements(part.choice.in)},
      {"out", placements(out)},
      {"collective", collectives(part)},
      {"elements_per_rank_forward", part.elements_forward},
      {"elements_per_rank_backward", part.elements_backward},
      {"next_best_costs_more", part.otherwise < 0 ? Json() : Json(part.otherwise)}};
  if (!part.choice.options.empty()) {
    json["options"] = part.choice.options;
  }
  if (part.seconds > 0) {
    json["seconds"] = part.seconds;
  }
  return json;
}

// What a part writes lies as it took it.
std::map<std::string, Placement> out_of(const Model& model, const PlannedPart& part) {
  std::map<std::string, Placement> out;
  for (const std::string& stream : model.part(part.choice.part)->writes) {
    if (const auto in = part.choice.in.find(stream); in != part.choice.in.end()) {
      out.insert(*in);
    }
  }
  return out;
}

Json json_of(const LayoutPlan& plan) {
  Json json = {
      {"elements_per_rank_forward", plan.elements_forward},
      {"elements_per_rank_backward", plan.elements_backward}};
  if (plan.seconds > 0) {
    json["seconds"] = plan.seconds;
  }
  return json;
}

// The layout on so many samples at once, with so much made again and in so many tiles, that it
// fits.
Plan within_memory(
    const PlanLayoutOptions& options, const Model& model, const Documents& documents) {
  if (options.objective == "seconds") {
    throw std::invalid_argument(
        "--memory-per-rank needs --objective elements: within a memory budget, the layout that "
        "sends least is planned");
  }
  if (options.tiles > 1) {
    throw std::invalid_argument(
        "--token-tiles: with --memory-per-rank the number of tiles is planned; leave one of the "
        "two out");
  }
  const std::unique_ptr<BatchPlanner> planner = batch_planner(
      {.model = model,
       .dims = documents.dims,
       .ranks = options.ranks,
       .mesh = documents.mesh,
       .machine = {},
       .precision = precision_of(dtype_option(options.dtype)),
       .memory_per_rank = memory_limit(options.memory_per_rank),
       .offload = options.offload,
       .recompute = options.recompute,
       .batch_planner = "groups-of-all"});
  BatchPlanner::Answer answer = planner->plan(documents.lengths);
  if (!answer.plan) {
    throw std::invalid_argument(
        "--memory-per-rank " + options.memory_per_rank + ": " + answer.why_not);
  }
  Plan plan = *std::move(answer.plan);
  return plan;
}

std::string how(const PartChoice& part) {
  const auto tiles = part.options.find(kTilesOption);
  return to_string(LayerRecompute{.parts = part.recompute, .layer = part.with_layer}) +
         (tiles == part.options.end() ? "" : fmt::format(" in {} tiles", tiles->second)) +
         (part.offload ? ", offload" : "");
}

// Of each part how, for so many layers in a row.
struct MadeAgain {
  std::int64_t layers = 0;
  std::vector<std::pair<std::string, std::string>> parts = {};
};

std::vector<MadeAgain> made_again(const Plan& plan) {
  std::vector<MadeAgain> all;
  for (const LayerRun& run : plan.programs.begin()->second) {
    MadeAgain one{.layers = run.layers};
    for (const PartChoice& part : run.choice) {
      one.parts.emplace_back(part.part, how(part));
    }
    if (!all.empty() && all.back().parts == one.parts) {  // that lie otherwise
      all.back().layers += one.layers;
    } else {
      all.push_back(std::move(one));
    }
  }
  return all;
}

Json memory_json(const Plan& plan) {
  Json layers = Json::array();
  for (const auto& [count, said] : made_again(plan)) {
    Json parts = Json::object();
    for (const auto& [part, text] : said) {
      parts[part] = text;
    }
    layers.push_back({{"layers", count}, {"parts", parts}});
  }
  const PlanGroup& group = plan.micro_batches.front().groups.front();
  const PredictedBytes bytes = group.predicted.bytes.value_or(PredictedBytes{});
  return {
      {"micro_batches", plan.micro_batches.size()},
      {"samples_at_once", group.documents.size()},
      {"static_bytes", bytes.static_bytes},
      {"saved_bytes", bytes.saved},
      {"transient_bytes", bytes.transient},
      {"peak_bytes", bytes.total()},
      {"layers", layers}};
}

void print_memory(const Plan& plan) {
  const PlanGroup& group = plan.micro_batches.front().groups.front();
  const PredictedBytes bytes = group.predicted.bytes.value_or(PredictedBytes{});
  fmt::print(
      "{} micro-batch{} of at most {} sample{}; the rank with the highest peak needs {}: {} for "
      "parameters, gradients and optimizer, {} saved, {} while it computes\n",
      plan.micro_batches.size(),
      plan.micro_batches.size() > 1 ? "es" : "",
      group.documents.size(),
      group.documents.size() > 1 ? "s" : "",
      bytes_text(bytes.total()),
      bytes_text(bytes.static_bytes),
      bytes_text(bytes.saved),
      bytes_text(bytes.transient));
  for (const auto& [layers, parts] : made_again(plan)) {
    std::string text;
    for (const auto& [part, said] : parts) {
      text += fmt::format("{}{} {}", text.empty() ? "" : "; ", part, said);
    }
    fmt::print("{} layer{} recomputed: {}\n", layers, layers > 1 ? "s" : "", text);
  }
}

// That of --layout, for --out.
Plan published_plan(const PlanLayoutOptions& options, const LayoutTask& task) {
  if (options.out.empty() || !options.memory_per_rank.empty()) {
    throw std::invalid_argument(
        "--layout selects the layout that --out writes: add --out FILE and remove "
        "--memory-per-rank");
  }
  std::vector<LayoutWay> ways = layout_ways(task);
  std::vector<std::string> names;
  std::ranges::transform(ways, std::back_inserter(names), &LayoutWay::name);
  expect_one_of("--layout", options.layout, names);
  Plan plan = std::ranges::find(ways, options.layout, &LayoutWay::name)->plan;
  plan.model_name = task.model->name;
  plan.model_sha256 = task.model->sha256;
  plan.planner_name = options.layout;
  return plan;
}

int run_plan_layout(const PlanLayoutOptions& options, const Common& common) {
  expect_one_of("--objective", options.objective, {"elements", "seconds"});
  const ModelFolder folder = model_of(options);
  say_notes(folder);
  Model model = folder.model;
  std::optional<Cluster> cluster;
  if (!options.cluster.empty()) {
    cluster = cluster_of(options.cluster, options.ranks);
    model = with_tiles(
        model, tiles_of(*cluster, model, precision_of(dtype_option(options.dtype)).activation));
  } else if (options.objective == "seconds") {
    throw std::invalid_argument(
        "--objective seconds needs --cluster FILE (configs/clusters/), for which seconds are "
        "predicted");
  }
  LayoutTask task{
      .model = &model,
      .documents = documents_of(options, model, options.ranks),
      .recompute =
          options.recompute.empty() ? LayerRecompute{} : layer_recompute(options.recompute),
      .tiles = options.tiles,
      .objective = options.objective == "seconds" ? LayoutTask::Objective::seconds
                                                  : LayoutTask::Objective::elements,
      .seconds = {}};
  const SimulationOptions simulation{.precision = precision_of(dtype_option(options.dtype))};
  if (cluster) {
    task.seconds = part_seconds(*cluster, options.ranks, simulation);
  }
  const auto begin = std::chrono::steady_clock::now();
  std::optional<Plan> fitting;
  if (options.offload && options.memory_per_rank.empty()) {
    throw std::invalid_argument(
        "--offload needs --memory-per-rank: tensors are moved to the host only if memory is short");
  }
  if (!options.memory_per_rank.empty()) {
    if (!model.of_samples()) {
      throw std::invalid_argument(
          "--memory-per-rank is for video and protein models; for a language model use paradyse "
          "plan layers --model ... --capacity");
    }
    fitting = within_memory(options, folder.model, task.documents);
    fitting->tiles = model.tiles();  // those of a GPU need no room that a CPU's do not
    // what is told of the layout is that of so many samples
    const std::size_t at_once = fitting->micro_batches.front().groups.front().documents.size();
    Documents fewer = packed(
        std::vector<std::int64_t>(at_once, task.documents.lengths.front()),
        options.ranks,
        model.causal);
    fewer.dims = task.documents.dims;
    fewer.mesh = task.documents.mesh;
    task.documents = std::move(fewer);
  }
  const LayoutPlan plan = plan_layouts(task);
  if (options.layout != "planned") {
    write_plan(options.out, published_plan(options, task));
  } else if (fitting && !options.out.empty()) {
    write_plan(options.out, *fitting);
  } else if (!options.out.empty()) {
    const LayoutPlan whole = plan_layouts(task, model.layers);
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    write_plan(options.out, checked_plan(task, whole, seconds));
  }
  Json rivals = Json::object();
  std::vector<std::pair<std::string, LayoutPlan>> costs;
  LayoutTask of_rivals = task;  // they know one axis
  of_rivals.documents.mesh.clear();
  for (const LayoutRival& rival : layout_rivals(model)) {
    costs.emplace_back(rival.name, cost_of(of_rivals, rival));
    rivals[rival.name] = json_of(costs.back().second);
  }
  if (common.json) {
    Json json = json_of(plan);
    json["model"] = model.name;
    json["ranks"] = options.ranks;
    json["objective"] = options.objective;
    json["layers"] = plan.layers.size();
    json["parts"] = Json::array();
    for (std::size_t layer = 0; layer < plan.layers.size(); ++layer) {
      for (const PlannedPart& part : plan.layers[layer]) {
        json["parts"].push_back(json_of(part, out_of(model, part)));
        json["parts"].back()["layer"] = layer;
      }
    }
    json["rivals"] = rivals;
    if (fitting) {
      json["memory"] = memory_json(*fitting);
    }
    print_json(json);
    return kOk;
  }
  std::vector<std::vector<std::string>> rows = {
      {"part", "strategy", "streams", "collectives", "forward", "backward"}};
  std::vector<std::string> otherwise;  // of each part
  for (const std::vector<PlannedPart>& layer : plan.layers) {
    for (const PlannedPart& part : layer) {
      const std::string streams = joined(part.choice.in, ", ", [](const auto& in) {
        return in.first + " at " + to_string(in.second);
      });
      rows.push_back(
          {part.choice.part,
           strategy_text(part.choice),
           streams,
           collectives(part),
           decimals_text(part.elements_forward, 0),
           decimals_text(part.elements_backward, 0)});
      otherwise.push_back(
          part.choice.part + (part.otherwise < 0
                                  ? " has no other candidate\n"
                                  : fmt::format(
                                        ": the next best candidate costs {:.6g} {} more a layer\n",
                                        part.otherwise,
                                        options.objective == "seconds" ? "s" : "elements")));
    }
  }
  std::fputs(common.table(rows, {.left = 4, .drop = {"backward"}}).c_str(), stdout);
  for (std::size_t part = 0; options.explain && part < otherwise.size(); ++part) {
    fmt::print("{}", otherwise[part]);
  }
  // what was asked to be least
  const auto goal = [&](const LayoutPlan& one) {
    return options.objective == "seconds" ? one.seconds : one.elements();
  };
  std::vector<std::vector<std::string>> totals = {
      {"elements sent by a rank", "forward", "backward", "seconds", "of planned"}};
  const auto total = [&](const std::string& name, const LayoutPlan& one) {
    totals.push_back(
        {name,
         decimals_text(one.elements_forward, 0),
         decimals_text(one.elements_backward, 0),
         one.seconds > 0 ? fmt::format("{:.4g}", one.seconds) : "-",
         goal(plan) > 0 ? fmt::format("{:.2f}", goal(one) / goal(plan)) : "-"});
  };
  total(
      "planned, " + counted(std::ssize(plan.layers), "layer") +
          (plan.layers.size() > 1 ? ", mean" : ""),
      plan);
  for (const auto& [name, one] : costs) {
    total(name, one);
  }
  std::vector<LayoutPlan> all = {plan};
  std::ranges::transform(
      costs, std::back_inserter(all), [](const auto& one) { return one.second; });
  const auto best = std::ranges::min_element(all, {}, goal);
  fmt::print(
      "\n{}of planned: ratio to the planned layout {}\n",
      common.table(
          totals, {.drop = {"seconds"}, .best = static_cast<std::size_t>(best - all.begin()) + 1}),
      options.objective == "seconds" ? "by seconds" : "by elements, forward and backward");
  if (fitting) {
    print_memory(*fitting);
  }
  return kOk;
}

}  // namespace

void add_plan_layout(CLI::App& plan, Common& common) {
  auto [command, options] = add_command<PlanLayoutOptions>(
      plan,
      common,
      "layout",
      "Plan how the tensors of a multi-axis model are sharded, part by part",
      run_plan_layout);
  command->add_option("--ranks", options->ranks, "Number of ranks in the group")
      ->transform(whole_numbers(1, kMostLayoutRanks))
      ->required();
  add_grid_options(*command, *options);
  command
      ->add_option(
          "--recompute",
          options->recompute,
          "none, light, attention-output or full (each part), or layer, layer+light, ... (layers "
          "as a whole); with --memory-per-rank the default is what fits")
      ->default_str("none");
  command
      ->add_option(
          "--token-tiles",
          options->tiles,
          "Run parts that allow it in this many tiles, one after the other")
      ->transform(whole_numbers(1, kMostTiles))
      ->capture_default_str();
  command->add_option(
      "--memory-per-rank",
      options->memory_per_rank,
      "Plan training in --dtype within this memory, as in 8GiB: samples in a micro-batch, and for "
      "each part what is recomputed and the number of tiles");
  command->add_flag(
      "--offload",
      options->offload,
      "With --memory-per-rank: saved tensors may be moved to host memory");
  command
      ->add_option(
          "--objective",
          options->objective,
          "What is minimized: elements (sent), or seconds on a --cluster")
      ->capture_default_str();
  command->add_option(
      "--cluster", options->cluster, "Cluster file, to predict the seconds of every part");
  command->add_option("--dtype", options->dtype, "Data type assumed for predicted time and memory")
      ->capture_default_str();
  command->add_flag(
      "--explain", options->explain, "Print what the next best candidate for each part would cost");
  command
      ->add_option(
          "--layout",
          options->layout,
          "Layout that --out writes: the planned one, or by name one of those it is compared with")
      ->capture_default_str();
  command
      ->add_option(
          "--out",
          options->out,
          "Plan file to write: all layers, with the sharding that each part reads")
      ->check(plan_to_write());
}

}  // namespace paradyse::cli
