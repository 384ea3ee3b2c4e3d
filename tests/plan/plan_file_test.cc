// The plan as a file, its hash, and the checker: each rule violated once.
#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <numeric>
#include <random>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "paradyse/plan/plan.h"
#include "src/plan/base/sha256.h"
#include "src/plan/model/text/text_shape.h"
#include "src/plan/plan/group_timeline.h"
#include "tests/support/refusal.h"

namespace paradyse {
namespace {

using Json = nlohmann::json;
using testing::AllOf;
using testing::Contains;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;

// The example of docs/reference/plan_file.md, whose strategies exist.
const std::string& example() {
  static const std::string text = R"({
  "format": "paradyse-plan", "version": 1,
  "model":   {"name": "llama-tiny", "sha256": "", "layers": 4},
  "cluster": {"name": "local-4", "sha256": "c0ffee", "ranks": 4},
  "weight_domain": 4,
  "lengths": [70000, 812, 96, 1204],
  "programs": {
    "long": [
      {"layers": 3, "parts": [
        {"part": "attention", "strategy": "MegatronTS", "recompute": "none"},
        {"part": "mlp",       "strategy": "gather",     "recompute": "full"}]},
      {"layers": 1, "parts": [
        {"part": "attention", "strategy": "UlyssesZ", "recompute": "none"},
        {"part": "mlp",       "strategy": "hold", "recompute": "none", "offload": true}]}],
    "pair": [
      {"layers": 4, "parts": [
        {"part": "attention", "strategy": "UlyssesZ", "recompute": "none"},
        {"part": "mlp",       "strategy": "gather",   "recompute": "none"}]}],
    "short": [
      {"layers": 4, "parts": [
        {"part": "attention", "strategy": "DataZ",  "recompute": "none"},
        {"part": "mlp",       "strategy": "gather", "recompute": "none"}]}]
  },
  "micro_batches": [
    {"groups": [{"ranks": [0, 1, 2, 3], "documents": [0], "program": "long",
                 "predicted": {"seconds": 1.91, "bytes": {"static": 1, "saved": 2, "transient": 3}}}],
     "predicted": {"seconds": 1.91}},
    {"groups": [{"ranks": [0, 1], "documents": [3], "program": "pair"},
                {"ranks": [2], "documents": [1, 2], "program": "short"},
                {"ranks": [3], "documents": [],     "program": "short"}]}
  ],
  "predicted": {"seconds": 2.2, "lower_bound_seconds": 2.05},
  "planner": {"name": "exact", "space": "full", "seconds": 0.004}
})";
  return text;
}

Json example_json() { return Json::parse(example()); }
Plan example_plan() { return plan_from_json(example(), "example.json"); }

TextShape small_model() {
  return {
      .layers = 4, .hidden = 16, .heads = 4, .kv_heads = 2, .head_dim = 4, .ffn = 24, .vocab = 40};
}

// The message of the refusal of `text`.
std::string refusal(const std::string& text) {
  return test::refusal([&] { plan_from_json(text, "plan.json"); });
}

std::string refusal(const Json& json) { return refusal(json.dump()); }

// A sound plan with random groups, programs and documents.
Plan random_plan(std::mt19937& random) {
  const auto pick = [&](std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(random);
  };
  Plan plan;
  plan.model_name = "model \"" + std::to_string(pick(0, 99)) + "\" \u00e9\n";
  plan.layers = pick(0, 6);
  plan.cluster_name = "cluster";
  plan.cluster_sha256 = sha256_hex(std::to_string(pick(0, 99)));
  plan.weight_domain = static_cast<int>(pick(1, 4));
  plan.messages = {.overlap = pick(0, 1) == 1, .reshard_after_forward = pick(0, 1) == 1};
  if (!plan.messages.reshard_after_forward) {
    plan.messages.reshard_after_backward = pick(0, 1) == 1;
  }
  if (pick(0, 1) == 1) {
    plan.tiles = {.vocabulary = pick(1, 99), .logits = pick(1, 99), .products = pick(0, 9)};
  }
  const int domains = static_cast<int>(pick(1, 3));
  plan.ranks = plan.weight_domain * domains;

  const auto program = [&](bool whole_domain, bool one_rank) {
    std::vector<LayerChoice> layers;
    for (std::int64_t l = 0; l < plan.layers; ++l) {
      const bool hold = whole_domain && pick(0, 1) == 0;
      layers.push_back(text_layer(
          hold       ? "MegatronTS"
          : one_rank ? "DataZ"
                     : "UlyssesZ",
          whole_domain && pick(0, 1) == 0 ? "hold" : "gather",
          kRecomputeLevels[pick(0, 3)],
          pick(0, 1) == 0 ? Recompute::none : Recompute::full));
    }
    for (std::size_t l = 0; l < layers.size(); ++l) {
      for (PartChoice& part : layers[l]) {
        part.with_layer = l % 3 == 1;  // in all groups of a domain, or in none
      }
    }
    LayerRuns runs = runs_of(layers);
    for (LayerRun& run : runs) {
      part_of(run.choice, "attention").offload = pick(0, 3) == 0;
      part_of(run.choice, "mlp").offload = pick(0, 3) == 0;
    }
    return runs;
  };
  plan.programs["whole"] = program(true, false);
  plan.programs["some ranks"] = program(false, false);
  plan.programs["predicted"] = program(false, true);  // a name like any other

  for (std::int64_t m = pick(1, 3); m > 0; --m) {
    PlanMicroBatch micro_batch;
    for (int domain = 0; domain < domains; ++domain) {
      const int first = domain * plan.weight_domain;
      for (int at = 0; at < plan.weight_domain;) {
        const auto size = static_cast<int>(pick(1, plan.weight_domain - at));
        PlanGroup group{
            .ranks = std::vector<int>(static_cast<std::size_t>(size)),
            .documents = {},
            .program = size == plan.weight_domain ? "whole"
                       : size == 1                ? "predicted"
                                                  : "some ranks",
            .predicted = {}};
        std::iota(group.ranks.begin(), group.ranks.end(), first + at);
        for (std::int64_t d = pick(size == 1 ? 0 : 1, 3); d > 0; --d) {
          group.documents.push_back(static_cast<std::int64_t>(plan.lengths.size()));
          plan.lengths.push_back(pick(0, 40));
        }
        if (pick(0, 2) == 0) {
          for (int r = 0; r < size; ++r) {
            group.shares.push_back(std::uniform_real_distribution<double>(0.01, 9)(random));
          }
        }
        if (pick(0, 1) == 0) {
          group.predicted.seconds = std::uniform_real_distribution<double>(0, 9)(random);
          group.predicted.bytes = PredictedBytes{pick(0, 1) << 40, pick(0, 99), pick(0, 99)};
        }
        micro_batch.groups.push_back(group);
        at += size;
      }
    }
    micro_batch.predicted.seconds = std::uniform_real_distribution<double>(0, 9)(random);
    plan.micro_batches.push_back(micro_batch);
  }
  if (plan.lengths.empty()) {  // all groups are single ranks, and idle
    plan.micro_batches[0].groups[0].documents = {0};
    plan.lengths = {pick(0, 40)};
  }
  if (pick(0, 1) == 0) {
    plan.predicted.lower_bound_seconds = 0.1;
    plan.planner_name = "random";
    plan.planner_seconds = 1e-7;
  }
  if (pick(0, 1) == 1) {
    plan.source.assign(plan.lengths.size(), pick(1, 99));
  }
  return plan;
}

