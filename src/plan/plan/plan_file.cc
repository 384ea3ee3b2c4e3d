// The plan as a file: docs/reference/plan_file.md.  What is wrong with a plan that could be read:
// plan_check.cc.
#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "paradyse/plan/detail/index.h"
#include "paradyse/plan/plan.h"
#include "src/plan/base/disk_file.h"
#include "src/plan/base/json_node.h"
#include "src/plan/base/json_text.h"
#include "src/plan/base/sha256.h"
#include "src/plan/base/text_match.h"
#include "src/plan/strategy/table.h"

namespace paradyse {
namespace {

using Json = nlohmann::ordered_json;  // keys in the order in which people read them

constexpr const char* kFormat = "paradyse-plan";
constexpr LayerRecompute kWholeLayer{.layer = true};  // what a run's "recompute" may say
constexpr std::int64_t kVersion = 1;

// --- writing -------------------------------------------------------------------------------------

double readable(double seconds) {
  if (!(seconds >= 0 && seconds <= kMostNumber)) {
    throw std::invalid_argument(fmt::format(
        "to_json: predicted seconds are {}, and a plan file has numbers from 0 to {}: omit unknown "
        "values",
        seconds,
        kMostNumber));
  }
  return seconds;
}

void expect_readable(const std::vector<double>& shares) {
  for (const double share : shares) {
    if (!(std::abs(share) <= kMostNumber)) {
      throw std::invalid_argument(fmt::format(
          "to_json: a share of a group is {}: shares are positive numbers up to {}; omit them for "
          "even cuts",
          share,
          kMostNumber));
    }
  }
}

void put(Json& into, const Predicted& predicted) {
  Json json = Json::object();
  if (predicted.seconds) {
    json["seconds"] = readable(*predicted.seconds);
  }
  if (predicted.lower_bound_seconds) {
    json["lower_bound_seconds"] = readable(*predicted.lower_bound_seconds);
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

enum class Content : std::uint8_t { all, hashed };  // hashed: without what is only expected

Json json_of(PartChoice choice, Content content) {
  choice = canonical(std::move(choice));
  Json json = {
      {"part", choice.part},
      {"strategy", choice.strategy},
      {"recompute", to_string(choice.recompute)}};
  if (choice.offload) {
    json["offload"] = true;
  }
  for (const auto& [name, value] : choice.options) {
    json[name] = value;
  }
  if (!choice.in.empty()) {
    json["in"] = choice.in;
  }
  if (content == Content::all && !choice.out.empty()) {
    json["out"] = choice.out;
  }
  if (content == Content::all && choice.elements) {
    json["elements"] = {
        {"forward", choice.elements->forward}, {"backward", choice.elements->backward}};
  }
  return json;
}

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
  if (plan.messages.overlap) {
    json["overlap"] = true;
  }
  if (!plan.messages.reshard_after_forward) {
    json["reshard_after_forward"] = false;
  }
  if (!plan.messages.reshard_after_backward) {
    json["reshard_after_backward"] = false;
  }
  if (plan.tiles != Tiles{}) {
    json["tiles"] = {
        {"vocabulary", plan.tiles.vocabulary},
        {"logits", plan.tiles.logits},
        {"products", plan.tiles.products}};
  }
  if (all && !plan.source.empty()) {
    json["source"] = plan.source;
  }
  if (!plan.dims.empty()) {
    json["dims"] = plan.dims;
  }
  for (const auto& [name, runs] : plan.programs) {
    Json& program = json["programs"][name] = Json::array();
    for (const LayerRun& run : runs) {
      Json parts = Json::array();
      for (const PartChoice& choice : run.choice) {
        parts.push_back(json_of(choice, content));
      }
      Json& json_run = program.emplace_back(Json{{"layers", run.layers}});
      if (made_again_whole(run.choice)) {
        json_run["recompute"] = to_string(kWholeLayer);
      }
      json_run["parts"] = std::move(parts);
    }
  }
  for (const PlanMicroBatch& micro_batch : plan.micro_batches) {
    Json groups = Json::array();
    for (const PlanGroup& group : micro_batch.groups) {
      Json one = {
          {"ranks", group.ranks}, {"documents", group.documents}, {"program", group.program}};
      if (!group.shares.empty()) {
        expect_readable(group.shares);
        one["shares"] = group.shares;
      }
      if (!group.mesh.empty()) {
        one["mesh"] = group.mesh;
      }
      if (!group.dims.empty()) {
        one["dims"] = group.dims;
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
      planner["seconds"] = readable(*plan.planner_seconds);
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
    predicted.seconds = node.at("seconds").number_from_0();
  }
  if (node.has("lower_bound_seconds")) {
    predicted.lower_bound_seconds = node.at("lower_bound_seconds").number_from_0();
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

// The options of a strategy of this name, or of all of the kind where none is known by it: the
// checker says what is wrong with the name.
std::vector<Option> options_of(const std::string& kind, const std::string& name) {
  try {
    return strategy(kind, name).options;
  } catch (const std::invalid_argument&) {
    return all_options({kind});
  }
}

// "of METP head_groups, of USP ulysses_degree, of hold, gather, pass token_tiles"
std::string options_text(const std::vector<std::string>& kinds) {
  std::string text;
  for (const std::string& kind : kinds) {
    for (const Option& option : all_options({kind})) {
      text += ", of " + strategies_with(kind, option.name) + " " + option.name;
    }
  }
  return text;
}

// {"x": ["S(frames)", "R"]}
std::map<std::string, Placement> placements_from(const JsonNode& node) {
  std::map<std::string, Placement> all;
  for (const auto& [stream, value] : node.members()) {
    Placement& placement = all[stream];
    for (const JsonNode& axis : value.elements()) {
      placement.push_back(axis.text());
    }
    try {
      cut_dims(placement);
    } catch (const std::invalid_argument& error) {
      value.fail(error.what());
    }
  }
  return all;
}

PartChoice part_from(
    const JsonNode& node, const std::string& name, const std::vector<std::string>& parts) {
  const std::string found = node.at("part").text();
  if (found != name) {
    node.at("part").fail(
        "expected \"" + name + "\", found \"" + found + "\": the parts of a layer are " +
        joined(parts, ", then "));
  }
  PartChoice choice{.part = name, .strategy = node.at("strategy").text()};
  std::vector<std::string> known = {"recompute", "offload", "in", "out", "elements"};
  for (const Option& option : options_of(kind_of(name), choice.strategy)) {
    known.emplace_back(option.name);
  }
  const auto refuse = [&](const std::string& key, const JsonNode& value) {
    value.fail(
        "strategy '" + choice.strategy + "' of part '" + name + "' has no option '" + key + "'" +
        did_you_mean(key, known) + "; the options of a part are recompute, offload, in, " +
        "out, elements" +
        options_text(kind_of(name) == name ? layer_parts() : std::vector{kind_of(name)}));
  };
  for (const auto& [key, value] : node.members()) {
    if (key == "part" || key == "strategy" || key == "expanded") {
      continue;
    }
    if (std::ranges::find(known, key) == known.end()) {
      refuse(key, value);
    }
    if (key == "recompute") {
      try {
        choice.recompute = recompute(value.text());
      } catch (const std::invalid_argument& error) {
        value.fail(error.what());
      }
    } else if (key == "offload") {
      choice.offload = value.truth();
    } else if (key == "in") {
      choice.in = placements_from(value);
    } else if (key == "out") {
      choice.out = placements_from(value);
    } else if (key == "elements") {
      value.allow({"forward", "backward"});
      choice.elements = {
          .forward = value.at("forward").integer<std::int64_t>(),
          .backward = value.at("backward").integer<std::int64_t>()};
    } else {
      choice.options[key] = value.integer<int>();
      if (choice.options[key] < 1) {
        value.fail("at least 1 is needed");
      }
    }
  }
  return choice;
}

// Of a model that plans call so.
LayerRun run_from(const JsonNode& node, const std::string& model_name) {
  node.allow({"layers", "recompute", "parts", "expanded"});
  const std::vector<JsonNode> parts = node.at("parts").elements();
  const std::vector<std::string>& names =
      parts_like(model_name, parts.empty() ? "" : parts.front().at("part").text());
  if (parts.size() != names.size()) {
    node.at("parts").fail(
        "expected the " + std::to_string(names.size()) + " parts " + joined(names, " and ") +
        ", found " + std::to_string(parts.size()));
  }
  LayerRun run{.layers = node.at("layers").integer<std::int64_t>(), .choice = {}};
  for (std::size_t i = 0; i < parts.size(); ++i) {
    run.choice.push_back(canonical(part_from(parts[i], names[i], names)));
  }
  if (node.has("recompute")) {
    if (node.at("recompute").text() != to_string(kWholeLayer)) {
      node.at("recompute")
          .fail(
              "expected \"" + to_string(kWholeLayer) +
              "\": the layer is recomputed as a whole; what a part recomputes is said at the part");
    }
    for (PartChoice& part : run.choice) {
      part.with_layer = true;
    }
  }
  return run;
}

DimSizes dims_from(const JsonNode& node) {
  DimSizes dims;
  for (const auto& [name, size] : node.members()) {
    dims[name] = size.integer<std::int64_t>();
  }
  return dims;
}

Tiles tiles_from(const JsonNode& node) {
  node.allow({"vocabulary", "logits", "products"});
  return {
      .vocabulary = node.at("vocabulary").integer<std::int64_t>(1),
      .logits = node.at("logits").integer<std::int64_t>(1),
      .products = node.at("products").integer<std::int64_t>(0)};
}

PlanGroup group_from(const JsonNode& node) {
  node.allow({"ranks", "documents", "program", "shares", "mesh", "dims", "predicted"});
  PlanGroup group{
      .ranks = node.at("ranks").integers<int>(),
      .documents = node.at("documents").integers<std::int64_t>(),
      .program = node.at("program").text(),
      .predicted = predicted_from(node)};
  if (node.has("shares")) {
    group.shares = node.at("shares").numbers(-kMostNumber, kMostNumber);
    if (group.shares.empty()) {
      node.at("shares").fail(
          "no shares for " + std::to_string(group.ranks.size()) +
          " ranks: give each rank one, or leave the key out for even cuts");
    }
  }
  if (node.has("mesh")) {
    group.mesh = node.at("mesh").integers<int>();
    if (group.mesh.empty()) {
      node.at("mesh").fail("no axes: give their sizes, or leave the key out for one axis");
    }
  }
  if (node.has("dims")) {
    group.dims = dims_from(node.at("dims"));
  }
  return group;
}

Plan plan_from(const JsonNode& root) {
  expect_format(root, kFormat, kVersion, "this is not a plan file", "make a new plan");
  root.allow(
      {"format",
       "version",
       "model",
       "cluster",
       "weight_domain",
       "overlap",
       "reshard_after_forward",
       "reshard_after_backward",
       "tiles",
       "lengths",
       "source",
       "dims",
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
  const auto truth = [&](const char* name, bool otherwise) {
    return root.has(name) ? root.at(name).truth() : otherwise;
  };
  const bool reshard = truth("reshard_after_backward", true);
  plan.messages = {
      .overlap = truth("overlap", false),
      .reshard_after_forward = truth("reshard_after_forward", reshard),
      .reshard_after_backward = reshard};
  if (root.has("tiles")) {
    plan.tiles = tiles_from(root.at("tiles"));
  }
  plan.lengths = root.at("lengths").integers<std::int64_t>();
  if (root.has("source")) {
    plan.source = root.at("source").integers<std::int64_t>();
  }
  if (root.has("dims")) {
    plan.dims = dims_from(root.at("dims"));
  }
  for (const auto& [name, program] : root.at("programs").members()) {
    LayerRuns& runs = plan.programs[name];
    for (const JsonNode& run : program.elements()) {
      runs.push_back(run_from(run, plan.model_name));
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
      plan.planner_seconds = planner.at("seconds").number_from_0();
    }
  }
  return plan;
}

}  // namespace

std::vector<LayerChoice> choices(const LayerRuns& program) {
  std::vector<LayerChoice> choices;
  for (const LayerRun& run : program) {
    for (std::int64_t layer = 0; layer < run.layers; ++layer) {
      choices.push_back(run.choice);
    }
  }
  return choices;
}

LayerRuns runs_of(const std::vector<LayerChoice>& choices) {
  LayerRuns program;
  for (const LayerChoice& choice : choices) {
    if (program.empty() || program.back().choice != choice) {
      program.push_back({.layers = 0, .choice = choice});
    }
    ++program.back().layers;
  }
  return program;
}

bool whole_weights(const Plan& plan) { return whole_weights(plan.messages, plan.weight_domain); }

int gathers_from(const Plan& plan) { return whole_weights(plan) ? 1 : plan.weight_domain; }

int ranks_that_meet(const Plan& plan) {
  return whole_weights(plan) ? plan.ranks : plan.weight_domain;
}

const DimSizes& dims_of(const Plan& plan, const PlanGroup& group) {
  return group.dims.empty() ? plan.dims : group.dims;
}

BatchSizes sizes_of(const Plan& plan) {
  BatchSizes batch{.lengths = plan.lengths};
  for (const PlanMicroBatch& micro : plan.micro_batches) {
    for (const PlanGroup& group : micro.groups) {
      const DimSizes& dims = dims_of(plan, group);
      for (const std::int64_t document : group.documents) {
        if (!dims.empty() && document >= 0 && document < std::ssize(plan.lengths)) {
          batch.dims.resize(plan.lengths.size());
          batch.dims[idx(document)] = dims;
        }
      }
    }
  }
  return batch;
}

std::string to_json(const Plan& plan) { return json_text(json_of(plan, Content::all)); }

std::string to_json_line(const Plan& plan) { return json_line(json_of(plan, Content::all)); }

Plan plan_from_json(const std::string& text, const std::string& source) {
  const JsonSource from{.name = source, .whole = "the plan"};
  const nlohmann::json json = parse_json(text, from);
  return plan_from(JsonNode(json, from));
}

Plan read_plan(const std::filesystem::path& file) {
  return plan_from_json(
      content_of_named(file, "give the path of a plan file (docs/reference/plan_file.md)"),
      file.string());
}

std::string canonical_json(const Plan& plan) {
  // nlohmann::json, unlike Json, sorts its keys.
  return json_line(nlohmann::json(json_of(plan, Content::hashed)));
}

std::string hash(const Plan& plan) { return sha256_hex(canonical_json(plan)); }

}  // namespace paradyse
