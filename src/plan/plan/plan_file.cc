// The plan as a file: docs/plan_file.md.  What is wrong with a plan that could be read:
// plan_check.cc.
#include <algorithm>
#include <cmath>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <utility>

#include <nlohmann/json.hpp>

#include "paradyse/plan/plan.h"
#include "src/plan/base/json_node.h"
#include "src/plan/base/json_text.h"
#include "src/plan/base/sha256.h"
#include "src/plan/base/text_match.h"

namespace paradyse {
namespace {

using Json = nlohmann::ordered_json;  // keys in the order in which people read them

constexpr const char* kFormat = "paradyse-plan";
constexpr std::int64_t kVersion = 1;

// --- writing -------------------------------------------------------------------------------------

double finite(double seconds) {
  if (!std::isfinite(seconds)) {
    throw std::invalid_argument(
        "to_json: predicted seconds are " + std::to_string(seconds) +
        ", which JSON cannot say: leave them out where they are not known");
  }
  return seconds;
}

void expect_finite(const std::vector<double>& shares) {
  for (const double share : shares) {
    if (!std::isfinite(share)) {
      throw std::invalid_argument(
          "to_json: a share of a group is " + std::to_string(share) +
          ", which JSON cannot say: shares are positive numbers; none at all mean even cuts");
    }
  }
}

void put(Json& into, const Predicted& predicted) {
  Json json = Json::object();
  if (predicted.seconds) {
    json["seconds"] = finite(*predicted.seconds);
  }
  if (predicted.lower_bound_seconds) {
    json["lower_bound_seconds"] = finite(*predicted.lower_bound_seconds);
  }
  if (predicted.bytes) {
    json["bytes"] = {
        {"static", predicted.bytes->static_bytes},
        {"saved", predicted.bytes->saved},
        {"transient", predicted.bytes->transient}};
  }
  if (!json.empty()) {
    into["predicted"] = std::move(json);
  }
}

// An MLP is its verb, and has no attention output to keep; a name that is unknown stays as it is.
LayerChoice canonical(LayerChoice choice) {
  for (const Strategy& s : strategies()) {
    if (s.name == choice.mlp) {
      choice.mlp = to_string(s.verb);
    }
  }
  if (choice.mlp_recompute == Recompute::attention_output) {
    choice.mlp_recompute = Recompute::full;
  }
  return choice;
}

Json part(const char* name, const std::string& strategy, Recompute recompute, bool offload) {
  Json json = {{"part", name}, {"strategy", strategy}, {"recompute", to_string(recompute)}};
  if (offload) {
    json["offload"] = true;
  }
  return json;
}

enum class Content : std::uint8_t { all, hashed };  // hashed: without predicted and planner

Json json_of(const Plan& plan, Content content) {
  const bool all = content == Content::all;
  Json json = {
      {"format", kFormat},
      {"version", kVersion},
      {"model",
       {{"name", plan.model_name}, {"sha256", plan.model_sha256}, {"layers", plan.layers}}},
      {"cluster",
       {{"name", plan.cluster_name}, {"sha256", plan.cluster_sha256}, {"ranks", plan.ranks}}},
      {"weight_domain", plan.weight_domain},
      {"lengths", plan.lengths},
      {"programs", Json::object()},
      {"micro_batches", Json::array()}};
  for (const auto& [name, runs] : plan.programs) {
    Json& program = json["programs"][name] = Json::array();
    for (const LayerRun& run : runs) {
      const LayerChoice choice = canonical(run.choice);
      Json parts = Json::array();
      parts.push_back(part(
          "attention", choice.attention, choice.attention_recompute, choice.attention_offload));
      parts.push_back(part("mlp", choice.mlp, choice.mlp_recompute, choice.mlp_offload));
      for (const LayerOption& option : layer_options()) {
        if (choice.*option.value != 0) {
          parts[option.strategy != nullptr ? 0 : 1][option.name] = choice.*option.value;
        }
      }
      program.push_back({{"layers", run.layers}, {"parts", std::move(parts)}});
    }
  }
  for (const PlanMicroBatch& micro_batch : plan.micro_batches) {
    Json groups = Json::array();
    for (const PlanGroup& group : micro_batch.groups) {
      Json one = {
          {"ranks", group.ranks}, {"documents", group.documents}, {"program", group.program}};
      if (!group.shares.empty()) {
        expect_finite(group.shares);
        one["shares"] = group.shares;
      }
      if (all) {
        put(one, group.predicted);
      }
      groups.push_back(std::move(one));
    }
    Json one = Json::object();
    one["groups"] = std::move(groups);
    if (all) {
      put(one, micro_batch.predicted);
    }
    json["micro_batches"].push_back(std::move(one));
  }
  if (all) {
    put(json, plan.predicted);
    Json planner = Json::object();
    if (!plan.planner_name.empty()) {
      planner["name"] = plan.planner_name;
    }
    if (!plan.planner_space.empty()) {
      planner["space"] = plan.planner_space;
    }
    if (plan.planner_seconds) {
      planner["seconds"] = finite(*plan.planner_seconds);
    }
    if (!planner.empty()) {
      json["planner"] = std::move(planner);
    }
  }
  return json;
}

// --- reading -------------------------------------------------------------------------------------

Predicted predicted_from(const JsonNode& parent) {
  Predicted predicted;
  if (!parent.has("predicted")) {
    return predicted;
  }
  const JsonNode node = parent.at("predicted");
  node.allow({"seconds", "lower_bound_seconds", "bytes"});
  if (node.has("seconds")) {
    predicted.seconds = node.at("seconds").number();
  }
  if (node.has("lower_bound_seconds")) {
    predicted.lower_bound_seconds = node.at("lower_bound_seconds").number();
  }
  if (node.has("bytes")) {
    const JsonNode bytes = node.at("bytes");
    bytes.allow({"static", "saved", "transient"});
    predicted.bytes = {
        .static_bytes = bytes.at("static").integer<std::int64_t>(),
        .saved = bytes.at("saved").integer<std::int64_t>(),
        .transient = bytes.at("transient").integer<std::int64_t>()};
  }
  return predicted;
}

struct Part {
  std::string strategy;
  Recompute level = Recompute::none;
  bool offload = false;
  LayerChoice numbers = {};  // its options that are numbers
};

Part part_from(const JsonNode& node, const std::string& name) {
  const std::string found = node.at("part").text();
  if (found != name) {
    node.at("part").fail(
        "expected \"" + name + "\", found \"" + found +
        "\": the parts of a layer are attention, then mlp");
  }
  Part part{.strategy = node.at("strategy").text()};
  std::vector<std::string> options = {"recompute", "offload"};
  std::vector<LayerOption> numbers;
  for (const LayerOption& option : layer_options()) {
    const bool has = option.strategy == nullptr
                         ? name == "mlp"
                         : name == "attention" && part.strategy == option.strategy;
    if (has) {
      options.emplace_back(option.name);
      numbers.push_back(option);
    }
  }
  const auto refuse = [&](const std::string& key, const JsonNode& option) {
    option.fail(
        "strategy '" + part.strategy + "' of part '" + name + "' has no option '" + key + "'" +
        did_you_mean(key, options) +
        "; the options of a part are recompute, offload, of METP head_groups, of USP "
        "ulysses_degree, of an mlp token_tiles");
  };
  for (const auto& [key, value] : node.members()) {
    const bool known = key == "part" || key == "strategy" || key == "expanded" ||
                       std::find(options.begin(), options.end(), key) != options.end();
    if (!known) {
      refuse(key, value);
    }
  }
  if (node.has("recompute")) {
    const JsonNode level = node.at("recompute");
    const std::string text = level.text();
    try {
      part.level = recompute(text);
    } catch (const std::invalid_argument& error) {
      level.fail(error.what());
    }
  }
  part.offload = node.has("offload") && node.at("offload").truth();
  for (const LayerOption& option : numbers) {
    if (node.has(option.name)) {
      part.numbers.*option.value = node.at(option.name).integer<int>();
      if (part.numbers.*option.value < 1) {
        node.at(option.name).fail("at least 1 is needed");
      }
    }
  }
  return part;
}

LayerRun run_from(const JsonNode& node) {
  node.allow({"layers", "parts", "expanded"});
  const std::vector<JsonNode> parts = node.at("parts").elements();
  if (parts.size() != 2) {
    node.at("parts").fail(
        "expected the 2 parts attention and mlp, found " + std::to_string(parts.size()));
  }
  const Part attention = part_from(parts[0], "attention");
  const Part mlp = part_from(parts[1], "mlp");
  const LayerChoice choice{
      .attention = attention.strategy,
      .mlp = mlp.strategy,
      .attention_recompute = attention.level,
      .mlp_recompute = mlp.level,
      .attention_offload = attention.offload,
      .mlp_offload = mlp.offload,
      .head_groups = attention.numbers.head_groups,
      .ulysses_degree = attention.numbers.ulysses_degree,
      .token_tiles = mlp.numbers.token_tiles};
  return {.layers = node.at("layers").integer<std::int64_t>(), .choice = canonical(choice)};
}

PlanGroup group_from(const JsonNode& node) {
  node.allow({"ranks", "documents", "program", "shares", "predicted"});
  PlanGroup group{
      .ranks = node.at("ranks").integers<int>(),
      .documents = node.at("documents").integers<std::int64_t>(),
      .program = node.at("program").text(),
      .predicted = predicted_from(node)};
  if (node.has("shares")) {
    group.shares = node.at("shares").numbers();
    if (group.shares.empty()) {
      node.at("shares").fail(
          "no shares for " + std::to_string(group.ranks.size()) +
          " ranks: give each rank one, or leave the key out for even cuts");
    }
  }
  return group;
}

Plan plan_from(const JsonNode& root) {
  expect_format(root, kFormat, kVersion, "this is no plan file", "plan again");
  root.allow(
      {"format",
       "version",
       "model",
       "cluster",
       "weight_domain",
       "lengths",
       "programs",
       "micro_batches",
       "predicted",
       "planner"});
  Plan plan;
  const JsonNode model = root.at("model");
  model.allow({"name", "sha256", "layers"});
  plan.model_name = model.at("name").text();
  plan.model_sha256 = model.at("sha256").text();
  plan.layers = model.at("layers").integer<std::int64_t>();
  const JsonNode cluster = root.at("cluster");
  cluster.allow({"name", "sha256", "ranks"});
  plan.cluster_name = cluster.at("name").text();
  plan.cluster_sha256 = cluster.at("sha256").text();
  plan.ranks = cluster.at("ranks").integer<int>();
  plan.weight_domain = root.at("weight_domain").integer<int>();
  plan.lengths = root.at("lengths").integers<std::int64_t>();
  for (const auto& [name, program] : root.at("programs").members()) {
    LayerProgram& runs = plan.programs[name];
    for (const JsonNode& run : program.elements()) {
      runs.push_back(run_from(run));
    }
  }
  for (const JsonNode& node : root.at("micro_batches").elements()) {
    node.allow({"groups", "predicted"});
    PlanMicroBatch micro_batch{.groups = {}, .predicted = predicted_from(node)};
    for (const JsonNode& group : node.at("groups").elements()) {
      micro_batch.groups.push_back(group_from(group));
    }
    plan.micro_batches.push_back(std::move(micro_batch));
  }
  plan.predicted = predicted_from(root);
  if (root.has("planner")) {
    const JsonNode planner = root.at("planner");
    planner.allow({"name", "space", "seconds"});
    if (planner.has("name")) {
      plan.planner_name = planner.at("name").text();
    }
    if (planner.has("space")) {
      plan.planner_space = planner.at("space").text();
    }
    if (planner.has("seconds")) {
      plan.planner_seconds = planner.at("seconds").number();
    }
  }
  return plan;
}

}  // namespace

std::vector<LayerChoice> choices(const LayerProgram& program) {
  std::vector<LayerChoice> choices;
  for (const LayerRun& run : program) {
    for (std::int64_t layer = 0; layer < run.layers; ++layer) {
      choices.push_back(run.choice);
    }
  }
  return choices;
}

LayerProgram runs_of(const std::vector<LayerChoice>& choices) {
  LayerProgram program;
  for (const LayerChoice& choice : choices) {
    if (program.empty() || program.back().choice != choice) {
      program.push_back({.layers = 0, .choice = choice});
    }
    ++program.back().layers;
  }
  return program;
}

TokenLayout token_layout(const Plan& plan, const PlanGroup& group, bool causal) {
  std::vector<std::int64_t> lengths;
  lengths.reserve(group.documents.size());
  for (const std::int64_t document : group.documents) {
    lengths.push_back(plan.lengths.at(static_cast<std::size_t>(document)));
  }
  return token_layout(
      std::move(lengths), static_cast<int>(group.ranks.size()), causal, group.shares);
}

std::string to_json(const Plan& plan) { return json_text(json_of(plan, Content::all)); }

Plan plan_from_json(const std::string& text, const std::string& source) {
  const JsonSource from{.name = source, .whole = "the plan"};
  const nlohmann::json json = parse_json(text, from);
  return plan_from(JsonNode(json, from));
}

Plan read_plan(const std::filesystem::path& file) {
  std::ifstream stream(file, std::ios::binary);
  std::ostringstream text;
  if (stream.peek() != std::ifstream::traits_type::eof()) {
    text << stream.rdbuf();
  }
  if (!stream.is_open() || stream.bad() || std::filesystem::is_directory(file)) {
    throw std::invalid_argument(
        file.string() + ": cannot be read: give the path of a plan file (docs/plan_file.md)");
  }
  return plan_from_json(text.str(), file.string());
}

std::string hash(const Plan& plan) {
  // nlohmann::json, unlike Json, sorts its keys.
  return sha256_hex(json_line(nlohmann::json(json_of(plan, Content::hashed))));
}

}  // namespace paradyse