// --- the file ------------------------------------------------------------------------------------

TEST(PlanFile, IsReadAsItStands) {
  const Plan plan = example_plan();
  EXPECT_EQ(plan.model_name, "llama-tiny");
  EXPECT_EQ(plan.layers, 4);
  EXPECT_EQ(plan.cluster_sha256, "c0ffee");
  EXPECT_EQ(plan.ranks, 4);
  EXPECT_EQ(plan.weight_domain, 4);
  EXPECT_THAT(plan.lengths, ElementsAre(70000, 812, 96, 1204));
  ASSERT_EQ(plan.programs.size(), 3U);
  const LayerRuns& program = plan.programs.at("long");
  ASSERT_EQ(program.size(), 2U);
  EXPECT_EQ(program[0].layers, 3);
  EXPECT_EQ(
      program[0].choice, (text_layer("MegatronTS", "gather", Recompute::none, Recompute::full)));
  EXPECT_FALSE(part_of(program[1].choice, "attention").offload);
  EXPECT_TRUE(part_of(program[1].choice, "mlp").offload);
  ASSERT_EQ(plan.micro_batches.size(), 2U);
  EXPECT_EQ(plan.micro_batches[0].groups[0].predicted.bytes, (PredictedBytes{1, 2, 3}));
  EXPECT_EQ(plan.micro_batches[0].predicted.seconds, 1.91);
  EXPECT_THAT(plan.micro_batches[1].groups[1].documents, ElementsAre(1, 2));
  EXPECT_EQ(plan.predicted.lower_bound_seconds, 2.05);
  EXPECT_EQ(plan.planner_space, "full");
  EXPECT_EQ(plan.planner_seconds, 0.004);
  EXPECT_THAT(problems(plan), IsEmpty());
}

TEST(PlanFile, ReadsWhatItWrites) {
  EXPECT_EQ(plan_from_json(to_json(example_plan()), "again"), example_plan());
  EXPECT_EQ(plan_from_json(to_json(Plan{}), "again"), Plan{});
  for (unsigned seed = 0; seed < 300; ++seed) {
    std::mt19937 random(seed);
    const Plan plan = random_plan(random);
    const std::string text = to_json(plan);
    ASSERT_EQ(plan_from_json(text, "again"), plan) << "seed " << seed << "\n" << text;
    ASSERT_EQ(to_json(plan_from_json(text, "again")), text) << "seed " << seed;
    const std::string line = to_json_line(plan);
    ASSERT_EQ(plan_from_json(line, "again"), plan) << "seed " << seed << "\n" << line;
    ASSERT_EQ(line.find('\n'), std::string::npos) << "seed " << seed;
  }
}

TEST(PlanFile, IsWrittenForPeople) {
  const std::string text = to_json(example_plan());
  EXPECT_THAT(text, StartsWith("{\n  \"format\": \"paradyse-plan\",\n  \"version\": 1,\n"));
  EXPECT_EQ(text.back(), '\n');
  EXPECT_THAT(
      text, HasSubstr("\n          {\"part\": \"attention\", \"strategy\": \"UlyssesZ\", "));
  Plan long_batch;
  long_batch.lengths.assign(500, 123);
  std::istringstream lines(to_json(long_batch));
  int count = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    EXPECT_LE(line.size(), 100U) << line;
  }
  EXPECT_LT(count, 50);
}

TEST(PlanFile, SavesAndReads) {
  const std::filesystem::path file =
      std::filesystem::path(testing::TempDir()) / "plan_file_test.json";
  std::ofstream(file) << to_json(example_plan());
  EXPECT_EQ(read_plan(file), example_plan());
  std::ofstream(file, std::ios::trunc) << "{";
  EXPECT_THROW(read_plan(file), std::invalid_argument);
  std::ofstream(file, std::ios::trunc).close();
  EXPECT_THROW(read_plan(file), std::invalid_argument);
  std::filesystem::remove(file);
  for (const auto& missing : {file, std::filesystem::path(testing::TempDir())}) {
    EXPECT_THAT(
        test::refusal([&] { read_plan(missing); }),
        AllOf(StartsWith(missing.string()), HasSubstr("give the path of a plan file")));
  }
}

TEST(PlanFile, AnMlpIsItsVerb) {
  Json json = example_json();
  Json& mlp = json["programs"]["pair"][0]["parts"][1];
  mlp["strategy"] = "UlyssesZ";
  EXPECT_EQ(
      part_of(plan_from_json(json.dump(), "").programs.at("pair")[0].choice, "mlp").strategy,
      "gather");
  mlp["strategy"] = "MegatronTS";
  mlp["recompute"] = "attention-output";
  Plan plan = plan_from_json(json.dump(), "");
  EXPECT_EQ(part_of(plan.programs.at("pair")[0].choice, "mlp").strategy, "hold");
  EXPECT_EQ(part_of(plan.programs.at("pair")[0].choice, "mlp").recompute, Recompute::full);
  // also where no file was read
  Plan by_name = plan;
  part_of(by_name.programs.at("pair")[0].choice, "mlp").strategy = "MegatronTS";
  part_of(by_name.programs.at("pair")[0].choice, "mlp").recompute = Recompute::attention_output;
  EXPECT_EQ(to_json(by_name), to_json(plan));
  EXPECT_EQ(hash(by_name), hash(plan));
}

// Groups are cut as their shares say; a plan without any is the plan that it was.
TEST(PlanFile, GroupsMayHaveShares) {
  const Plan even = example_plan();
  EXPECT_THAT(to_json(even), Not(HasSubstr("shares")));
  // that of the first version, which had no shares
  EXPECT_EQ(hash(even), "7b5fa2073f7dcda232d03ee5af9d97c64bccdfaafcd18ecca7770b9336a87cfe");
  Json json = example_json();
  json["micro_batches"][1]["groups"][0]["shares"] = {2, 1.5};
  const Plan plan = plan_from_json(json.dump(), "");
  const PlanGroup& group = plan.micro_batches[1].groups[0];
  EXPECT_THAT(group.shares, ElementsAre(2, 1.5));
  EXPECT_THAT(to_json(plan), HasSubstr("\"shares\": [2.0, 1.5]"));
  EXPECT_EQ(plan_from_json(to_json(plan), ""), plan);
  EXPECT_NE(hash(plan), hash(even));
  EXPECT_THAT(problems(plan), IsEmpty());
  const TextShape model = small_model();
  EXPECT_THAT(problems(plan, {.model = model}), IsEmpty());
  const Documents tokens = packed(group_task(plan, group, true), true);
  EXPECT_EQ(tokens.cuts, token_cuts(std::vector<std::int64_t>{1204}, 2, true, group.shares));
  EXPECT_NEAR(static_cast<double>(size(tokens.cuts[0])), 688, 2);
  EXPECT_EQ(
      packed(group_task(even, even.micro_batches[1].groups[0], true), true).cuts,
      token_cuts(std::vector<std::int64_t>{1204}, 2, true));
  Plan endless = plan;
  endless.micro_batches[1].groups[0].shares[0] = std::numeric_limits<double>::infinity();
  EXPECT_THROW(to_json(endless), std::invalid_argument);
  EXPECT_THROW(hash(endless), std::invalid_argument);
}

