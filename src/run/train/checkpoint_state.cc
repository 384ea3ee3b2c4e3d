#include "src/run/train/checkpoint_state.h"

#include <algorithm>
#include <span>
#include <stdexcept>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "paradyse/plan/config.h"
#include "paradyse/plan/strategy.h"
#include "src/plan/base/json_text.h"
#include "src/plan/base/sha256.h"

namespace paradyse {

using nlohmann::json;

namespace {

json json_of(const BatchPlanner::Learned& learned) {
  json ratios = json::array();
  for (const auto& [of, its] : learned.ratios) {
    ratios.push_back(
        {{"strategy", of.strategy},
         {"ranks", of.ranks},
         {"log2_length", of.log2_length},
         {"ratios", its}});
  }
  json caps = json::array();
  for (const auto& [of, bytes] : learned.caps) {
    caps.push_back({{"log2_tokens", of}, {"bytes", bytes}});
  }
  return {
      {"ratios", ratios}, {"machine", learned.machine}, {"caps", caps}, {"speeds", learned.speeds}};
}

// Older ones do not say of which groups: there were those of all ranks, and single ranks for what
// runs on one alone.
int ranks_of(const json& ratios, int all) {
  if (ratios.contains("ranks")) {
    return ratios.at("ranks");
  }
  const auto name = ratios.at("strategy").get<std::string>();
  const std::span<const Strategy> known = strategies("attention");
  const auto found = std::ranges::find(known, name, &Strategy::name);
  return found != known.end() && found->one_rank ? 1 : all;
}

BatchPlanner::Learned learned_from(const json& from, int ranks) {
  BatchPlanner::Learned learned;
  for (const auto& of : from.at("ratios")) {
    const Correction::Key key{of.at("strategy"), ranks_of(of, ranks), of.at("log2_length")};
    learned.ratios[key] = of.at("ratios").get<std::deque<double>>();
  }
  learned.machine = from.value("machine", 1.0);  // older ones know none
  for (const auto& of : from.at("caps")) {
    learned.caps[of.at("log2_tokens")] = of.at("bytes");
  }
  if (from.contains("speeds") && std::ssize(from.at("speeds")) == ranks) {
    learned.speeds = from.at("speeds").get<RankSpeeds::Ratios>();
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
      {"given_plans", s.given_plans},
      {"left_out", s.left_out},
      {"learned", json_of(s.learned)},
      {"configuration", s.configuration},
      {"files", files}};
  state["sha256"] = sha256_hex(state.dump());  // of all the rest
  return state.dump(2) + "\n";
}

CheckpointState checkpoint_state(const std::string& text, const std::string& from) {
  try {
    json state = json_in(text);
    if (!state.is_object() || state.value("format", "") != kStateFormat) {
      damaged(from, "is not the state of a checkpoint");
    }
    if (const auto version = state.at("version").get<std::int64_t>();
        version != CheckpointState::kVersion) {
      throw std::runtime_error(fmt::format(
          "{}: has format version {}, but this program reads {}; resume with the program that "
          "wrote it, or a newer one",
          from,
          version,
          CheckpointState::kVersion));
    }
    const auto digest = state.at("sha256").get<std::string>();
    state.erase("sha256");
    if (sha256_hex(state.dump()) != digest) {
      damaged(from, "does not have the content that it was written with");
    }
    const json& data = state.at("data");
    const json& machine = state.at("machine");
    CheckpointState s{
        .step = state.at("step"),
        .tokens = state.at("tokens"),
        .ranks = state.at("ranks"),
        .weight_domain = state.at("weight_domain"),
        .dtype = dtype_named(state.at("dtype").get<std::string>()),
        .model_sha256 = state.at("model_sha256"),
        .optimizer_steps = state.at("optimizer").at("steps"),
        .loss_scale = state.at("loss_scale").at("value"),
        .loss_scale_steps = state.at("loss_scale").at("steps"),
        .data =
            {.fingerprint = data.at("fingerprint"),
             .drawn = data.at("drawn"),
             .documents = data.at("documents"),
             .draws = data.at("draws"),
             .epoch = data.at("epoch"),
             .next = data.at("next")},
        .machine =
            {.matmul_flops_per_second = machine.at("matmul_flops_per_second"),
             .attention_flops_per_second = machine.at("attention_flops_per_second"),
             .touched_bytes_per_second = machine.at("touched_bytes_per_second"),
             .sent_bytes_per_second = machine.at("sent_bytes_per_second"),
             .collective_seconds = machine.at("collective_seconds"),
             .call_seconds = machine.at("call_seconds"),
             .cores = machine.at("cores")},
        .costs = {},
        .given_plans = state.value("given_plans", ""),                  // older ones have
        .left_out = state.value("left_out", std::set<std::int64_t>()),  // none of these
        .learned = {},
        .configuration = with_current_names(state.at("configuration"))};
    if (state.contains("learned")) {  // older ones have none
      s.costs = state.at("costs");
      s.costs_ranks = state.value("costs_ranks", 0);
      s.learned = learned_from(state.at("learned"), static_cast<int>(s.ranks));
    }
    for (const json& file : state.at("files")) {
      s.files.push_back(
          {.name = file.at("name"), .bytes = file.at("bytes"), .xxh64 = file.at("xxh64")});
    }
    return s;
  } catch (const json::exception& error) {
    damaged(from, std::string("cannot be read: ") + error.what());
  }
}

}  // namespace paradyse
