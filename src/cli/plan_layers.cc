// paradyse plan layers: the fastest mix of ways to run a model's layers that fits, from their
// costs alone.
#include "src/cli/plan_layers.h"

#include <cmath>
#include <cstdint>

#include <fmt/format.h>

#include "src/cli/inputs.h"
#include "src/plan/base/bytes_text.h"
#include "src/plan/base/text_match.h"
#include "src/plan/search/layers/layer_costs_file.h"
#include "src/plan/search/layers/layer_planner.h"

namespace paradyse::cli {
namespace {

int run_plan_layers(const PlanLayersOptions& options, const Common& common) {
  const LayerPlannerRow& planner = layer_planner(options.planner);
  if (options.costs.empty() == options.model.empty()) {
    throw std::invalid_argument(
        "plan layers: give --costs FILE with --layers and --capacity, or --model DIR with "
        "--length");
  }
  if (!options.model.empty()) {
    return plan_layers_of_model(options, common);
  }
  if (!options.out.empty()) {
    throw std::invalid_argument(
        "plan layers: --out writes the plan of a document, which --costs alone does not have; give "
        "--model DIR with --length");
  }
  if (options.layers == 0 || options.capacity.empty()) {
    throw std::invalid_argument(
        std::string("plan layers: --costs takes ") +
        (options.capacity.empty() ? "--capacity BYTES" : "--layers L"));
  }
  std::int64_t capacity = 0;
  try {
    capacity = parse_bytes(options.capacity);
  } catch (const std::invalid_argument& error) {
    throw std::invalid_argument(std::string("--capacity: ") + error.what());
  }
  const std::vector<LayerCost> ways = read_layer_costs(options.costs);
  const LayerPlan plan = planner.plan(ways, options.layers, capacity);
  const std::vector<RejectedWay> rejected =
      options.explain && plan.feasible ? rejected_ways(ways, options.layers, capacity, plan)
                                       : std::vector<RejectedWay>{};
  const std::vector<WayRun> order = way_runs(ways, plan);
  if (common.json) {
    Json json = {{"feasible", plan.feasible}};
    Json counts = Json::object();
    for (std::size_t i = 0; i < ways.size(); ++i) {
      counts[ways[i].name] = plan.counts[i];
    }
    if (plan.feasible) {
      json["counts"] = counts;
      json["seconds"] = plan.seconds;
      json["peak_bytes"] = plan.peak_bytes;
      json["order"] = Json::array();
      for (const WayRun& run : order) {
        json["order"].push_back({{"name", ways[run.way].name}, {"layers", run.layers}});
      }
    } else {
      json["least_peak_bytes"] = plan.peak_bytes;
      json["missing_bytes"] = plan.peak_bytes - capacity;
      json["least_counts"] = counts;
    }
    json["planner"] = planner.name;
    if (options.explain) {
      json["rejected"] = Json::array();
      for (const RejectedWay& way : rejected) {
        json["rejected"].push_back(
            {{"name", ways[way.way].name},
             {"uniform_seconds", way.uniform_seconds},
             {"uniform_peak_bytes", way.uniform_peak_bytes},
             {"with_one_layer_seconds", way.with_one_seconds},  // no such plan: null
             {"why", why_not(way)}});
      }
    }
    print_json(json);
    return kOk;
  }
  const std::string mix = joined(order, ", then ", [&](const WayRun& run) {
    return fmt::format("{} x {}", run.layers, ways[run.way].name);
  });
  if (!plan.feasible) {
    fmt::print(
        "no plan fits: the one that needs the least memory, {}, needs {}, {} more than {}\n",
        mix,
        bytes_text(plan.peak_bytes),
        bytes_text(plan.peak_bytes - capacity),
        bytes_text(capacity));
    return kOk;
  }
  fmt::print(
      "{}: {:.6g} s, peak {} of {}\n",
      mix,
      plan.seconds,
      bytes_text(plan.peak_bytes),
      bytes_text(capacity));
  print_rejected(rejected, ways, common);
  return kOk;
}

}  // namespace

void print_rejected(
    const std::vector<RejectedWay>& rejected,
    const std::vector<LayerCost>& ways,
    const Common& common) {
  constexpr std::size_t kShown = 12;  // the nearest ones
  if (rejected.empty()) {
    return;
  }
  std::vector<std::vector<std::string>> rows = {{"candidate", "why it is not used"}};
  for (const RejectedWay& way : rejected) {
    if (common.verbose || rows.size() <= kShown) {
      rows.push_back({ways[way.way].name, why_not(way)});
    }
  }
  fmt::print("{}", common.table(rows, {.left = 2}));
  if (rejected.size() >= rows.size()) {
    fmt::print("and {} more; --verbose shows all\n", rejected.size() + 1 - rows.size());
  }
}

std::string why_not(const RejectedWay& way) {
  if (std::isfinite(way.more_seconds)) {
    return way.more_seconds >= 0
               ? fmt::format("one layer of it costs {:.3g} s more", way.more_seconds)
               : fmt::format(
                     "one layer of it would save {:.3g} s; another planner may use it, or it does "
                     "not fit in an exact count",
                     -way.more_seconds);
  }
  return fmt::format(
      "no plan with one such layer fits; using it for all layers needs {} more",
      bytes_text(way.missing_bytes));
}

void add_plan_layers(CLI::App& plan, Common& common) {
  auto [command, options] = add_command<PlanLayersOptions>(
      plan,
      common,
      "layers",
      "Find the fastest mix of candidates for a model's layers that fits into memory",
      run_plan_layers);
  command->add_option(
      "--costs",
      options->costs,
      R"(Costs of one layer for each candidate, {"options": [{"name", "seconds", "saved_bytes", "transient_bytes"}]})");
  command->add_option("--layers", options->layers, "With --costs: number of layers of the model")
      ->transform(whole_numbers(1));
  command->add_option(
      "--model",
      options->model,
      "Instead of --costs: Hugging Face folder or TOML model file, for one document");
  command->add_option("--length", options->length, "With --model: tokens of the document")
      ->transform(whole_numbers(1));
  command->add_option("--fitted", options->fitted, "With --model: costs file of paradyse fit");
  command->add_option("--ranks", options->ranks, "With --model")
      ->transform(whole_numbers(1))
      ->capture_default_str();
  command->add_option("--dtype", options->dtype, "With --model")->capture_default_str();
  command
      ->add_option(
          "--attention", options->attention, "With --model: use only this attention strategy")
      ->capture_default_str();
  command
      ->add_option(
          "--mlp",
          options->mlp,
          "With --model: use only this weight mode of the MLPs (tensor-parallel, zero3 or "
          "streamed)")
      ->capture_default_str();
  command
      ->add_option("--recompute", options->recompute, "With --model: use only this recompute level")
      ->capture_default_str();
  command->add_flag(
      "--offload", options->offload, "With --model: saved tensors may be moved to host memory");
  command->add_flag(
      "--optimizer-offload",
      options->optimizer_offload,
      "With --model: the optimizer's state is in host memory, as by optimizer.offload");
  command->add_option(
      "--capacity",
      options->capacity,
      "Memory, as in 80GiB: with --costs for all layers together, with --model of a rank");
  command
      ->add_option(
          "--planner",
          options->planner,
          "exact, or paradyse-heuristic: the heuristic of the ParaDySe paper, which mixes at most "
          "two "
          "candidates")
      ->capture_default_str();
  command->add_flag(
      "--explain", options->explain, "Also print why the other candidates were not used");
  command
      ->add_option(
          "--out",
          options->out,
          "With --model: write the plan file of a step with this document, for bench step, "
          "simulate "
          "and train --plan")
      ->check(plan_to_write());
}

}  // namespace paradyse::cli