TEST(PlanFile, OptionsMayBeLeftOutAndExpandedIsIgnored) {
  Json json = example_json();
  Json& run = json["programs"]["pair"][0];
  run["parts"][0].erase("recompute");
  run["parts"][0]["offload"] = false;
  run["parts"][0]["expanded"] = {"norm(x) -> xn", 1, {{"any", "thing"}}};
  run["expanded"] = nullptr;
  EXPECT_EQ(plan_from_json(json.dump(), ""), example_plan());
}

TEST(Runs, AndChoicesAreInverse) {
  const LayerChoice a = text_layer("UlyssesZ", "gather");
  const LayerChoice b = text_layer("UlyssesZ", "gather", Recompute::none, Recompute::full);
  EXPECT_THAT(runs_of({}), IsEmpty());
  const std::vector<LayerChoice> layers = {a, a, b, a};
  const LayerRuns runs = runs_of(layers);
  ASSERT_EQ(runs.size(), 3U);
  EXPECT_EQ(runs[0], (LayerRun{.layers = 2, .choice = a}));
  EXPECT_EQ(runs[1], (LayerRun{.layers = 1, .choice = b}));
  EXPECT_EQ(choices(runs), layers);
}

// --- refusals ------------------------------------------------------------------------------------

struct Refusal {
  std::string what;  // for the test's messages
  std::function<void(Json&)> spoil;
  std::vector<std::string> says;
};

TEST(PlanFile, RefusesWithThePath) {
  const auto group = [](Json& json) -> Json& { return json["micro_batches"][1]["groups"][0]; };
  const auto part = [](Json& json, std::size_t i) -> Json& {
    return json["programs"]["long"][1]["parts"][i];
  };
  const std::vector<Refusal> refusals = {
      {"format",
       [](Json& j) { j["format"] = "plan"; },
       {"format: ", "\"paradyse-plan\"", "\"plan\""}},
      {"version",
       [](Json& j) {
         j["version"] = 2;
         j["new"] = 1;
       },
       {"version: ", "1", "2"}},
      {"no format", [](Json& j) { j.erase("format"); }, {"the plan: ", "'format' is missing"}},
      {"missing",
       [&](Json& j) { group(j).erase("program"); },
       {"micro_batches[1].groups[0]: ", "'program' is missing"}},
      {"unknown",
       [&](Json& j) { group(j)["document"] = 1; },
       {"micro_batches[1].groups[0].document: ", "unknown key", "did you mean 'documents'?"}},
      {"unknown at the top",
       [](Json& j) { j["length"] = 1; },
       {"length: unknown key", "'lengths'"}},
      {"unknown in predicted",
       [](Json& j) { j["predicted"]["second"] = 1; },
       {"predicted.second: unknown key", "'seconds'"}},
      {"unknown in bytes",
       [](Json& j) { j["micro_batches"][0]["groups"][0]["predicted"]["bytes"]["x"] = 1; },
       {"micro_batches[0].groups[0].predicted.bytes.x: unknown key", "static, saved, transient"}},
      {"seconds that add up to infinity",
       [](Json& j) { j["micro_batches"][0]["predicted"]["seconds"] = 1e308; },
       {"micro_batches[0].predicted.seconds: expected a number from 0 to 1e+30", "found 1e+308"}},
      {"a bound that is below 0",
       [](Json& j) { j["predicted"]["lower_bound_seconds"] = -1; },
       {"predicted.lower_bound_seconds: expected a number from 0 to", "found -1"}},
      {"a planner that never ends",
       [](Json& j) { j["planner"]["seconds"] = 1e31; },
       {"planner.seconds: expected a number from 0 to"}},
      {"shares that no rank has",
       [](Json& j) { j["micro_batches"][1]["groups"][0]["shares"] = {1, 1e308}; },
       {"micro_batches[1].groups[0].shares[1]: expected a number", "found 1e+308"}},
      {"unknown in model", [](Json& j) { j["model"]["layer"] = 1; }, {"model.layer: ", "'layers'"}},
      {"unknown in planner", [](Json& j) { j["planner"]["x"] = 1; }, {"planner.x: unknown key"}},
      {"text for a number",
       [](Json& j) { j["weight_domain"] = "4"; },
       {"weight_domain: expected an integer", "found \"4\""}},
      {"fraction",
       [](Json& j) { j["lengths"][2] = 1.5; },
       {"lengths[2]: expected an integer", "found 1.5"}},
      {"too large for 64 bits",
       [](Json& j) { j["lengths"][2] = std::numeric_limits<std::uint64_t>::max(); },
       {"lengths[2]: expected an integer", "18446744073709551615"}},
      {"too large for a rank",
       [](Json& j) { j["cluster"]["ranks"] = std::int64_t{1} << 31; },
       {"cluster.ranks: expected an integer", "2147483648"}},
      {"too small for a rank",
       [&](Json& j) { group(j)["ranks"][1] = -(std::int64_t{1} << 32); },
       {"micro_batches[1].groups[0].ranks[1]: expected an integer"}},
      {"number for text",
       [&](Json& j) { group(j)["program"] = 3; },
       {"micro_batches[1].groups[0].program: expected a string", "found 3"}},
      {"object for a list",
       [](Json& j) { j["micro_batches"] = Json::object(); },
       {"micro_batches: expected a list, found an object"}},
      {"list for an object",
       [](Json& j) { j["programs"] = Json::array(); },
       {"programs: expected an object, found a list"}},
      {"text for a share",
       [&](Json& j) { group(j)["shares"] = {1, "2"}; },
       {"micro_batches[1].groups[0].shares[1]: expected a number", "found \"2\""}},
      {"no shares",
       [&](Json& j) { group(j)["shares"] = Json::array(); },
       {"micro_batches[1].groups[0].shares: no shares for 2 ranks", "leave the key out"}},
      {"text for seconds",
       [](Json& j) { j["predicted"]["seconds"] = "soon"; },
       {"predicted.seconds: expected a number"}},
      {"number for truth",
       [&](Json& j) { part(j, 1)["offload"] = 1; },
       {"programs.long[1].parts[1].offload: expected true or false"}},
      {"number for a strategy",
       [&](Json& j) { part(j, 0)["strategy"] = 1; },
       {"programs.long[1].parts[0].strategy: expected a string"}},
      {"unknown level",
       [&](Json& j) { part(j, 1)["recompute"] = "ful"; },
       {"programs.long[1].parts[1].recompute: ", "did you mean 'full'?", "attention-output"}},
      {"unknown option",
       [&](Json& j) { part(j, 0)["head_groups"] = 2; },
       {"programs.long[1].parts[0].head_groups: ", "'UlyssesZ'", "no option 'head_groups'"}},
      {"mistyped option",
       [&](Json& j) { part(j, 0)["ofload"] = true; },
       {"programs.long[1].parts[0].ofload: ", "did you mean 'offload'?"}},
      {"no placement",
       [&](Json& j) { part(j, 0)["in"] = {{"x", {"frames"}}}; },
       {"programs.long[1].parts[0].in.x: ", "'frames' is not a placement"}},
      {"a placement that is no list",
       [&](Json& j) { part(j, 0)["in"] = {{"x", "R"}}; },
       {"programs.long[1].parts[0].in.x: "}},
      {"order of parts",
       [&](Json& j) { std::swap(part(j, 0), part(j, 1)); },
       {"programs.long[1].parts[0].part: expected \"attention\"", "\"mlp\""}},
      {"one part",
       [](Json& j) { j["programs"]["long"][1]["parts"].erase(1); },
       {"programs.long[1].parts: expected the 2 parts"}},
      {"a name with a space",
       [](Json& j) { j["programs"]["a b"] = 1; },
       {"programs[\"a b\"]: expected a list"}},
  };
  for (const auto& [what, spoil, says] : refusals) {
    SCOPED_TRACE(what);
    Json json = example_json();
    spoil(json);
    const std::string message = refusal(json);
    EXPECT_THAT(message, StartsWith("plan.json: "));
    for (const std::string& part_of_it : says) {
      EXPECT_THAT(message, HasSubstr(part_of_it));
    }
  }
}

