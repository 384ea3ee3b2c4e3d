// What the switching bench measured: the file, what is read from it, and the page.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <random>
#include <regex>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "lab/report/switching.h"
#include "lab/report/totals.h"
#include "src/plan/report/page.h"
#include "tests/support/folder.h"
#include "tests/support/refusal.h"

namespace paradyse {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::IsNan;
using testing::Not;
using testing::SizeIs;
using testing::StartsWith;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

using test::Folder;

std::string content(const fs::path& file) {
  std::ostringstream text;
  text << std::ifstream(file).rdbuf();
  return text.str();
}

void put(const fs::path& file, const std::string& text) { std::ofstream(file) << text; }

SwitchingStep step(std::int64_t tokens, std::vector<double> seconds) {
  return {.tokens = tokens, .longest = tokens, .fits = true, .seconds = std::move(seconds)};
}

SwitchingStep no_step(std::int64_t tokens) {
  return {.tokens = tokens, .longest = tokens, .fits = false, .seconds = {}};
}

// Three repeats of documents of 100, 1,000 and 5,000 tokens: what each run takes is in the tests.
SwitchingCorpus corpus() {
  SwitchingCorpus corpus{.name = "code", .order = "sorted", .packed = false, .runs = {}};
  corpus.runs = {
      {.name = "ours",
       .kind = "ours",
       .steps = {step(100, {1, 2, 3}), step(1000, {4, 4, 4}), step(5000, {10, 20, 10})}},
      {.name = "static A",
       .kind = "static",
       .steps = {step(100, {1, 1, 4}), step(1000, {6, 6, 6}), no_step(5000)}},
      {.name = "static METP",
       .kind = "static",
       .steps = {step(100, {8, 8, 8}), step(1000, {8, 9, 10}), step(5000, {30, 30, 30})}},
      {.name = "ours without METP",
       .kind = "ablation",
       .steps = {step(100, {2, 2, 2}), no_step(1000), no_step(5000)}},
      {.name = "static none",
       .kind = "published",
       .steps = {no_step(100), no_step(1000), no_step(5000)}}};
  SwitchingRun& ours = corpus.runs.front();
  ours.steps[0].predicted_seconds = 3;  // measured 2: +0.5
  ours.steps[1].predicted_seconds = 3;  // measured 4: -0.25; the third is not predicted
  ours.steps[0].peak_bytes = 100;
  ours.steps[0].predicted_peak_bytes = 110;  // +0.1
  ours.steps[2].peak_bytes = 1000;
  ours.steps[2].predicted_peak_bytes = 700;  // -0.3
  ours.steps[0].programs = {"4 x DataZ+gather"};
  ours.steps[1].programs = {"4 x <METP>+pass", "4 x DataZ+gather"};
  ours.steps[2].programs = {"4 x <METP>+pass"};
  return corpus;
}

SwitchingResult result() {
  SwitchingResult result{
      .command = "paradyse bench switching --model \"a & b\" <x>",
      .machine = "2 cores, 8 GiB",
      .model = "gpt: 4 layers",
      .backend = "threads",
      .ranks = 4,
      .memory_per_rank = std::int64_t{3} << 29,
      .costs = "structured, measured",
      .errors =
          {{.model = "structured",
            .part = "mlp",
            .strategy = "hold",
            .probes = 4,
            .mean = 0.081,
            .worst = 0.2},
           {.model = "hybrid",
            .part = "mlp",
            .strategy = "hold",
            .beyond = true,
            .probes = 4,
            .mean = 0.5,
            .worst = 1.25}},
      .corpora = {corpus()},
      .longest = {{.run = "ours", .tokens = 8000}, {.run = "static METP", .tokens = 5000}}};
  return result;
}

// Random and sound.
SwitchingResult random_result(std::mt19937& random) {
  const auto pick = [&](std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(random);
  };
  const auto seconds = [&] { return std::uniform_real_distribution<double>(1e-6, 9)(random); };
  SwitchingResult result{
      .command = "command " + std::to_string(pick(0, 99)) + " \"\u00e9\"\n",
      .machine = "",
      .model = "model",
      .backend = "gloo",
      .ranks = static_cast<int>(pick(1, 64)),
      .memory_per_rank = pick(0, std::int64_t{1} << 50),
      .costs = "closed form",
      .corpora = {},
      .longest = {}};
  const std::vector<std::string> kinds = {"ours", "static", "published", "ablation"};
  for (std::int64_t c = pick(0, 3); c > 0; --c) {
    SwitchingCorpus corpus{
        .name = "corpus " + std::to_string(c),
        .order = pick(0, 1) == 0 ? "sorted" : "shuffled",
        .packed = pick(0, 1) == 0,
        .runs = {}};
    std::vector<std::pair<std::int64_t, std::int64_t>> lengths;
    for (std::int64_t s = pick(0, 12); s > 0; --s) {
      const std::int64_t longest = std::int64_t{1} << pick(0, 20);
      lengths.emplace_back(longest + (corpus.packed ? pick(0, 99) : 0), longest);
    }
    for (std::int64_t r = pick(0, 9); r > 0; --r) {
      SwitchingRun run{
          .name = "run " + std::to_string(r),
          .kind = kinds[static_cast<std::size_t>(pick(0, 3))],
          .steps = {}};
      const std::int64_t repeats = pick(1, 4);
      for (const auto& [tokens, longest] : lengths) {
        SwitchingStep one{
            .tokens = tokens, .longest = longest, .fits = pick(0, 3) > 0, .seconds = {}};
        if (one.fits) {
          for (std::int64_t i = 0; i < repeats; ++i) {
            one.seconds.push_back(seconds());
          }
          one.planning_seconds = seconds();
          one.predicted_seconds = pick(0, 1) == 0 ? 0 : seconds();
          one.peak_bytes = pick(0, std::int64_t{1} << 40);
          one.predicted_peak_bytes = pick(0, std::int64_t{1} << 40);
          one.programs = {"4 x DataZ", std::to_string(pick(1, 3)) + " x METP"};
        }
        run.steps.push_back(one);
      }
      corpus.runs.push_back(run);
    }
    result.corpora.push_back(corpus);
  }
  if (pick(0, 1) == 0) {
    result.longest = {{.run = "run 1", .tokens = pick(0, 99)}, {.run = "run 2", .tokens = 7}};
  }
  return result;
}

// --- the file ------------------------------------------------------------------------------------

TEST(SwitchingFile, ReadsWhatItWrites) {
  const Folder folder;
  const fs::path file = folder / "switching.json";
  write_switching(result(), file);
  EXPECT_EQ(read_switching(file), result());
  write_switching(SwitchingResult{}, file);
  EXPECT_EQ(read_switching(file), SwitchingResult{});
  for (unsigned seed = 0; seed < 100; ++seed) {
    std::mt19937 random(seed);
    const SwitchingResult expected = random_result(random);
    write_switching(expected, file);
    ASSERT_EQ(read_switching(file), expected) << "seed " << seed;
  }
  EXPECT_EQ(std::distance(fs::directory_iterator(folder), {}), 1) << "leaves nothing behind";
}

TEST(SwitchingFile, RefusesToWriteWhatCouldNotBeRead) {
  const Folder folder;
  const fs::path file = folder / "switching.json";
  write_switching(result(), file);
  const std::string before = content(file);
  const auto refused = [&](const std::function<void(SwitchingResult&)>& change) {
    SwitchingResult wrong = result();
    change(wrong);
    const std::string why = test::refusal([&] { write_switching(wrong, file); });
    EXPECT_EQ(content(file), before);
    return why;
  };
  const auto first = [](SwitchingResult& wrong) -> SwitchingStep& {
    return wrong.corpora[0].runs[0].steps[0];
  };
  EXPECT_THAT(
      refused([&](auto& wrong) { first(wrong).seconds[1] = kNan; }),
      AllOf(HasSubstr("switching.json"), HasSubstr("corpora[0].runs[0].steps[0].seconds[1]")));
  EXPECT_THAT(
      refused([&](auto& wrong) { first(wrong).planning_seconds = INFINITY; }),
      HasSubstr("steps[0].planning_seconds: expected a number from 0 to"));
  EXPECT_THAT(
      refused([&](auto& wrong) { first(wrong).fits = false; }),
      HasSubstr("steps[0].seconds: a step that does not fit was not run"));
  EXPECT_THAT(
      refused([&](auto& wrong) { wrong.corpora[0].runs[1].steps.pop_back(); }),
      HasSubstr("corpora[0].runs[1].steps: expected 3 steps as in the run 'ours', found 2"));
  refused([&](auto& wrong) { wrong.machine = "\xff"; });
  EXPECT_THROW(write_switching(result(), folder / "none" / "a.json"), std::runtime_error);
}

TEST(SwitchingFile, NamesWhatIsWrong) {
  const Folder folder;
  const fs::path file = folder / "switching.json";
  write_switching(result(), file);
  const Json sound = Json::parse(content(file));
  const auto refusal = [&](const std::string& text) -> std::string {
    put(file, text);
    try {
      read_switching(file);
    } catch (const std::invalid_argument& error) {
      EXPECT_THAT(error.what(), StartsWith(file.string() + ": "));
      return std::string(error.what()).substr(file.string().size() + 2);
    }
    ADD_FAILURE() << "was read: " << text.substr(0, 300);
    return "";
  };

  Json before = sound;  // as files were that had no errors
  before.erase("errors");
  std::ofstream(file) << before.dump();
  EXPECT_TRUE(read_switching(file).errors.empty());

  // Every other key is needed, and there are no others.
  const auto expect_keys = [&](const std::string& pointer, const std::string& path) {
    const Json::json_pointer at(pointer);
    for (const auto& [key, value] : sound.at(at).items()) {
      if (key == "seconds" || key == "errors") {
        continue;  // below
      }
      Json without = sound;
      without.at(at).erase(key);
      EXPECT_EQ(
          refusal(without.dump()),
          (path.empty() ? "the result" : path) + ": the key '" + key + "' is missing");
      Json with = sound;
      with.at(at)[key + "x"] = 1;
      std::string where = path.empty() ? "" : path + ".";
      where += key + "x";
      EXPECT_THAT(
          refusal(with.dump()),
          AllOf(StartsWith(where + ": unknown key"), HasSubstr("'" + key + "'?); known here: ")));
    }
  };
  expect_keys("", "");
  expect_keys("/corpora/0", "corpora[0]");
  expect_keys("/corpora/0/runs/1", "corpora[0].runs[1]");
  expect_keys("/corpora/0/runs/1/steps/2", "corpora[0].runs[1].steps[2]");
  expect_keys("/longest/1", "longest[1]");

  // One value is another one.
  struct Case {
    std::string pointer;
    Json value;
    std::string message;  // all of it begins so
  };
  const std::string steps = "/corpora/0/runs/0/steps";
  const std::string at = "corpora[0].runs[0].steps";
  const std::vector<Case> cases = {
      {"/format", "paradyse-plan", "format: expected \"paradyse-switching\", found"},
      {"/format", 3, "format: expected a string, found 3"},
      {"/version", 2, "version: this program reads version 1, the file has 2"},
      {"/command", Json::array(), "command: expected a string, found a list"},
      {"/machine", nullptr, "machine: expected a string, found null"},
      {"/model", 1, "model: expected a string, found 1"},
      {"/backend", true, "backend: expected a string, found true"},
      {"/costs", Json::object(), "costs: expected a string, found an object"},
      {"/ranks", 0, "ranks: expected an integer from 1 to 2147483647, found 0"},
      {"/ranks", 1.5, "ranks: expected an integer from 1"},
      {"/memory_per_rank", -1, "memory_per_rank: expected an integer from 0"},
      {"/corpora", Json::object(), "corpora: expected a list, found an object"},
      {"/corpora/0", 7, "corpora[0]: expected an object, found 7"},
      {"/corpora/0/name", "", "corpora[0].name: expected a name, found \"\""},
      {"/corpora/0/order",
       "sortd",
       "corpora[0].order: expected one of sorted, shuffled, found "
       "\"sortd\" (did you mean 'sorted'?)"},
      {"/corpora/0/packed", 0, "corpora[0].packed: expected true or false, found 0"},
      {"/corpora/0/runs", "x", "corpora[0].runs: expected a list, found \"x\""},
      {"/corpora/0/runs/1/name",
       "ours",
       "corpora[0].runs[1].name: another run of this corpus has the name 'ours'"},
      {"/corpora/0/runs/1/kind",
       "statik",
       "corpora[0].runs[1].kind: expected one of ours, static, published, ablation, found "
       "\"statik\" (did you mean 'static'?)"},
      {"/corpora/0/runs/1/steps/0/tokens",
       101,
       "corpora[0].runs[1].steps[0].tokens: expected 100 as in the run 'ours', found 101"},
      {"/corpora/0/runs/1/steps/1/longest",
       999,
       "corpora[0].runs[1].steps[1].longest: expected 1000 as in the run 'ours', found 999"},
      {"/corpora/0/runs/2/steps",
       Json::array(),
       "corpora[0].runs[2].steps: expected 3 steps as in the run 'ours', found 0"},
      {steps + "/0/tokens", 0, at + "[0].tokens: expected an integer from 1"},
      {steps + "/0/tokens", 99, at + "[0].longest: expected at most the 99 tokens of the step"},
      {steps + "/0/longest", "5", at + "[0].longest: expected an integer from 1"},
      {steps + "/0/fits", 1, at + "[0].fits: expected true or false, found 1"},
      {steps + "/0/fits",
       false,
       at + "[0].seconds: a step that does not fit was not run: "
            "expected no seconds, found 3"},
      {steps + "/0/seconds", Json::array(), at + "[0].seconds: a step that fits has the seconds"},
      {steps + "/0/seconds", 1.0, at + "[0].seconds: expected a list, found 1.0"},
      {steps + "/0/seconds/1", 0, at + "[0].seconds[1]: expected seconds above 0, found 0"},
      {steps + "/0/seconds/1",
       -1,
       at + "[0].seconds[1]: expected a number from 0 to 1e+30, found -1"},
      {steps + "/0/seconds/1", nullptr, at + "[0].seconds[1]: expected a number from 0"},
      {steps + "/1/seconds",
       Json::array({1.0, 2.0}),
       at + "[1].seconds: expected 3 repeats as in the steps before, found 2"},
      {steps + "/0/planning_seconds", -1, at + "[0].planning_seconds: expected a number from 0"},
      {steps + "/0/predicted_seconds", "1", at + "[0].predicted_seconds: expected a number"},
      {steps + "/0/peak_bytes", -1, at + "[0].peak_bytes: expected an integer from 0"},
      {steps + "/0/predicted_peak_bytes",
       0.5,
       at + "[0].predicted_peak_bytes: expected an integer"},
      {steps + "/0/programs", "METP", at + "[0].programs: expected a list, found \"METP\""},
      {steps + "/1/programs/1", 4, at + "[1].programs[1]: expected a string, found 4"},
      {"/longest/0/run", "", "longest[0].run: expected a name"},
      {"/longest/1/run", "ours", "longest[1].run: 'ours' appears twice"},
      {"/longest/0/tokens", -1, "longest[0].tokens: expected an integer from 0"}};
  for (const Case& one : cases) {
    Json wrong = sound;
    wrong.at(Json::json_pointer(one.pointer)) = one.value;
    EXPECT_THAT(refusal(wrong.dump()), StartsWith(one.message)) << one.pointer;
  }
  Json wrong = sound;
  wrong["corpora"][0]["runs"][0]["steps"][0].erase("seconds");
  EXPECT_THAT(refusal(wrong.dump()), StartsWith(at + "[0]: a step that fits has the seconds"));
  wrong = sound;
  wrong["corpora"].push_back(sound["corpora"][0]);
  EXPECT_THAT(refusal(wrong.dump()), StartsWith("corpora[1].name: another corpus has the name"));
  wrong["corpora"][1]["order"] = "shuffled";  // the same documents in another order are another one
  put(file, wrong.dump());
  EXPECT_NO_THROW(read_switching(file));

  for (const std::string text : {"", "{", "[1, 2]", "1e999", "{\"format\": 1, \"format\": 2}"}) {
    EXPECT_FALSE(refusal(text).empty()) << text;
  }
  fs::remove(file);
  EXPECT_THROW(read_switching(file), std::invalid_argument);
  EXPECT_THROW(read_switching(folder), std::invalid_argument);
}

// --- summaries -----------------------------------------------------------------------------------

TEST(Summaries, AreWhatAPersonComputes) {
  const std::vector<SwitchingSummary> found = summaries(corpus());
  ASSERT_THAT(found, SizeIs(5));
  // Every static run fits the first two steps.
  const SwitchingSummary& ours = found[0];  // sums 15, 26, 17; on the first two 5, 6, 7
  EXPECT_EQ(ours.run, "ours");
  EXPECT_EQ(ours.steps, 3);
  EXPECT_EQ(ours.steps_that_fit, 3);
  EXPECT_DOUBLE_EQ(ours.seconds, 17);
  EXPECT_DOUBLE_EQ(ours.least, 15);
  EXPECT_DOUBLE_EQ(ours.most, 26);
  EXPECT_DOUBLE_EQ(ours.seconds_on_common, 6);
  EXPECT_DOUBLE_EQ(ours.common_least, 5);
  EXPECT_DOUBLE_EQ(ours.common_most, 7);
  EXPECT_DOUBLE_EQ(ours.time_error, 0.375);
  EXPECT_DOUBLE_EQ(ours.memory_error, 0.2);
  // Of six numbers all 0, but on repeats 1 and 3 of 100 tokens, where the other says A: 2 for 2.5.
  EXPECT_NEAR(ours.over_fastest, -0.2 / 6, 1e-12);
  const SwitchingSummary& a = found[1];  // sums 7, 7, 10
  EXPECT_EQ(a.steps_that_fit, 2);
  EXPECT_DOUBLE_EQ(a.seconds, 7);
  EXPECT_DOUBLE_EQ(a.most, 10);
  EXPECT_DOUBLE_EQ(a.seconds_on_common, 7);
  EXPECT_THAT(a.time_error, IsNan());
  EXPECT_THAT(a.memory_error, IsNan());
  EXPECT_DOUBLE_EQ(found[2].seconds, 47);   // 46, 47, 48
  EXPECT_DOUBLE_EQ(a.over_fastest, 0.125);  // 1 for 2, itself, 6 for 4 twice
  EXPECT_DOUBLE_EQ(found[2].seconds_on_common, 17);
  EXPECT_EQ(found[3].steps_that_fit, 1);  // not all that every static run fits
  EXPECT_DOUBLE_EQ(found[3].seconds, 2);
  EXPECT_THAT(found[3].seconds_on_common, IsNan());
  EXPECT_EQ(found[4].steps_that_fit, 0);
  EXPECT_EQ(found[4].seconds, 0);
  EXPECT_THAT(found[4].common_least, IsNan());
  EXPECT_THAT(found[4].over_fastest, IsNan());
  EXPECT_THAT(summaries(SwitchingCorpus{}), IsEmpty());
}

// Nine runs that differ by noise alone: none is faster, and the least of nine noisy medians is not
// taken for one that is.
TEST(Summaries, DoNotTakeLuckForSpeed) {
  std::mt19937 random(5);
  std::uniform_real_distribution<double> seconds(0.9, 1.1);
  SwitchingCorpus some{.name = "noise", .order = "sorted", .runs = {}};
  for (int run = 0; run < 9; ++run) {
    some.runs.push_back({.name = std::to_string(run), .kind = "static", .steps = {}});
    for (int i = 0; i < 400; ++i) {
      some.runs.back().steps.push_back(
          step(100, {seconds(random), seconds(random), seconds(random), seconds(random)}));
    }
  }
  for (const SwitchingSummary& one : summaries(some)) {
    EXPECT_LT(std::abs(one.over_fastest), 0.01);
  }
  for (SwitchingStep& one : some.runs[4].steps) {
    for (double& each : one.seconds) {
      each *= 1.2;
    }
  }
  EXPECT_GT(summaries(some)[4].over_fastest, 0.18);
}

TEST(Summaries, OfOneRepeatDoNotSayWhoWasFastest) {
  SwitchingCorpus some = corpus();
  for (SwitchingRun& run : some.runs) {
    for (SwitchingStep& one : run.steps) {
      one.seconds.resize(std::min<std::size_t>(one.seconds.size(), 1));
    }
  }
  EXPECT_THAT(summaries(some)[0].over_fastest, IsNan());
}

TEST(Summaries, WithoutAStaticRunAllStepsAreCommon) {
  SwitchingCorpus some = corpus();
  some.runs.erase(some.runs.begin() + 1, some.runs.begin() + 3);
  EXPECT_DOUBLE_EQ(summaries(some)[0].seconds_on_common, 17);
  EXPECT_EQ(best_static(some), "");
}

TEST(BestStatic, FitsTheMostAndIsTheFastestOfThose) {
  SwitchingCorpus some = corpus();
  EXPECT_EQ(best_static(some), "static METP");  // fits 3, though it is slower on 2
  for (SwitchingRun& run : some.runs) {
    run.steps.pop_back();
  }
  EXPECT_EQ(best_static(some), "static A");  // both fit 2: 7 s against 17 s
  // Each fits one other step: none is on a step of both.
  some.runs[1].steps[0] = no_step(100);
  some.runs[2].steps[1] = no_step(1000);
  EXPECT_EQ(best_static(some), "static A");
  some.runs[1].steps[1] = no_step(1000);
  some.runs[2].steps[0] = no_step(100);
  EXPECT_EQ(best_static(some), "");
}

TEST(Totals, OfRepeatsTakeTheMiddle) {
  EXPECT_EQ(median({3}), 3);
  EXPECT_EQ(median({5, 1, 3}), 3);
  EXPECT_EQ(median({4, 1, 3, 2}), 2.5);
  EXPECT_THAT(median({}), IsNan());
  const SwitchingError error = time_error(corpus().runs[0]);
  EXPECT_EQ(error.steps, 2U);
  EXPECT_DOUBLE_EQ(error.mean, 0.125);
  EXPECT_DOUBLE_EQ(error.worst, 0.5);
  EXPECT_DOUBLE_EQ(memory_error(corpus().runs[0]).worst, -0.3);
  EXPECT_THAT(time_error(corpus().runs[1]).worst, IsNan());
}

// --- the page ------------------------------------------------------------------------------------

TEST(SwitchingPage, ComparesRunsOnStepsThatBothFit) {
  const Json corpus = page_data(result())["corpora"][0];
  EXPECT_EQ(corpus["best"], "static METP");
  EXPECT_EQ(corpus["metp"], "static METP");
  EXPECT_EQ(corpus["fastest"], "static A");  // on the two steps that every static run fits
  EXPECT_EQ(corpus["common"], 2);
  EXPECT_EQ(corpus["repeats"], 3);
  EXPECT_EQ(corpus["tokens"], 6100);
  EXPECT_EQ(corpus["lengths"], Json({{"least", 100.0}, {"most", 5000.0}, {"median", 1000.0}}));
  const Json& ours = corpus["runs"][0];
  EXPECT_EQ(ours["name"], "ours");
  EXPECT_EQ(ours["fit"], 3);
  EXPECT_EQ(ours["seconds"], Json({17.0, 15.0, 26.0}));
  EXPECT_EQ(ours["common"], Json({6.0, 5.0, 7.0}));
  EXPECT_EQ(ours["beside"]["best"], Json({{"steps", 3}, {"seconds", 17.0}, {"of", 47.0}}));
  EXPECT_EQ(ours["beside"]["fastest"], Json({{"steps", 2}, {"seconds", 6.0}, {"of", 7.0}}));
  EXPECT_EQ(ours["beside"]["metp_on_common"], Json({{"steps", 2}, {"seconds", 6.0}, {"of", 17.0}}));
  EXPECT_EQ(ours["time_error"]["worst"], 0.5);
  EXPECT_EQ(ours["peak_bytes"], 1000);
  // one step from 64, one from 256, one from 4096 tokens on
  EXPECT_EQ(corpus["bins"][0], Json({{"low", 64}, {"steps", 1}}));
  EXPECT_EQ(ours["bins"][2], Json({{"fit", 1}, {"seconds", 10.0}}));
  EXPECT_EQ(
      ours["choices"][1], Json::parse(R"([["4 x <METP>+pass", 1], ["4 x DataZ+gather", 1]])"));
  const Json& a = corpus["runs"][1];
  EXPECT_EQ(a["bins"][2], Json({{"fit", 0}, {"seconds", nullptr}}));
  EXPECT_EQ(a["beside"]["best"]["steps"], 2);
  const Json& none = corpus["runs"][4];  // fits no step
  EXPECT_TRUE(none["seconds"].is_null());
  EXPECT_TRUE(none["common"].is_null());
  EXPECT_TRUE(none["beside"]["best"].is_null());
  EXPECT_TRUE(none["over_fastest"].is_null() || std::isnan(none["over_fastest"].get<double>()));
}

TEST(SwitchingPage, LinesEndBeforeWhatDoesNotFit) {
  const Json runs = page_data(result())["corpora"][0]["runs"];
  EXPECT_EQ(runs[0]["cumulative"], Json::parse("[[100, 2.0], [1000, 6.0], [5000, 17.0]]"));
  EXPECT_EQ(runs[0]["cut"], false);
  EXPECT_EQ(runs[1]["cumulative"], Json::parse("[[100, 1.0], [1000, 7.0]]"));
  EXPECT_EQ(runs[1]["cut"], true);
  EXPECT_EQ(runs[1]["each"], Json::parse("[[100.0, 1.0], [1000.0, 6.0]]"));
  EXPECT_EQ(runs[4]["cumulative"], Json::array());
}

TEST(SwitchingPage, ShowsShuffledStepsByLength) {
  SwitchingResult shuffled = result();
  for (SwitchingRun& run : shuffled.corpora[0].runs) {
    std::rotate(run.steps.begin(), run.steps.begin() + 1, run.steps.end());
  }
  const Json found = page_data(shuffled)["corpora"][0];
  const Json sorted = page_data(result())["corpora"][0];
  EXPECT_EQ(found["reordered"], true);
  EXPECT_EQ(sorted["reordered"], false);
  for (std::size_t i = 0; i < sorted["runs"].size(); ++i) {
    EXPECT_EQ(found["runs"][i]["cumulative"], sorted["runs"][i]["cumulative"]);
    EXPECT_EQ(found["runs"][i]["each"], sorted["runs"][i]["each"]);
  }
}

TEST(SwitchingPage, NamesAllThatWasMeasured) {
  const SwitchingResult all = result();
  const Json data = page_data(all);
  EXPECT_EQ(data["kind"], "switching");
  EXPECT_EQ(data["command"], all.command);
  const Json& facts = data["facts"];
  EXPECT_EQ(facts["Model"], all.model);
  EXPECT_EQ(facts["Machine"], all.machine);
  EXPECT_EQ(facts["Backend"], all.backend);
  EXPECT_EQ(facts["Ranks"], "4");
  EXPECT_EQ(facts["Memory of a rank"], "1.5 GiB");
  EXPECT_EQ(facts["Costs"], all.costs);
  EXPECT_EQ(data["longest"][1], Json({{"run", "static METP"}, {"tokens", 5000}}));
  EXPECT_EQ(data["errors"][0]["mean"], 0.081);
  EXPECT_EQ(data["errors"][1]["worst"], 1.25);
  EXPECT_EQ(page_data({})["facts"]["Memory of a rank"], "no limit");
}

// The JSON block of a page.
Json block_of(const std::string& page) {
  const std::string begin = "<script type=\"application/json\" id=\"data\">";
  const std::size_t at = page.find(begin) + begin.size();
  return Json::parse(page.substr(at, page.find("</script>", at) - at));
}

TEST(Page, HoldsAnyResultAsItIs) {
  const auto expect_held = [](const SwitchingResult& some) {
    const nlohmann::ordered_json data = page_data(some);
    const std::string page = page_of(data);
    EXPECT_EQ(block_of(page), Json::parse(data.dump()));
    EXPECT_EQ(page, page_of(data));
  };
  expect_held(SwitchingResult{});
  for (unsigned seed = 0; seed < 100; ++seed) {
    std::mt19937 random(seed);
    SCOPED_TRACE("seed " + std::to_string(seed));
    expect_held(random_result(random));
  }
  SwitchingResult hostile = result();
  const std::string bad = "</script><!-- <script>alert(\"1\" & '2')</script>";
  hostile.command = hostile.machine = hostile.model = hostile.backend = hostile.costs = bad;
  hostile.corpora[0].name = hostile.corpora[0].runs[0].name = hostile.longest[0].run = bad;
  hostile.corpora[0].runs[0].steps[0].programs = {bad};
  expect_held(hostile);
  EXPECT_THAT(page_of(page_data(hostile)), Not(HasSubstr("<!-- <script>")));
}

TEST(Page, NeedsNothingFromOutside) {
  const std::string page = page_of(page_data(result()));
  EXPECT_THAT(page, StartsWith("<!DOCTYPE html>"));
  EXPECT_THAT(page, HasSubstr("prefers-color-scheme: dark"));
  EXPECT_THAT(page, HasSubstr("default-src 'none'"));
  EXPECT_THAT(page, Not(HasSubstr("/*@")));  // all parts of the template are in their place
  std::string rest = page;
  for (const std::string known : {"http://www.w3.org/2000/svg", "url(#hatch)"}) {  // no addresses
    while (rest.find(known) != std::string::npos) {
      rest.erase(rest.find(known), known.size());
    }
  }
  for (const char* outside :
       {"http://", "https://", "<link", "@import", "url(", "src=", "import ", "fetch("}) {
    EXPECT_THAT(rest, Not(HasSubstr(outside)));
  }
}

std::set<std::string> found_in(const std::string& text, const std::string& pattern) {
  std::set<std::string> found;
  const std::regex regex(pattern);
  for (auto at = std::sregex_iterator(text.begin(), text.end(), regex);
       at != std::sregex_iterator();
       ++at) {
    found.insert((*at)[1]);
  }
  return found;
}

// What the script looks for is in the template, each once; what the template wants to have filled
// in the script names.
TEST(Page, ScriptAndTemplateNameTheSame) {
  const std::string page = page_of(page_data({}));
  const std::size_t begin = page.rfind("<script>");
  const std::string html = page.substr(0, begin);
  const std::string script = page.substr(begin);
  const std::set<std::string> ids =
      found_in(script, R"re((?:\bat|filled|getElementById)\("([\w-]+)")re");
  EXPECT_THAT(ids, AllOf(Contains("data"), Contains("step-chart"), Contains("corpus")));
  for (const std::string& id : ids) {
    const std::string there = " id=\"" + id + "\"";
    const std::size_t at = html.find(there);
    EXPECT_NE(at, std::string::npos) << id;
    EXPECT_EQ(html.find(there, at + 1), std::string::npos) << id << " is there twice";
  }
  for (const std::string& part : found_in(script, R"re(\bpart\("(\w+)"\))re")) {
    EXPECT_THAT(html, HasSubstr("data-part=\"" + part + "\""));
  }
  const std::set<std::string> values = found_in(html, R"re(data-(?:v|if)="(\w+)")re");
  EXPECT_THAT(values, Contains("peak_share"));
  for (const std::string& value : values) {
    EXPECT_TRUE(std::regex_search(script, std::regex("[ {]" + value + "(:|,| })")))
        << "no value for " << value;
  }
}

TEST(Page, ReplacesOnlyPagesOfItsOwn) {
  const Folder folder;
  const fs::path page = folder / "page.html";
  const nlohmann::ordered_json data = page_data(result());
  write_page(page_data({}), page);
  write_page(data, page);
  EXPECT_EQ(content(page), page_of(data));
  put(page,
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<!-- paradyse-report 1 -->");  // of before
  EXPECT_NO_THROW(write_page(data, page));
  const fs::path other = folder / "other.html";
  put(other, "<!DOCTYPE html><html><head></head></html>");
  EXPECT_THAT(
      test::refusal([&] { write_page(data, other); }),
      AllOf(StartsWith(other.string()), HasSubstr("--out")));
  EXPECT_THAT(content(other), StartsWith("<!DOCTYPE html><html><head>"));
  put(other, "");  // nothing is lost
  EXPECT_NO_THROW(write_page(data, other));
  EXPECT_THROW(write_page(data, folder), std::invalid_argument);
  EXPECT_THROW(write_page(data, folder / "none" / "a.html"), std::invalid_argument);
}

}  // namespace
}  // namespace paradyse
