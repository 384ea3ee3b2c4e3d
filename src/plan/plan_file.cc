// The plan as a file: docs/plan_file.md.  What is wrong with a plan that could be read:
// plan_check.cc.
#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <set>
#include <sstream>
#include <stdexcept>
#include <utility>

#include <nlohmann/json.hpp>

#include "paradyse/plan.h"
#include "paradyse/sha256.h"
#include "paradyse/text_match.h"
#include "src/plan/plan_path.h"

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

std::string dump(const nlohmann::json& json) {
  try {
    return json.dump();
  } catch (const nlohmann::json::type_error&) {
    throw std::invalid_argument(
        "to_json: a name in the plan is not UTF-8: " +
        json.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace));
  }
}

// On one line, with a space after each comma and colon.
std::string on_one_line(const Json& json) {
  if (!json.is_structured()) {
    return dump(json);
  }
  std::string text;
  for (const auto& [key, value] : json.items()) {
    text += text.empty() ? "" : ", ";
    text += (json.is_object() ? dump(key) + ": " : "") + on_one_line(value);
  }
  return json.is_object() ? "{" + text + "}" : "[" + text + "]";
}

// What fits on a line stands on one; numbers of a longer list fill lines; all else has lines of its
// own.  `used`: columns taken before and after on the first line.
void print(const Json& json, std::size_t indent, std::size_t used, std::string& out) {
  constexpr std::size_t kColumns = 100;
  const std::string line = on_one_line(json);
  if (!json.is_structured() || json.empty() || used + line.size() <= kColumns) {
    out += line;
    return;
  }
  const std::string margin(indent + 2, ' ');
  const bool fill = json.is_array() && !json.front().is_structured();
  std::size_t column = kColumns;
  out += json.is_object() ? "{" : "[";
  const char* comma = "";
  for (const auto& [key, value] : json.items()) {
    out += comma;
    comma = ",";
    const std::size_t width = fill ? on_one_line(value).size() + 2 : 0;
    if (!fill || column + width > kColumns) {
      out += "\n" + margin;
      column = margin.size();
    } else {
      out += " ";
    }
    column += width;
    const std::string name = json.is_object() ? dump(key) + ": " : "";
    out += name;
    print(value, indent + 2, margin.size() + name.size() + 1, out);
  }
  out += "\n" + std::string(indent, ' ') + (json.is_object() ? "}" : "]");
}

// --- reading -------------------------------------------------------------------------------------

// Follows the parser: refuses what the parser would let pass, a key that stands twice (the last one
// would win) and nesting that no plan has.
class Guard {
 public:
  explicit Guard(std::string source) : source_(std::move(source)) {}

  bool operator()(int depth, nlohmann::json::parse_event_t event, const nlohmann::json& parsed) {
    using Event = nlohmann::json::parse_event_t;
    constexpr int kDeepest = 64;
    switch (event) {
      case Event::object_start:
      case Event::array_start:
        if (depth >= kDeepest) {
          throw std::invalid_argument(
              source_ + ": " + path() + ": nested more than " + std::to_string(kDeepest) +
              " deep; a plan is 8 deep");
        }
        open_.push_back({.array = event == Event::array_start, .key = {}, .keys = {}});
        break;
      case Event::key: {
        const std::string key = parsed.get<std::string>();
        open_.back().key = key;
        if (!open_.back().keys.insert(key).second) {
          throw std::invalid_argument(
              source_ + ": " + path() + ": the key stands twice in this object; keep one");
        }
        break;
      }
      case Event::object_end:
      case Event::array_end:
        open_.pop_back();
        [[fallthrough]];
      case Event::value:
        if (!open_.empty()) {
          ++open_.back().index;
        }
        break;
    }
    return true;
  }

 private:
  struct Open {
    bool array = false;
    std::size_t index = 0;
    std::string key;
    std::set<std::string> keys;
  };