TEST(PlanFile, RefusesWhatIsNoJson) {
  const std::string& whole = example();
  for (const std::string& text : std::vector<std::string>{
           "", " ", "{", "null x", whole + "x", "\xff", "{\"format\": \"\xff\"}"}) {
    EXPECT_THAT(refusal(text), StartsWith("plan.json: not JSON: "));
  }
  EXPECT_THAT(
      refusal(std::string("{\"lengths\": [1, {\"a\": 1e999}]}")),
      StartsWith("plan.json: lengths[1].a: \"1e999\" is larger than a number can be"));
  for (const std::string text : {"null", "3", "\"plan\"", "[]"}) {
    EXPECT_THAT(refusal(text), StartsWith("plan.json: the plan: expected an object")) << text;
  }
}

TEST(PlanFile, RefusesEveryTruncation) {
  const std::string whole = Json::parse(example()).dump();
  for (std::size_t size = 0; size < whole.size(); ++size) {
    ASSERT_THROW(plan_from_json(whole.substr(0, size), ""), std::invalid_argument) << size;
  }
}

// Flipped bytes are refused or read; nothing else.
TEST(PlanFile, SurvivesDamage) {
  std::mt19937 random(1);
  const std::string& whole = example();
  for (int trial = 0; trial < 3000; ++trial) {
    std::string text = whole;
    for (int n = 0; n < 3; ++n) {
      const auto at = std::uniform_int_distribution<std::size_t>(0, text.size() - 1)(random);
      text[at] = static_cast<char>(std::uniform_int_distribution<int>(32, 126)(random));
    }
    try {
      problems(plan_from_json(text, "plan.json"));
    } catch (const std::invalid_argument& error) {
      EXPECT_THAT(error.what(), StartsWith("plan.json: "));
    }
  }
}

TEST(PlanFile, RefusesNumbersThatAreNoIntegers) {
  for (const std::string number :
       {"1.0", "1e3", "99999999999999999999", "-99999999999999999999", "9223372036854775808"}) {
    Json json = example_json();
    json["lengths"] = {"HERE"};
    std::string text = json.dump();
    text.replace(text.find("\"HERE\""), 6, number);
    EXPECT_THAT(refusal(text), HasSubstr("lengths[0]: expected an integer")) << number;
  }
}

TEST(PlanFile, RefusesAKeyThatStandsTwice) {
  std::string text = example();
  text.replace(text.find("\"weight_domain\": 4"), 18, "\"weight_domain\": 4, \"weight_domain\": 4");
  EXPECT_THAT(refusal(text), AllOf(HasSubstr(": weight_domain: "), HasSubstr("appears twice")));
  text = example();
  const std::string program = "\"program\": \"short\"";
  text.replace(text.find(program), program.size(), program + ", " + program);
  EXPECT_THAT(
      refusal(text), HasSubstr("micro_batches[1].groups[1].program: the key appears twice"));
}

TEST(PlanFile, RefusesDeepNesting) {
  for (const std::size_t depth : {std::size_t{65}, std::size_t{1000000}}) {
    EXPECT_THAT(refusal(std::string(depth, '[')), HasSubstr("nested deeper than 64 levels"));
    std::string text = example();
    text.insert(text.rfind('}'), ", \"expanded\": " + std::string(depth, '['));
    EXPECT_THAT(refusal(text), HasSubstr("nested deeper than 64 levels"));
  }
}

TEST(PlanFile, RefusesToWriteWhatJsonCannotSay) {
  Plan plan = example_plan();
  for (const double seconds : {std::numeric_limits<double>::infinity(), 1e31, -1.0}) {
    plan.predicted.seconds = seconds;
    EXPECT_THROW(to_json(plan), std::invalid_argument) << seconds;
  }
  plan = example_plan();
  plan.model_name = "\xff";
  EXPECT_THROW(to_json(plan), std::invalid_argument);
  EXPECT_THROW(hash(plan), std::invalid_argument);
}

// --- the hash ------------------------------------------------------------------------------------

// The rule of docs/reference/plan_file.md, done on the text: what any other program would do.
std::string hash_by_the_rule(const std::string& text) {
  Json json = Json::parse(text);
  json.erase("predicted");
  json.erase("planner");
  json.erase("source");
  for (Json& micro_batch : json["micro_batches"]) {
    micro_batch.erase("predicted");
    for (Json& group : micro_batch["groups"]) {
      group.erase("predicted");
    }
  }
  return sha256_hex(json.dump());
}

TEST(PlanHash, IsTheRuleOnWhatIsWritten) {
  EXPECT_EQ(hash(example_plan()), hash_by_the_rule(example()));
  for (unsigned seed = 0; seed < 100; ++seed) {
    std::mt19937 random(seed);
    const Plan plan = random_plan(random);
    ASSERT_EQ(hash(plan), hash_by_the_rule(to_json(plan))) << "seed " << seed;
  }
}

// The canonical form is what the hash names, and a plan that is read from it is the same but for
// what the hash leaves out.
TEST(PlanHash, NamesTheCanonicalForm) {
  for (unsigned seed = 0; seed < 100; ++seed) {
    std::mt19937 random(seed);
    const Plan plan = random_plan(random);
    const std::string text = canonical_json(plan);
    EXPECT_EQ(sha256_hex(text), hash(plan)) << "seed " << seed;
    EXPECT_EQ(text.find('\n'), std::string::npos);
    const Plan read = plan_from_json(text, "");
    EXPECT_EQ(canonical_json(read), text) << "seed " << seed;
    EXPECT_EQ(read.lengths, plan.lengths);
    EXPECT_EQ(read.programs, plan.programs);
    EXPECT_EQ(read.micro_batches.size(), plan.micro_batches.size());
    EXPECT_EQ(read.predicted, Predicted{});
  }
}

TEST(PlanHash, StaysUnderWhatMeansNothing) {
  const std::string before = hash(example_plan());
  // white space and the order of keys (Json sorts them)
  EXPECT_EQ(hash(plan_from_json(example_json().dump(), "")), before);
  EXPECT_EQ(hash(plan_from_json(example_json().dump(7, '\t'), "")), before);
  Json json = example_json();
  json.erase("planner");
  json.erase("predicted");
  json["source"] = std::vector<int>(json["lengths"].size(), 9);
  json["micro_batches"][0].erase("predicted");
  json["micro_batches"][0]["groups"][0]["predicted"]["seconds"] = 7;
  json["programs"]["pair"][0]["parts"][0]["expanded"] = {1, 2};
  json["programs"]["pair"][0]["parts"][0].erase("recompute");
  json["programs"]["pair"][0]["parts"][1]["strategy"] = "DataZ";
  json["programs"]["pair"][0]["parts"][1]["offload"] = false;
  EXPECT_EQ(hash(plan_from_json(json.dump(), "")), before);
}

