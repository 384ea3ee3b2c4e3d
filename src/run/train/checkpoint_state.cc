#include "src/run/train/checkpoint_state.h"

#include <algorithm>
#include <deque>
#include <stdexcept>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "paradyse/plan/config.h"
#include "src/plan/base/json_node.h"
#include "src/plan/base/sha256.h"

namespace paradyse {

using nlohmann::json;

namespace {

json json_of(const BatchPlanner::Learned& learned) {
  json ratios = json::array();
  for (const auto& [of, its] : learned.ratios) {
    ratios.push_back(
        {{"part", of.what.part},
         {"strategy", of.what.strategy},
         {"ranks", of.ranks},
         {"log2_length", of.log2_length},
         {"ratios", its}});
  }
  json caps = json::array();
  for (const auto& [of, bytes] : learned.caps) {
    caps.push_back({{"log2_tokens", of}, {"bytes", bytes}});
  }
  return {
      {"ratios", ratios},
      {"machine", learned.machine},
      {"caps", caps},
      {"speeds", learned.speeds},
      {"slow_since", learned.slow_since}};
}

std::deque<double> deque_of(const JsonNode& numbers) {
  const std::vector<double> values = numbers.numbers();
  return {values.begin(), values.end()};
}

BatchPlanner::Learned learned_from(const JsonNode& from, int ranks) {
  BatchPlanner::Learned learned;
  for (const JsonNode& of : from.at("ratios").elements()) {
    // Older ones know ratios of whole groups alone: those of parts are learned anew.
    const bool of_part = of.has("part");
    const Correction::Key key{
        .what = {.part = of_part ? of.at("part").text() : "", .strategy = of.at("strategy").text()},
        .ranks = of_part ? of.at("ranks").integer<int>(1) : 1,
        .log2_length = of.at("log2_length").integer<int>()};
    std::deque<double> ratios = deque_of(of.at("ratios"));
    if (of_part) {
      learned.ratios[key] = std::move(ratios);
    }
  }
  learned.machine = from.has("machine") ? from.at("machine").number() : 1;  // older ones know none
  for (const JsonNode& of : from.at("caps").elements()) {
    learned.caps[of.at("log2_tokens").integer<int>()] = of.at("bytes").integer<std::int64_t>();
  }
  if (from.has("speeds")) {
    const std::vector<JsonNode> speeds = from.at("speeds").elements();
    if (std::ssize(speeds) == ranks) {
      learned.speeds.reserve(speeds.size());
      for (const JsonNode& of : speeds) {
        learned.speeds.push_back(deque_of(of));
      }
      if (from.has("slow_since")) {  // older ones do not know
        learned.slow_since = from.at("slow_since").integers<std::int64_t>();
      }
    }
  }
  return learned;
}

// What the format is called is that of its files, too (checkpoint_pieces.cc).
constexpr const char* kStateFormat = "paradyse-checkpoint";

}  // namespace

void damaged(const std::filesystem::path& file, const std::string& what) {
  throw std::runtime_error(fmt::format("{}: {}: the checkpoint is damaged", file.string(), what));
}

std::string to_json(const CheckpointState& s) {
  json files = json::array();
  for (const CheckpointState::File& file : s.files) {
    files.push_back({{"name", file.name}, {"bytes", file.bytes}, {"xxh64", file.xxh64}});
  }
  json state = {
      {"format", kStateFormat},
      {"version", CheckpointState::kVersion},
      {"step", s.step},
      {"tokens", s.tokens},
      {"ranks", s.ranks},
      {"weight_domain", s.weight_domain},
      {"dtype", to_string(s.dtype)},
      {"model_sha256", s.model_sha256},
      {"optimizer", {{"name", "AdamW"}, {"steps", s.optimizer_steps}}},
      {"loss_scale", {{"value", s.loss_scale}, {"steps", s.loss_scale_steps}}},
      {"data",
       {{"fingerprint", s.data.fingerprint},
        {"drawn", s.data.drawn},
        {"documents", s.data.documents},
        {"draws", s.data.draws},
        {"epoch", s.data.epoch},
        {"next", s.data.next}}},
      {"machine",
       {{"matmul_flops_per_second", s.machine.matmul_flops_per_second},
        {"attention_flops_per_second", s.machine.attention_flops_per_second},
        {"touched_bytes_per_second", s.machine.touched_bytes_per_second},
        {"sent_bytes_per_second", s.machine.sent_bytes_per_second},
        {"collective_seconds", s.machine.collective_seconds},
        {"call_seconds", s.machine.call_seconds},
        {"cores", s.machine.cores}}},
      {"costs", s.costs},
      {"costs_ranks", s.costs_ranks},
      {"costs_file", s.costs_file},
      {"given_plans", s.given_plans},
      {"left_out", s.left_out},
      {"learned", json_of(s.learned)},
      {"configuration", s.configuration},
      {"files", files}};
  if (!s.frozen.empty()) {
    state["frozen"] = s.frozen;
  }
  if (s.dropout) {
    state["dropout"] = *s.dropout;
  }
  state["sha256"] = sha256_hex(state.dump());  // of all the rest
  return state.dump(2) + "\n";
}

namespace {

DataPosition position_from(const JsonNode& data) {
  const auto count = [&](const char* key) { return data.at(key).integer<std::int64_t>(0); };
  return {
      .fingerprint = data.at("fingerprint").text(),
      .drawn = data.at("drawn").text(),
      .documents = count("documents"),
      .draws = count("draws"),
      .epoch = count("epoch"),
      .next = data.at("next").integer<std::int64_t>(-1)};
}

MachineNumbers machine_from(const JsonNode& machine) {
  const auto number = [&](const char* key) { return machine.at(key).number_from_0(); };
  return {
      .matmul_flops_per_second = number("matmul_flops_per_second"),
      .attention_flops_per_second = number("attention_flops_per_second"),
      .touched_bytes_per_second = number("touched_bytes_per_second"),
      .sent_bytes_per_second = number("sent_bytes_per_second"),
      .collective_seconds = number("collective_seconds"),
      .call_seconds = number("call_seconds"),
      .cores = machine.at("cores").integer<int>(0)};
}

CheckpointState state_from(const JsonNode& root) {
  const auto count = [](const JsonNode& of, const char* key) {
    return of.at(key).integer<std::int64_t>(0);
  };
  CheckpointState s{
      .step = count(root, "step"),
      .tokens = count(root, "tokens"),
      .ranks = root.at("ranks").integer<int>(1),
      .weight_domain = root.at("weight_domain").integer<int>(1),
      .dtype = dtype_named(root.at("dtype").text()),
      .model_sha256 = root.at("model_sha256").text(),
      .optimizer_steps = count(root.at("optimizer"), "steps"),
      .loss_scale = root.at("loss_scale").at("value").number_from_0(),
      .loss_scale_steps = count(root.at("loss_scale"), "steps"),
      .data = position_from(root.at("data")),
      .machine = machine_from(root.at("machine")),
      .costs = {},
      .given_plans = root.has("given_plans") ? root.at("given_plans").text() : "",
      .frozen = root.has("frozen") ? root.at("frozen").text() : "",
      .dropout = {},
      .left_out = {},
      .learned = {},
      .configuration = {}};
  if (root.has("left_out")) {  // older ones have neither that nor plans
    for (const JsonNode& step : root.at("left_out").elements()) {
      s.left_out.insert(step.integer<std::int64_t>(0));
    }
  }
  if (root.has("dropout")) {
    s.dropout.emplace();
    for (const auto& [key, value] : root.at("dropout").members()) {
      s.dropout->emplace(key, value.text());
    }
  }
  if (root.has("learned")) {  // older ones have none
    s.costs = root.at("costs").text();
    s.costs_ranks = root.has("costs_ranks") ? root.at("costs_ranks").integer<int>(0) : 0;
    s.costs_file = root.has("costs_file") ? root.at("costs_file").text() : "";
    s.learned = learned_from(root.at("learned"), s.ranks);
  }
  std::map<std::string, std::string> configuration;
  for (const auto& [key, value] : root.at("configuration").members()) {
    configuration.emplace(key, value.text());
  }
  s.configuration = with_current_names(configuration);
  for (const JsonNode& file : root.at("files").elements()) {
    s.files.push_back(
        {.name = file.at("name").text(),
         .bytes = count(file, "bytes"),
         .xxh64 = file.at("xxh64").text()});
  }
  return s;
}

}  // namespace

CheckpointState checkpoint_state(const std::string& text, const std::string& from) {
  const JsonSource source{.name = from, .whole = "the state"};
  try {
    json state = parse_json(text, source);
    const JsonNode root(state, source);
    if (!state.is_object() || !root.has("format") || state["format"] != kStateFormat) {
      damaged(from, "is not the state of a checkpoint");
    }
    if (const auto version = root.at("version").integer<std::int64_t>();
        version != CheckpointState::kVersion) {
      throw std::runtime_error(fmt::format(
          "{}: has format version {}, but this program reads {}; resume with the program that "
          "wrote it, or a newer one",
          from,
          version,
          CheckpointState::kVersion));
    }
    const std::string digest = root.at("sha256").text();
    state.erase("sha256");
    if (sha256_hex(state.dump()) != digest) {
      damaged(from, "does not have the content that it was written with");
    }
    return state_from(root);
  } catch (const json::exception& error) {  // what is no UTF-8 has no digest
    damaged(from, std::string("cannot be read: ") + error.what());
  } catch (const std::invalid_argument& error) {  // names the file
    throw std::runtime_error(fmt::format("{}: the checkpoint is damaged", error.what()));
  }
}

}  // namespace paradyse