  [[nodiscard]] std::string path() const {
    std::string path;
    for (const Open& open : open_) {
      path = open.array ? path_to(path, open.index) : path_to(path, open.key);
    }
    return path.empty() ? "the plan" : path;
  }

  std::string source_;
  std::vector<Open> open_;
};

// A JSON value and where it stands.
class Node {
 public:
  Node(const nlohmann::json& json, std::string path, const std::string& source)
      : json_(json), path_(std::move(path)), source_(source) {}

  [[noreturn]] void fail(const std::string& what) const {
    throw std::invalid_argument(
        source_ + ": " + (path_.empty() ? "the plan" : path_) + ": " + what);
  }

  // Throws unless this is an object whose keys are all among these.
  void allow(const std::vector<std::string>& keys) const {
    for (const auto& [key, value] : object().items()) {
      if (std::find(keys.begin(), keys.end(), key) == keys.end()) {
        std::string list;
        for (const std::string& known : keys) {
          list += (list.empty() ? "" : ", ") + known;
        }
        child(key, value).fail("unknown key" + did_you_mean(key, keys) + "; known here: " + list);
      }
    }
  }

  [[nodiscard]] bool has(const std::string& key) const { return object().contains(key); }

  [[nodiscard]] Node at(const std::string& key) const {
    if (!has(key)) {
      fail("the key '" + key + "' is missing");
    }
    return child(key, json_.at(key));
  }

  [[nodiscard]] std::vector<std::pair<std::string, Node>> members() const {
    std::vector<std::pair<std::string, Node>> members;
    for (const auto& [key, value] : object().items()) {
      members.emplace_back(key, child(key, value));
    }
    return members;
  }

  [[nodiscard]] std::vector<Node> elements() const {
    if (!json_.is_array()) {
      expected("a list");
    }
    std::vector<Node> elements;
    elements.reserve(json_.size());
    for (std::size_t i = 0; i < json_.size(); ++i) {
      elements.emplace_back(json_[i], path_to(path_, i), source_);
    }
    return elements;
  }

  [[nodiscard]] std::string text() const {
    if (!json_.is_string()) {
      expected("a string");
    }
    return json_.get<std::string>();
  }

  template <typename Integer>
  [[nodiscard]] Integer integer() const {
    using Limits = std::numeric_limits<Integer>;
    const bool fits = json_.is_number_unsigned()
                          ? json_.get<std::uint64_t>() <= static_cast<std::uint64_t>(Limits::max())
                          : json_.is_number_integer() && json_.get<std::int64_t>() >= Limits::min();
    if (!fits) {
      expected(
          "an integer from " + std::to_string(Limits::min()) + " to " +
          std::to_string(Limits::max()));
    }
    return json_.get<Integer>();
  }

  [[nodiscard]] double number() const {
    if (!json_.is_number()) {
      expected("a number");
    }
    return json_.get<double>();
  }

  [[nodiscard]] bool truth() const {
    if (!json_.is_boolean()) {
      expected("true or false");
    }
    return json_.get<bool>();
  }

  template <typename Integer>
  [[nodiscard]] std::vector<Integer> integers() const {
    std::vector<Integer> values;
    for (const Node& node : elements()) {
      values.push_back(node.integer<Integer>());
    }
    return values;
  }

 private:
  [[nodiscard]] Node child(const std::string& key, const nlohmann::json& value) const {
    return {value, path_to(path_, key), source_};
  }

  [[nodiscard]] const nlohmann::json& object() const {
    if (!json_.is_object()) {
      expected("an object");
    }
    return json_;
  }

  [[noreturn]] void expected(const std::string& what) const {
    constexpr std::size_t kShown = 60;
    std::string found = json_.is_object()  ? "an object"
                        : json_.is_array() ? "a list"
                                           : json_.dump(-1, ' ', /*ensure_ascii=*/true);
    if (found.size() > kShown) {
      found = found.substr(0, kShown) + "...";
    }
    fail("expected " + what + ", found " + found);
  }