TEST(PlanHash, ChangesWithWhatIsDone) {
  const std::vector<std::function<void(Json&)>> changes = {
      [](Json& j) { j["model"]["sha256"] = "x"; },
      [](Json& j) { j["lengths"][0] = 1; },
      [](Json& j) { j["weight_domain"] = 2; },
      [](Json& j) { j["overlap"] = true; },
      [](Json& j) { j["reshard_after_forward"] = false; },
      [](Json& j) { j["reshard_after_backward"] = false; },
      [](Json& j) { j["tiles"] = {{"vocabulary", 9}, {"logits", 9}, {"products", 0}}; },
      [](Json& j) { j["programs"]["long"][0]["parts"][0]["recompute"] = "light"; },
      [](Json& j) { j["programs"]["long"][0]["parts"][0]["offload"] = true; },
      [](Json& j) { j["programs"]["predicted"] = Json::array(); },
      [](Json& j) { j["micro_batches"][1]["groups"][1]["documents"] = {2, 1}; },
      [](Json& j) { j["micro_batches"][1]["groups"][0]["shares"] = {1, 1}; },
      [](Json& j) { j["micro_batches"][1]["groups"][0]["shares"] = {1, 2}; },
      [](Json& j) { std::swap(j["micro_batches"][0], j["micro_batches"][1]); }};
  std::set<std::string> hashes = {hash(example_plan())};
  for (const auto& change : changes) {
    Json json = example_json();
    change(json);
    EXPECT_TRUE(hashes.insert(hash(plan_from_json(json.dump(), ""))).second);
  }
}

// --- the checker ---------------------------------------------------------------------------------

// Programs that hold, gather and pass, layer by layer, with an option of METP.
Json rings_and_passes() {
  Json json = example_json();
  json["programs"]["long"][0]["parts"][0]["strategy"] = "MegatronCZ";
  json["programs"]["long"][1]["parts"] = {
      {{"part", "attention"}, {"strategy", "METP"}, {"recompute", "none"}, {"head_groups", 2}},
      {{"part", "mlp"}, {"strategy", "pass"}, {"recompute", "none"}}};
  return json;
}

TEST(PlanCheck, KnowsHeadGroups) {
  const TextShape model = small_model();
  Json json = rings_and_passes();
  const Plan plan = plan_from_json(json.dump(), "");
  EXPECT_EQ(part_of(plan.programs.at("long")[1].choice, "attention").options.at("head_groups"), 2);
  EXPECT_EQ(plan_from_json(to_json(plan), ""), plan);
  EXPECT_THAT(problems(plan, {.model = model}), ElementsAre());
  std::set<std::string> hashes = {hash(plan)};
  Json& part = json["programs"]["long"][1]["parts"][0];
  part["head_groups"] = 1;
  EXPECT_TRUE(hashes.insert(hash(plan_from_json(json.dump(), ""))).second);
  part["head_groups"] = 3;  // of 2 key/value heads
  EXPECT_THAT(
      problems(plan_from_json(json.dump(), ""), {.model = model}),
      ElementsAre(AllOf(
          StartsWith("programs.long[1].parts[0].head_groups: "), HasSubstr("2 key/value heads"))));
  part["head_groups"] = 0;
  EXPECT_THAT(refusal(json), HasSubstr("programs.long[1].parts[0].head_groups: at least 1"));
  part["head_groups"] = 1;
  part["strategy"] = "UlyssesZ";
  EXPECT_THAT(
      refusal(json),
      AllOf(HasSubstr("programs.long[1].parts[0].head_groups: "), HasSubstr("'UlyssesZ'")));
}

TEST(PlanCheck, KnowsGridsAndTokenTiles) {
  Json json = example_json();
  json["programs"]["long"][1]["parts"] = {
      {{"part", "attention"}, {"strategy", "USP"}, {"recompute", "none"}, {"ulysses_degree", 2}},
      {{"part", "mlp"}, {"strategy", "gather"}, {"recompute", "none"}, {"token_tiles", 5}}};
  const Plan plan = plan_from_json(json.dump(), "");
  EXPECT_EQ(
      part_of(plan.programs.at("long")[1].choice, "attention").options.at("ulysses_degree"), 2);
  EXPECT_EQ(part_of(plan.programs.at("long")[1].choice, "mlp").options.at("token_tiles"), 5);
  EXPECT_EQ(plan_from_json(to_json(plan), ""), plan);
  const TextShape model = small_model();
  EXPECT_THAT(problems(plan, {.model = model}), ElementsAre());

  Json& parts = json["programs"]["long"][1]["parts"];
  parts[0]["ulysses_degree"] = 3;
  EXPECT_THAT(
      problems(plan_from_json(json.dump(), ""), {}),
      ElementsAre(AllOf(HasSubstr("'USP'"), HasSubstr("ulysses_degree 3"), HasSubstr("4 ranks"))));
  parts[0]["token_tiles"] = 2;  // an option of the MLP
  EXPECT_THAT(refusal(json), HasSubstr("programs.long[1].parts[0].token_tiles: "));
  parts[0].erase("token_tiles");
  parts[1]["token_tiles"] = -1;
  EXPECT_THAT(refusal(json), HasSubstr("programs.long[1].parts[1].token_tiles: at least 1"));
  parts[1]["token_tiles"] = 2147483647;  // a program of as many ops is never built
  EXPECT_THAT(
      problems(plan_from_json(json.dump(), "")),
      Contains(
          AllOf(StartsWith("programs.long[1].parts[1].token_tiles: "), HasSubstr("at most 256"))));
}

// Groups of one size, one after the other, hold weights in a part of the sharding group.
TEST(PlanCheck, KnowsWhichGroupsHold) {
  const TextShape model = small_model();
  Json json = example_json();
  json["programs"]["pair"][0]["parts"] = {
      {{"part", "attention"}, {"strategy", "MegatronTS"}}, {{"part", "mlp"}, {"strategy", "hold"}}};
  Json& groups = json["micro_batches"][1]["groups"];
  const auto found = [&](const std::vector<int>& first, const std::vector<int>& second) {
    groups = {
        {{"ranks", first}, {"documents", {3}}, {"program", "pair"}},
        {{"ranks", second}, {"documents", {1, 2}}, {"program", "pair"}}};
    return problems(plan_from_json(json.dump(), ""), {.model = model});
  };
  EXPECT_THAT(found({0, 1}, {2, 3}), IsEmpty());
  EXPECT_THAT(found({2, 3}, {0, 1}), IsEmpty());
  EXPECT_THAT(
      found({0, 2}, {1, 3}),
      Each(AllOf(HasSubstr(".ranks: 'pair' is tensor parallel"), HasSubstr("consecutive"))));
  EXPECT_THAT(found({1, 2}, {0, 3}), Not(IsEmpty()));
  EXPECT_THAT(
      found({0, 1, 2}, {3}),
      Contains(AllOf(HasSubstr("groups of one size"), HasSubstr("this one has 3"))));
}

