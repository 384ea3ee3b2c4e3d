// paradyse plan layers: the fastest mix of ways to run a model's layers that fits, from their
// costs alone.
#include "src/cli/plan_layers.h"

#include <cmath>
#include <cstdint>
#include <fstream>
#include <set>

#include <fmt/format.h>

#include "paradyse/accountant.h"
#include "paradyse/layer_planner.h"

namespace paradyse::cli {
namespace {

// The options of a costs file (docs/planning.md).  Throws std::invalid_argument that names the
// place.
std::vector<LayerCost> read_costs(const std::string& path) {
  std::ifstream file(path);
  if (!file) {
    throw std::invalid_argument(path + ": cannot be read; give a costs file (docs/planning.md)");
  }
  const auto fail = [&](const std::string& place, const std::string& what) {
    throw std::invalid_argument(path + ": " + (place.empty() ? "" : place + ": ") + what);
  };
  Json json;
  try {
    json = Json::parse(file);
  } catch (const Json::parse_error& error) {
    fail("", std::string("is no JSON: ") + error.what());
  }
  if (!json.is_object() || !json.contains("options") || !json["options"].is_array() ||
      json["options"].empty()) {
    fail("", R"(expected {"options": [{"name", "seconds", "saved_bytes", "transient_bytes"}]})");
  }
  std::vector<LayerCost> ways;
  std::set<std::string> names;
  for (std::size_t i = 0; i < json["options"].size(); ++i) {
    const Json& one = json["options"][i];
    const std::string place = fmt::format("options[{}]", i);
    if (!one.is_object()) {
      fail(place, "expected an object");
    }
    for (const auto& [key, value] : one.items()) {
      if (key != "name" && key != "seconds" && key != "saved_bytes" && key != "transient_bytes") {
        fail(
            place + "." + key,
            "is not known; keys are name, seconds, saved_bytes, transient_bytes");
      }
    }
    const auto at = [&](const char* key) -> const Json& {
      if (!one.contains(key)) {
        fail(place, std::string("'") + key + "' is missing");
      }
      return one[key];
    };
    const auto bytes = [&](const char* key) {
      const Json& value = at(key);
      // whole numbers, also as measurements write them: 3.0, 1e9
      if (value.is_number_unsigned() ||
          (value.is_number_integer() && value.get<std::int64_t>() >= 0)) {
        if (value.get<std::uint64_t>() <= static_cast<std::uint64_t>(INT64_MAX)) {
          return value.get<std::int64_t>();
        }
      } else if (value.is_number_float()) {
        const auto number = value.get<double>();
        if (number >= 0 && number < 9.2e18 && number == std::floor(number)) {
          return static_cast<std::int64_t>(number);
        }
      }
      fail(place + "." + key, "expected a whole number of bytes from 0 up, found " + value.dump());
      return std::int64_t{0};
    };
    if (!at("name").is_string() || one["name"].get<std::string>().empty()) {
      fail(place + ".name", "expected a name, found " + one["name"].dump());
    }
    const auto name = one["name"].get<std::string>();
    if (!names.insert(name).second) {
      fail(place + ".name", "'" + name + "' stands there twice");
    }
    const Json& seconds = at("seconds");
    if (!seconds.is_number() || !std::isfinite(seconds.get<double>()) ||
        seconds.get<double>() < 0) {
      fail(place + ".seconds", "expected a number of seconds from 0 up, found " + seconds.dump());
    }
    ways.push_back(
        {.name = name,
         .seconds = seconds.get<double>(),
         .saved_bytes = bytes("saved_bytes"),
         .transient_bytes = bytes("transient_bytes")});
  }
  return ways;
}

// "3 x METP, 5 x MegatronTS": in the order of the layers.
std::vector<std::pair<std::string, std::int64_t>> runs(
    const std::vector<LayerCost>& ways, const LayerPlan& plan) {
  std::vector<std::pair<std::string, std::int64_t>> found;
  for (const std::size_t way : layer_order(ways, plan)) {
    if (found.empty() || found.back().first != ways[way].name) {
      found.emplace_back(ways[way].name, 0);
    }
    ++found.back().second;
  }
  return found;
}

int run_plan_layers(const PlanLayersOptions& options, const Common& common) {
  expect_one_of("--planner", options.planner, {"exact", "paper"});
  if (options.costs.empty() == options.model.empty()) {
    throw std::invalid_argument(
        "plan layers: give --costs FILE with --layers and --capacity, or --model DIR with "
        "--length");
  }
  if (!options.model.empty()) {
    return plan_layers_of_model(options, common);
  }
  if (options.layers < 1 || options.capacity.empty()) {
    throw std::invalid_argument(
        std::string("plan layers: --costs takes ") +
        (options.capacity.empty() ? "--capacity BYTES" : "--layers L, at least 1"));
  }
  std::int64_t capacity = 0;
  try {
    capacity = parse_bytes(options.capacity);
  } catch (const std::invalid_argument& error) {
    throw std::invalid_argument(std::string("--capacity: ") + error.what());
  }
  const std::vector<LayerCost> ways = read_costs(options.costs);
  const LayerPlan plan = options.planner == "exact"
                             ? plan_layers(ways, options.layers, capacity)
                             : plan_layers_as_published(ways, options.layers, capacity);
  const std::vector<RejectedWay> rejected =
      options.explain && plan.feasible ? rejected_ways(ways, options.layers, capacity, plan)
                                       : std::vector<RejectedWay>{};
  const auto order = runs(ways, plan);
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
      for (const auto& [name, layers] : order) {
        json["order"].push_back({{"name", name}, {"layers", layers}});
      }
    } else {
      json["least_peak_bytes"] = plan.peak_bytes;
      json["missing_bytes"] = plan.peak_bytes - capacity;
      json["least_counts"] = counts;
    }
    json["planner"] = options.planner;
    if (options.explain) {
      json["rejected"] = Json::array();
      for (const RejectedWay& way : rejected) {
        json["rejected"].push_back(
            {{"name", ways[way.way].name},
             {"uniform_seconds", way.uniform_seconds},
             {"uniform_peak_bytes", way.uniform_peak_bytes},
             {"with_one_layer_seconds", way.with_one_seconds},  // no such plan: null
             {"why", why_not(way, plan, capacity)}});
      }
    }
    print_json(json);
    return kOk;
  }
  std::string mix;
  for (const auto& [name, layers] : order) {
    mix += fmt::format("{}{} x {}", mix.empty() ? "" : ", then ", layers, name);
  }
  if (!plan.feasible) {
    fmt::print(
        "no plan fits: the one that needs least, {}, takes {}, {} more than {}\n",
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
  for (const RejectedWay& way : rejected) {
    fmt::print("without {}: {}\n", ways[way.way].name, why_not(way, plan, capacity));
  }
  return kOk;
}

}  // namespace

std::string why_not(const RejectedWay& way, const LayerPlan& plan, std::int64_t capacity) {
  if (std::isfinite(way.with_one_seconds)) {
    return fmt::format("one layer of it costs {:.6g} s more", way.with_one_seconds - plan.seconds);
  }
  return fmt::format(
      "no plan with a layer of it fits; all of it needs {} more",
      bytes_text(way.uniform_peak_bytes - capacity));
}

void add_plan_layers(CLI::App& plan, Common& common) {
  auto [command, options] = add_command<PlanLayersOptions>(
      plan,
      common,
      "layers",
      "Find the fastest mix of ways to run a model's layers that fits into memory",
      run_plan_layers);
  command->add_option(
      "--costs",
      options->costs,
      R"(File {"options": [{"name", "seconds", "saved_bytes", "transient_bytes"}]}: of a layer)");
  command->add_option("--layers", options->layers, "With --costs: layers of the model");
  command->add_option(
      "--model", options->model, "Or: Hugging Face folder or TOML model file, for one document");
  command->add_option("--length", options->length, "With --model: tokens of the document");
  command->add_option("--fitted", options->fitted, "With --model: costs file of paradyse fit");
  command->add_option("--ranks", options->ranks, "With --model")->capture_default_str();
  command->add_option("--dtype", options->dtype, "With --model")->capture_default_str();
  command->add_option("--attention", options->attention, "With --model: this strategy alone")
      ->capture_default_str();
  command->add_option("--mlp", options->mlp, "With --model: this verb alone")
      ->capture_default_str();
  command->add_option("--recompute", options->recompute, "With --model: this level alone")
      ->capture_default_str();
  command->add_flag(
      "--offload", options->offload, "With --model: saved tensors may wait in host memory");
  command->add_option(
      "--capacity",
      options->capacity,
      "Bytes, as in 80GiB: with --costs for what layers keep and need, with --model of a rank");
  command
      ->add_option(
          "--planner",
          options->planner,
          "exact, or paper: the published heuristic, which mixes two ways at most")
      ->capture_default_str();
  command->add_flag("--explain", options->explain, "Also say why the other ways lost");
}

}  // namespace paradyse::cli