  const nlohmann::json& json_;
  std::string path_;
  const std::string& source_;
};

Predicted predicted_from(const Node& parent) {
  Predicted predicted;
  if (!parent.has("predicted")) {
    return predicted;
  }
  const Node node = parent.at("predicted");
  node.allow({"seconds", "lower_bound_seconds", "bytes"});
  if (node.has("seconds")) {
    predicted.seconds = node.at("seconds").number();
  }
  if (node.has("lower_bound_seconds")) {
    predicted.lower_bound_seconds = node.at("lower_bound_seconds").number();
  }
  if (node.has("bytes")) {
    const Node bytes = node.at("bytes");
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

Part part_from(const Node& node, const std::string& name) {
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
  const auto refuse = [&](const std::string& key, const Node& option) {
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
    const Node level = node.at("recompute");
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

LayerRun run_from(const Node& node) {
  node.allow({"layers", "parts", "expanded"});
  const std::vector<Node> parts = node.at("parts").elements();
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

PlanGroup group_from(const Node& node) {
  node.allow({"ranks", "documents", "program", "predicted"});
  return {
      .ranks = node.at("ranks").integers<int>(),
      .documents = node.at("documents").integers<std::int64_t>(),
      .program = node.at("program").text(),
      .predicted = predicted_from(node)};
}

Plan plan_from(const Node& root) {
  // Format and version first: another version may have other keys.
  const std::string format = root.at("format").text();
  if (format != kFormat) {
    root.at("format").fail(
        "expected \"" + std::string(kFormat) + "\", found \"" + format +
        "\": this is no plan file");
  }
  const auto version = root.at("version").integer<std::int64_t>();
  if (version != kVersion) {
    root.at("version").fail(
        "this program reads version " + std::to_string(kVersion) + ", the file has " +
        std::to_string(version) + ": plan again, or use the program that wrote it");
  }
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
  const Node model = root.at("model");
  model.allow({"name", "sha256", "layers"});
  plan.model_name = model.at("name").text();
  plan.model_sha256 = model.at("sha256").text();
  plan.layers = model.at("layers").integer<std::int64_t>();
  const Node cluster = root.at("cluster");
  cluster.allow({"name", "sha256", "ranks"});
  plan.cluster_name = cluster.at("name").text();
  plan.cluster_sha256 = cluster.at("sha256").text();
  plan.ranks = cluster.at("ranks").integer<int>();
  plan.weight_domain = root.at("weight_domain").integer<int>();
  plan.lengths = root.at("lengths").integers<std::int64_t>();
  for (const auto& [name, program] : root.at("programs").members()) {
    LayerProgram& runs = plan.programs[name];
    for (const Node& run : program.elements()) {
      runs.push_back(run_from(run));
    }
  }
  for (const Node& node : root.at("micro_batches").elements()) {
    node.allow({"groups", "predicted"});
    PlanMicroBatch micro_batch{.groups = {}, .predicted = predicted_from(node)};
    for (const Node& group : node.at("groups").elements()) {
      micro_batch.groups.push_back(group_from(group));
    }
    plan.micro_batches.push_back(std::move(micro_batch));
  }
  plan.predicted = predicted_from(root);
  if (root.has("planner")) {
    const Node planner = root.at("planner");
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

std::string to_json(const Plan& plan) {
  std::string text;
  print(json_of(plan, Content::all), 0, 0, text);
  return text + "\n";
}

Plan plan_from_json(const std::string& text, const std::string& source) {
  nlohmann::json json;
  try {
    json = nlohmann::json::parse(text, Guard(source));
  } catch (const nlohmann::json::exception& error) {
    throw std::invalid_argument(source + ": not JSON: " + error.what());
  }
  return plan_from(Node(json, "", source));
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
  return sha256_hex(dump(nlohmann::json(json_of(plan, Content::hashed))));
}

}  // namespace paradyse