// Groups that gather no weights need not lie inside a sharding group, nor run in lock-step.
TEST(PlanCheck, LetsGroupsBeAsTheyLikeWhereWeightsAreWhole) {
  const TextShape model = small_model();
  Json json = example_json();
  json["weight_domain"] = 2;
  json["programs"]["pair"][0]["parts"] = {
      {{"part", "attention"}, {"strategy", "MegatronTS"}}, {{"part", "mlp"}, {"strategy", "hold"}}};
  json["micro_batches"][1]["groups"] = {
      {{"ranks", {0, 2, 3}}, {"documents", {3}}, {"program", "pair"}},
      {{"ranks", {1}}, {"documents", {1, 2}}, {"program", "short"}}};
  const auto found = [&] { return problems(plan_from_json(json.dump(), ""), {.model = model}); };
  EXPECT_THAT(found(), Contains(HasSubstr("spans the sharding groups 0 and 1")));
  json["reshard_after_backward"] = false;
  EXPECT_THAT(found(), IsEmpty());
  EXPECT_FALSE(plan_from_json(json.dump(), "").messages.reshard_after_forward);
  json["reshard_after_forward"] = true;
  EXPECT_THAT(found(), Contains(StartsWith("reshard_after_forward: weights that are kept after")));
}

// Pairs of tokens are counted in 64 bits.
TEST(PlanCheck, RefusesMorePairsThanCanBeCounted) {
  Json json = example_json();
  json["lengths"][1] = 16'777'216;
  json["lengths"][2] = 16'777'216;
  EXPECT_THAT(problems(plan_from_json(json.dump(), "")), IsEmpty());
  json["lengths"][1] = 16'777'217;
  EXPECT_THAT(
      problems(plan_from_json(json.dump(), "")),
      ElementsAre(AllOf(
          StartsWith("micro_batches[1].groups[1].documents: their lengths squared add up to "),
          HasSubstr("23 million tokens"))));
}

TEST(PlanCheck, NamesUnknownStrategies) {
  Json json = rings_and_passes();
  json["programs"]["long"][0]["parts"][0]["strategy"] = "MegatronQZ";
  json["programs"]["long"][1]["parts"][0] = {{"part", "attention"}, {"strategy", "METQ"}};
  json["programs"]["long"][1]["parts"][1]["strategy"] = "past";
  const Plan plan = plan_from_json(json.dump(), "");
  const TextShape model = small_model();
  for (const CheckContext& context : {CheckContext{}, CheckContext{.model = model}}) {
    EXPECT_THAT(
        problems(plan, context),
        ElementsAre(
            AllOf(
                StartsWith("programs.long[0].parts[0].strategy: "),
                HasSubstr("'MegatronQZ'"),
                HasSubstr("'MegatronCZ'")),
            AllOf(StartsWith("programs.long[1].parts[0].strategy: "), HasSubstr("'METP'")),
            AllOf(
                StartsWith("programs.long[1].parts[1].strategy: "),
                HasSubstr("'pass'"),
                HasSubstr("hold, gather"))));
  }
}

struct Violation {
  std::string what;
  std::function<void(Plan&)> spoil;
  std::string path;  // what the problem starts with
  std::string says;
};

TEST(PlanCheck, FindsEachViolation) {
  const auto group = [](Plan& plan, std::size_t m, std::size_t g) -> PlanGroup& {
    return plan.micro_batches[m].groups[g];
  };
  const std::vector<Violation> violations = {
      {"overlap",
       [&](Plan& p) { group(p, 1, 1).ranks = {1, 2}; },
       "micro_batches[1].groups[1].ranks[0]: ",
       "already in micro_batches[1].groups[0]"},
      {"gap",
       [&](Plan& p) { p.micro_batches[1].groups.pop_back(); },
       "micro_batches[1].groups: ",
       "ranks 3 are in no group"},
      {"order of ranks",
       [&](Plan& p) { group(p, 1, 0).ranks = {1, 0}; },
       "micro_batches[1].groups[0].ranks[1]: ",
       "ascend"},
      {"a rank twice",
       [&](Plan& p) { group(p, 1, 0).ranks = {0, 1, 1}; },
       "micro_batches[1].groups[0].ranks[2]: ",
       "ascend"},
      {"no such rank",
       [&](Plan& p) { group(p, 1, 2).ranks = {3, 4}; },
       "micro_batches[1].groups[2].ranks[1]: ",
       "rank 4 does not exist"},
      {"negative rank",
       [&](Plan& p) { group(p, 1, 0).ranks = {-1, 0, 1}; },
       "micro_batches[1].groups[0].ranks[0]: ",
       "rank -1 does not exist"},
      {"no ranks",
       [&](Plan& p) { group(p, 1, 0).ranks = {}; },
       "micro_batches[1].groups[0].ranks: ",
       "at least 1"},
      {"idle pair",
       [&](Plan& p) { group(p, 1, 0).documents = {}; },
       "micro_batches[1].groups[0].documents: ",
       "a group of its own"},
      {"across domains",
       [](Plan& p) { p.weight_domain = 2; },
       "micro_batches[0].groups[0].ranks: ",
       "spans the sharding groups 0 and 1"},
      {"domain that does not divide",
       [](Plan& p) { p.weight_domain = 3; },
       "weight_domain: ",
       "3 does not divide the cluster's 4 ranks"},
      {"domain of nothing", [](Plan& p) { p.weight_domain = 0; }, "weight_domain: ", "0 does not"},
      {"no ranks at all", [](Plan& p) { p.ranks = 0; }, "cluster.ranks: ", "at least 1"},
      {"document twice",
       [&](Plan& p) { group(p, 1, 2).documents = {0}; },
       "micro_batches[1].groups[2].documents[0]: ",
       "is already at micro_batches[0].groups[0].documents[0]"},
      {"document twice in a group",
       [&](Plan& p) { group(p, 1, 1).documents = {1, 2, 1}; },
       "micro_batches[1].groups[1].documents[2]: ",
       "is already at"},
      {"no documents",
       [](Plan& p) {
         p.lengths.clear();
         p.micro_batches.clear();
       },
       "lengths: ",
       "no documents"},
      {"no documents in any group",
       [](Plan& p) {
         p.lengths.clear();
         const PlanGroup idle{.ranks = {0}, .documents = {}, .program = "short", .predicted = {}};
         p.micro_batches = {{.groups = {idle, idle, idle, idle}, .predicted = {}}};
         for (int rank = 0; rank < 4; ++rank) {
           p.micro_batches[0].groups[idx(rank)].ranks = {rank};
         }
       },
       "lengths: ",
       "no documents"},
      {"document nowhere",
       [&](Plan& p) { group(p, 1, 1).documents = {1}; },
       "lengths[2]: ",
       "in no group"},
      {"no such document",
       [&](Plan& p) { group(p, 1, 1).documents = {1, 2, 4}; },
       "micro_batches[1].groups[1].documents[2]: ",
       "document 4 does not exist"},
      {"negative document",
       [&](Plan& p) { group(p, 1, 1).documents = {1, 2, -1}; },
       "micro_batches[1].groups[1].documents[2]: ",
       "document -1 does not exist"},
      {"negative length", [](Plan& p) { p.lengths[1] = -812; }, "lengths[1]: ", "-812 tokens"},
      {"absurd length",
       [](Plan& p) { p.lengths[1] = std::numeric_limits<std::int64_t>::max(); },
       "lengths[1]: ",
       "at most"},
      {"no such program",
       [&](Plan& p) { group(p, 1, 1).program = "shirt"; },
       "micro_batches[1].groups[1].program: ",
       "did you mean 'short'?"},
      {"too few layers",
       [](Plan& p) { p.programs["pair"][0].layers = 3; },
       "programs.pair: ",
       "add up to 3, the model has 4"},
      {"too many layers",
       [](Plan& p) { p.programs["long"][1].layers = 2; },
       "programs.long[1].layers: ",
       "only 1 of the model's 4"},
      {"layers that overflow",
       [](Plan& p) { p.programs["long"][1].layers = std::numeric_limits<std::int64_t>::max(); },
       "programs.long[1].layers: ",
       "only 1"},
      {"no layers in a run",
       [](Plan& p) { p.programs["long"][1].layers = 0; },
       "programs.long[1].layers: ",
       "at least 1"},
      {"no runs", [](Plan& p) { p.programs["pair"].clear(); }, "programs.pair: ", "add up to 0"},
      {"unknown strategy",
       [](Plan& p) { part_of(p.programs["pair"][0].choice, "attention").strategy = "UlysesZ"; },
       "programs.pair[0].parts[0].strategy: ",
       "did you mean 'UlyssesZ'?"},
      {"unknown verb",
       [](Plan& p) { part_of(p.programs["pair"][0].choice, "mlp").strategy = "gahter"; },
       "programs.pair[0].parts[1].strategy: ",
       "did you mean 'gather'?"},
      {"weight mode by its name in options",
       [](Plan& p) { part_of(p.programs["pair"][0].choice, "mlp").strategy = "zero3"; },
       "programs.pair[0].parts[1].strategy: ",
       "plan files write hold for tensor-parallel, gather for zero3, pass for streamed"},
      {"too few shares",
       [&](Plan& p) { group(p, 1, 0).shares = {1}; },
       "micro_batches[1].groups[0].shares: ",
       "1 for a group of 2 ranks: give each rank one, or leave the key out"},
      {"too many shares",
       [&](Plan& p) { group(p, 1, 1).shares = {1, 2}; },
       "micro_batches[1].groups[1].shares: ",
       "2 for a group of 1 ranks"},
      {"a share of nothing",
       [&](Plan& p) { group(p, 1, 0).shares = {1, 0}; },
       "micro_batches[1].groups[0].shares[1]: ",
       "0: a share is a positive number"},
      {"a negative share",
       [&](Plan& p) { group(p, 1, 0).shares = {-0.5, 2}; },
       "micro_batches[1].groups[0].shares[0]: ",
       "-0.5: a share is a positive number"},
      {"an endless share",
       [&](Plan& p) { group(p, 1, 0).shares = {1, std::numeric_limits<double>::infinity()}; },
       "micro_batches[1].groups[0].shares[1]: ",
       "inf: a share is a positive number"},
      {"no number for a share",
       [&](Plan& p) { group(p, 1, 0).shares = {std::numeric_limits<double>::quiet_NaN(), 1}; },
       "micro_batches[1].groups[0].shares[0]: ",
       "nan: a share is a positive number"},
      {"a share that no file holds",
       [&](Plan& p) { group(p, 1, 0).shares = {1, 1e308}; },
       "micro_batches[1].groups[0].shares[1]: ",
       "at most 1e+30"},
      {"one-rank strategy on two",
       [&](Plan& p) { group(p, 1, 0).program = "short"; },
       "micro_batches[1].groups[0].program: ",
       "'DataZ' (programs.short[0].parts[0].strategy) runs on groups of one rank"},
      {"pass on a part of the domain",
       [](Plan& p) { part_of(p.programs["pair"][0].choice, "attention").strategy = "METP"; },
       "micro_batches[1].groups[0].program: ",
       "'METP' (programs.pair[0].parts[0].strategy) streams weights"},
      {"hold beside a group of another size",
       [](Plan& p) {
         part_of(p.programs["pair"][0].choice, "mlp").strategy = "hold";
         part_of(p.programs["short"][0].choice, "mlp").strategy = "hold";
       },
       "micro_batches[1].groups[1].ranks: ",
       "1 rank next to 2 ranks of micro_batches[1].groups[0]: 'short' is tensor parallel"},
      {"verbs of a domain differ",
       [](Plan& p) {
         p.programs["short"] = runs_of(std::vector<LayerChoice>(4, text_layer("DataZ", "gather")));
         p.programs["short"][0].layers = 2;
         p.programs["short"].push_back({.layers = 2, .choice = text_layer("DataZ", "hold")});
       },
       "micro_batches[1].groups[1].program: ",
       "in layer 2 its mlp has the weight mode 'hold', that of micro_batches[1].groups[0] "
       "'gather'"},
      {"attention verbs of a domain differ",
       [](Plan& p) { part_of(p.programs["short"][0].choice, "attention").strategy = "MegatronTS"; },
       "micro_batches[1].groups[1].program: ",
       "in layer 0 its attention has the weight mode 'hold', that of micro_batches[1].groups[0] "
       "'gather'"},
  };
  const TextShape model = small_model();
  for (const auto& [what, spoil, path, says] : violations) {
    SCOPED_TRACE(what);
    Plan plan = example_plan();
    spoil(plan);
    const CheckContext with_model{.model = model, .memory_per_rank = std::int64_t{1} << 60};
    for (const CheckContext& context : {CheckContext{}, with_model}) {
      EXPECT_THAT(problems(plan, context), Contains(AllOf(StartsWith(path), HasSubstr(says))));
    }
  }
}

TEST(PlanCheck, ComparesWithTheModel) {
  TextShape model = small_model();
  Plan plan = example_plan();
  plan.model_sha256 = fingerprint(model);
  EXPECT_THAT(problems(plan, {.model = model}), IsEmpty());
  model.ffn += 1;
  EXPECT_THAT(
      problems(plan, {.model = model}),
      ElementsAre(AllOf(StartsWith("model.sha256: "), HasSubstr(fingerprint(model)))));
  plan.model_sha256.clear();  // a plan written by hand for any model of its depth
  EXPECT_THAT(problems(plan, {.model = model}), IsEmpty());
  model.layers = 5;
  EXPECT_THAT(
      problems(plan, {.model = model}),
      ElementsAre(AllOf(StartsWith("model.layers: "), HasSubstr("4"), HasSubstr("5"))));
}

// The fullest rank decides: a plan fits in exactly the bytes of its largest footprint, of which
// each element of a parameter takes what its type keeps.
TEST(PlanCheck, ComparesFootprintsWithMemory) {
  const TextShape model = small_model();
  const Plan plan = example_plan();
  struct Case {
    CheckContext context;
    std::int64_t bytes_per_element = 0;
  };
  const Case cases[] = {
      {{.precision = precision_of(Dtype::float32)}, 16},
      {{.precision = precision_of(Dtype::float64)}, 32},
      {{.precision = precision_of(Dtype::bfloat16)}, 18},  // two of them the weight that ops read
      {{.precision = precision_of(Dtype::float32), .training = false}, 4},
      {{.precision = precision_of(Dtype::bfloat16), .training = false}, 2},
      {{.precision = precision_of(Dtype::bfloat16), .keeps = Keeps::gradients}, 6},
  };
  for (Case c : cases) {
    CheckContext& context = c.context;
    context.model = model;
    std::int64_t most = 0;
    for (const PlanMicroBatch& micro_batch : plan.micro_batches) {
      for (const PlanGroup& group : micro_batch.groups) {
        const Timeline parts =
            timeline(group_task(plan, group, context.training), text_model(model));
        for (std::size_t i = 0; i < group.ranks.size(); ++i) {
          const Seat seat{.group_rank = static_cast<int>(i), .domain_rank = group.ranks[i]};
          const std::int64_t base = c.bytes_per_element * stored_elements(model, 4, group.ranks[i]);
          most = std::max(most, footprint(parts, seat, context.precision, base).peak_bytes);
        }
      }
    }
    SCOPED_TRACE(testing::Message() << c.bytes_per_element << " bytes an element, " << most);
    context.memory_per_rank = most;
    EXPECT_THAT(problems(plan, context), IsEmpty());
    context.memory_per_rank = most - 1;
    EXPECT_THAT(
        problems(plan, context),
        Contains(AllOf(
            HasSubstr(": rank "),
            HasSubstr(" needs " + std::to_string(most) + " bytes"),
            HasSubstr("but has " + std::to_string(most - 1)))));
    context.memory_per_rank = 0;
    EXPECT_EQ(problems(plan, context).size(), 4U);  // every group
  }
}

// What a rank holds is what its share of the tokens takes.
TEST(PlanCheck, ComparesUnevenFootprintsWithMemory) {
  const TextShape model = small_model();
  Plan plan = example_plan();
  PlanGroup& group = plan.micro_batches[0].groups[0];
  const auto peaks = [&] {
    const Timeline parts = timeline(group_task(plan, group, /*keep=*/true), text_model(model));
    std::vector<std::int64_t> found;
    for (int r = 0; r < 4; ++r) {
      const Seat seat{.group_rank = r, .domain_rank = r};
      found.push_back(footprint(parts, seat, {}, 16 * stored_elements(model, 4, r)).peak_bytes);
    }
    return found;
  };
  const std::vector<std::int64_t> even = peaks();
  group.shares = {1, 1, 5, 1};
  const std::vector<std::int64_t> uneven = peaks();
  EXPECT_GT(uneven[2], even[2]);
  CheckContext context{.model = model, .memory_per_rank = uneven[2]};
  EXPECT_THAT(problems(plan, context), IsEmpty());
  context.memory_per_rank = uneven[2] - 1;
  EXPECT_THAT(
      problems(plan, context),
      ElementsAre(AllOf(
          StartsWith("micro_batches[0].groups[0]: rank 2 needs "), HasSubstr("a smaller share"))));
}

TEST(PlanCheck, FindsNothingInSoundPlans) {
  for (unsigned seed = 0; seed < 300; ++seed) {
    std::mt19937 random(seed);
    const Plan plan = random_plan(random);
    TextShape model = small_model();
    model.layers = plan.layers;
    const CheckContext context{.model = model, .memory_per_rank = std::int64_t{1} << 60};
    ASSERT_THAT(problems(plan), IsEmpty()) << "seed " << seed << "\n" << to_json(plan);
    ASSERT_THAT(problems(plan, context), IsEmpty()) << "seed " << seed << "\n" << to_json(plan);
  }
}

// What is wrong with the group is said, whatever its program asks for.
TEST(PlanCheck, NamesAGroupWithoutRanksWhoseStreamsArePlaced) {
  const TextShape model = small_model();
  Plan plan = example_plan();
  part_of(plan.programs.at("pair")[0].choice, "attention").in["x"] = {"R"};
  plan.micro_batches[1].groups[0].ranks.clear();
  EXPECT_THAT(
      problems(plan, {.model = model}),
      Contains(StartsWith("micro_batches[1].groups[0].ranks: no ranks")));
}

TEST(PlanCheck, NamesADocumentLongerThanTheLearnedPositions) {
  TextShape model = small_model();
  const Plan plan = example_plan();
  model.max_positions = 1204;
  EXPECT_THAT(problems(plan, {.model = model}), IsEmpty());  // rotated: there is no end
  model.learned_positions = true;
  EXPECT_THAT(
      problems(plan, {.model = model}),
      ElementsAre(AllOf(
          StartsWith("lengths[0]: document 0 has 70000 tokens"),
          HasSubstr("has learned 1204 positions"))));
}

// Gradients of gathered weights are sent as wide by all ranks.
TEST(PlanCheck, NamesGradientsOfUnlikeWidths) {
  const TextShape model = small_model();
  Plan plan = example_plan();
  part_of(plan.programs.at("pair")[0].choice, "mlp").options["token_tiles"] = 3;
  const auto found = [&](Dtype dtype) {
    return problems(plan, {.model = model, .precision = precision_of(dtype)});
  };
  EXPECT_THAT(found(Dtype::float32), IsEmpty());
  EXPECT_THAT(
      found(Dtype::bfloat16),
      Contains(AllOf(
          StartsWith("micro_batches[1].groups[1]: layer 3 mlp: gather_weights backward sends 2"),
          HasSubstr("that of micro_batches[1].groups[0] 4"),
          HasSubstr("token_tiles"))));
  part_of(plan.programs.at("short")[0].choice, "mlp").options["token_tiles"] = 2;
  EXPECT_THAT(found(Dtype::bfloat16), IsEmpty());
}

// A plan of absurd size is a plan with problems, not a machine without memory.
TEST(PlanCheck, SurvivesAbsurdSizes) {
  const TextShape model = small_model();
  Plan plan = example_plan();
  plan.ranks = std::numeric_limits<int>::max();
  plan.weight_domain = plan.ranks;
  plan.layers = std::numeric_limits<std::int64_t>::max();
  EXPECT_THAT(
      problems(plan, {.model = model}), Contains(HasSubstr("ranks 4-2147483646 are in no group")));
  plan = example_plan();
  plan.ranks = std::numeric_limits<int>::max();
  plan.weight_domain = plan.ranks;
  EXPECT_THAT(problems(plan, {.model = model}), Contains(StartsWith("micro_batches[0].groups: ")));
}

// More tiles than tokens are as many as there are tokens; absurd numbers are refused, and neither
// is a program without end.
TEST(PlanCheck, SurvivesAbsurdNumbersOfTiles) {
  const TextShape model = small_model();
  for (const char* program : {"long", "pair", "short"}) {
    for (const std::int64_t tiles :
         {std::int64_t{250}, std::int64_t{1} << 30, std::numeric_limits<std::int64_t>::max()}) {
      Plan plan = example_plan();
      plan.lengths = {700, 81, 9, 12};
      for (LayerRun& run : plan.programs.at(program)) {
        part_of(run.choice, "mlp").options["token_tiles"] = tiles;
      }
      const std::vector<std::string> found = problems(plan, {.model = model});
      if (tiles == 250) {
        EXPECT_THAT(found, IsEmpty()) << program;
      } else {
        EXPECT_THAT(found, Contains(HasSubstr("at most 256"))) << program;
        EXPECT_THAT(found, Each(HasSubstr("token_tiles"))) << program;
      }
    }
  }
}

}  // namespace
}  // namespace paradyse
