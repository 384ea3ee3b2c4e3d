// The report of a training run: what is read of its folder, in whatever state that is.
#include "src/plan/report/run_report.h"

#include <cmath>
#include <filesystem>
#include <fstream>
#include <regex>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sys/file.h>
#include <unistd.h>

#include "src/plan/report/page.h"
#include "tests/support/folder.h"
#include "tests/support/refusal.h"

namespace paradyse {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;
using testing::StartsWith;

// A run folder of its own, gone with it: four steps of six on two ranks.
class RunReport : public testing::Test {
 protected:
  RunReport() {
    fs::create_directory(folder_ / "plans");
    put("config.toml",
        "[model]\npath = \"/models/a<b>\"\n[data]\npath = \"/data\"\n[parallel]\nranks = 2\n"
        "memory_per_rank = \"64MiB\"\n[train]\nsteps = 6\n");
    for (int step = 1; step <= 4; ++step) {
      lines_ += line(step).dump() + "\n";
      put("plans/step-0000" + std::to_string(step) + ".json", to_json(plan()));
    }
    put("metrics.jsonl", lines_);
  }

  void put(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ / name) << text;
  }

  // Step n takes n seconds, where 2 were predicted.
  static Json line(int step) {
    return {
        {"step", step},
        {"loss", 5.0 - step},
        {"learning_rate", 0.001},
        {"tokens", 400},
        {"seconds", step},
        {"predicted_seconds", 2.0},
        {"late", step == 2},
        {"retries", step == 3 ? 1 : 0},
        {"peak_bytes", 1000 * step},
        {"predicted_peak_bytes", 4100},
        {"memory_per_rank", 1 << 26},
        {"idle", {0.0, 0.5}},
        {"groups", Json::parse(R"([[{"seconds": 1.5}, {"seconds": 0.5}], [{"seconds": 0.25}]])")}};
  }

  // Two documents on a rank each, then one on both.
  static Plan plan() {
    Plan plan;
    plan.model_name = "llama";
    plan.layers = 1;
    plan.cluster_name = "local-2";
    plan.ranks = 2;
    plan.weight_domain = 2;
    plan.lengths = {30, 70, 300};
    plan.programs["DataZ+gather"] = {{.layers = 1, .choice = choice("DataZ", "gather")}};
    plan.programs["METP+pass"] = {{.layers = 1, .choice = choice("METP", "pass")}};
    plan.micro_batches = {
        {.groups =
             {{.ranks = {0}, .documents = {1}, .program = "DataZ+gather"},
              {.ranks = {1}, .documents = {0}, .program = "DataZ+gather"}},
         .predicted = {}},
        {.groups = {{.ranks = {0, 1}, .documents = {2}, .program = "METP+pass"}}, .predicted = {}}};
    plan.micro_batches[1].groups[0].predicted.seconds = 0.2;
    plan.micro_batches[1].groups[0].predicted.bytes = PredictedBytes{.static_bytes = 7};
    plan.planner_name = "exact";
    return plan;
  }
  static LayerChoice choice(const std::string& attention, const std::string& mlp) {
    return {{.part = "attention", .strategy = attention}, {.part = "mlp", .strategy = mlp}};
  }

  void put_summary(int steps, bool interrupted, const Json& best = nullptr) const {
    put("summary.json",
        Json({{"steps", steps},
              {"interrupted", interrupted},
              {"eval_loss", 1.25},
              {"best_static", best}})
            .dump());
  }
  void put_sizes() const {
    const std::vector<GroupSize> sizes = {
        {.ranks = 1,
         .longest = 100,
         .by_length = {{64, "DataZ+gather", 0.25, 900, true}, {256, "DataZ+gather", 1, 70, false}}},
        {.ranks = 2,
         .longest = 900,
         .by_length = {{64, "METP+pass", 0.5, 500, true}, {256, "METP+pass", 0.75, 800, true}}}};
    put("group_sizes.json",
        nlohmann::ordered_json({{"memory_per_rank", 1 << 26}, {"sizes", json_of(sizes)}}).dump());
  }

  [[nodiscard]] ReportedRun run() const { return read_run(folder_); }
  [[nodiscard]] std::string refusal() const {
    return test::refusal([&] {
      const ReportedRun read = run();
      page_data(read, chosen_plans(read));
    });
  }

  test::Folder folder_;
  std::string lines_;
};

TEST_F(RunReport, ShowsWhatTheFolderSays) {
  put_summary(
      4,
      false,
      {{"strategy", "METP"}, {"seconds", 9.0}, {"ours", 6.0}, {"steps", 4}, {"ratio", 1.5}});
  put_sizes();
  const ReportedRun read = run();
  EXPECT_THAT(read.notes, IsEmpty());
  const Json data = page_data(read, chosen_plans(read));
  EXPECT_EQ(data["name"], folder_.filename().string());
  EXPECT_EQ(data["facts"]["Model"], "/models/a<b>");
  EXPECT_EQ(data["facts"]["Memory of a rank"], "64MiB");
  EXPECT_EQ(data["ranks"], 2);
  EXPECT_EQ(data["samples"], false);
  const Json& steps = data["steps"];
  EXPECT_EQ(steps["step"], Json({1, 2, 3, 4}));
  EXPECT_EQ(steps["loss"], Json({4.0, 3.0, 2.0, 1.0}));
  EXPECT_EQ(steps["seconds"], Json({1.0, 2.0, 3.0, 4.0}));
  EXPECT_EQ(steps["predicted_seconds"], Json({2.0, 2.0, 2.0, 2.0}));
  EXPECT_EQ(steps["peak_bytes"], Json({1000, 2000, 3000, 4000}));
  EXPECT_EQ(steps["memory_per_rank"], Json({1 << 26, 1 << 26, 1 << 26, 1 << 26}));
  const Json& all = data["totals"];
  EXPECT_EQ(all["steps"], 4);
  EXPECT_EQ(all["tokens"], 1600);
  EXPECT_EQ(all["seconds"], 10.0);
  EXPECT_EQ(all["predicted_seconds"], 8.0);
  // measured / predicted are 1/2, 1, 3/2 and 2
  EXPECT_DOUBLE_EQ(all["error"], std::pow(2 * 1.5 * 2, 0.25) - 1);
  EXPECT_DOUBLE_EQ(all["ratio"], std::pow(1.5, 0.25));
  EXPECT_DOUBLE_EQ(all["idle_share"], 0.25);
  EXPECT_EQ(all["late"], 1);
  EXPECT_EQ(all["retried"], 1);
  EXPECT_EQ(all["peak_bytes"], 4000);
  EXPECT_EQ(data["eval_loss"], 1.25);
  EXPECT_EQ(data["best_static"]["ratio"], 1.5);
  EXPECT_EQ(data["best_static"]["within_error"], true);  // steps are off by a factor of 1.57
  EXPECT_EQ(data["sizes"]["sizes"][0]["longest"], 100);
  EXPECT_EQ(data["sizes"]["sizes"][1]["by_length"][1]["program"], "METP+pass");
  ASSERT_THAT(data["plans"], SizeIs(4));
  const Json& plan = data["plans"][2];
  EXPECT_EQ(plan["step"], 3);
  EXPECT_EQ(plan["lengths"], Json({30, 70, 300}));
  EXPECT_EQ(plan["idle"], Json({0.0, 0.5}));
  const Json& group = plan["micro_batches"][1][0];
  EXPECT_EQ(group["ranks"], Json({0, 1}));
  EXPECT_EQ(group["documents"], Json({2}));
  EXPECT_EQ(group["program"], "METP+pass");
  EXPECT_EQ(group["predicted"], 0.2);
  EXPECT_EQ(group["bytes"], 7);
  EXPECT_EQ(group["seconds"], 0.25);
  EXPECT_TRUE(plan["micro_batches"][0][0]["predicted"].is_null());
}

TEST_F(RunReport, SaysHowARunStands) {
  EXPECT_THAT(run().state, StartsWith("Ended without a summary after 4 of 6 steps: it was killed"));
  EXPECT_THAT(run().state, HasSubstr("paradyse train --resume " + folder_.string()));
  put_summary(3, false);  // of before it went on
  EXPECT_THAT(run().state, StartsWith("Ended without a summary"));
  EXPECT_TRUE(std::isnan(run().eval_loss));
  put_summary(4, true);
  EXPECT_THAT(run().state, StartsWith("Interrupted after 4 of 6 steps."));
  put_summary(4, false);
  EXPECT_THAT(run().state, StartsWith("Stopped by an error after 4 of 6 steps."));
  for (const int step : {5, 6}) {
    lines_ += line(step).dump() + "\n";
  }
  put("metrics.jsonl", lines_);
  put_summary(6, false);
  EXPECT_EQ(run().state, "Finished: 6 steps.");
  const int lock = ::open(folder_.c_str(), O_RDONLY | O_DIRECTORY);
  ASSERT_EQ(::flock(lock, LOCK_EX | LOCK_NB), 0);  // as a program that trains in it
  EXPECT_EQ(run().state, "Still running: 6 of 6 steps so far.");
  ::close(lock);
  EXPECT_EQ(run().state, "Finished: 6 steps.");
}

TEST_F(RunReport, LeavesOutALineThatIsCutOff) {
  const std::string half = line(5).dump();
  put("metrics.jsonl", lines_ + half.substr(0, half.size() / 2));
  EXPECT_THAT(run().steps, SizeIs(4));
  EXPECT_THAT(run().notes, ElementsAre(HasSubstr("last line of metrics.jsonl is incomplete")));
}

TEST_F(RunReport, TellsThatARunWasResumed) {
  fs::create_directory(folder_ / "undone-000002");
  put("config-until-000002.toml", "");
  EXPECT_THAT(
      run().notes,
      ElementsAre(
          HasSubstr("resumed after step 2: its configuration"),
          HasSubstr("resumed after step 2: results of later steps are in undone-000002")));
}

TEST_F(RunReport, WorksOnFewStepsAndOnFoldersThatTellLess) {
  put("metrics.jsonl", "");
  ReportedRun none = run();
  const Json empty = page_data(none, chosen_plans(none));
  EXPECT_EQ(empty["totals"]["steps"], 0);
  EXPECT_THAT(empty["plans"], IsEmpty());
  EXPECT_THAT(page_of(page_data(none, chosen_plans(none))), HasSubstr("</html>"));
  fs::remove(folder_ / "metrics.jsonl");
  EXPECT_THAT(run().steps, IsEmpty());

  Json first = line(1);
  first["loss"] = nullptr;  // none of its tokens counts
  for (const char* newer : {"memory_per_rank", "idle", "groups", "retries", "late"}) {
    first.erase(newer);
  }
  put("metrics.jsonl", first.dump() + "\n");
  const ReportedRun one = run();
  const Json data = page_data(one, chosen_plans(one));
  EXPECT_EQ(data["totals"]["steps"], 1);
  EXPECT_TRUE(std::isnan(one.steps[0].loss));
  EXPECT_EQ(data["plans"][0]["micro_batches"][0][0]["seconds"], nullptr);
  EXPECT_EQ(data["sizes"], nullptr);
  EXPECT_THAT(data["no_static"], HasSubstr("no summary"));
  EXPECT_THAT(step_text(one, one.steps[0], plan()), Not(HasSubstr("why")));

  put("metrics.jsonl", lines_);
  fs::remove(folder_ / "plans" / "step-00002.json");
  const ReportedRun gone = run();
  const ChosenPlans chosen = chosen_plans(gone);
  EXPECT_EQ(chosen.missing, 1U);
  EXPECT_THAT(chosen.plans, SizeIs(3));
  EXPECT_THAT(page_data(gone, chosen)["notes"], ElementsAre(HasSubstr("1 of the requested plans")));
}

TEST_F(RunReport, RefusesWhatIsBrokenByFileAndLine) {
  const std::string metrics = (folder_ / "metrics.jsonl").string();
  const auto with = [&](int number, const std::string& key, const Json& value) {
    Json broken = line(number);
    if (value.is_discarded()) {
      broken.erase(key);
    } else {
      broken[key] = value;
    }
    put("metrics.jsonl", line(1).dump() + "\n" + broken.dump() + "\n" + line(3).dump() + "\n");
    return refusal();
  };
  const Json without = Json::value_t::discarded;
  EXPECT_THAT(with(2, "seconds", without), HasSubstr(metrics + ":2: the line: the key 'seconds'"));
  EXPECT_THAT(with(2, "seconds", "1"), HasSubstr(metrics + ":2: seconds: expected a number"));
  EXPECT_THAT(with(2, "tokens", -1), HasSubstr("tokens: expected an integer from 0"));
  EXPECT_THAT(with(2, "idle", 3), HasSubstr("idle: expected a list"));
  EXPECT_THAT(with(1, "late", false), HasSubstr(metrics + ":2: step 1 after step 1"));
  put("metrics.jsonl", "{\"step\": 1\n" + lines_);
  EXPECT_THAT(refusal(), AllOf(HasSubstr(metrics + ":1: not JSON")));
  put("metrics.jsonl", lines_);

  put("summary.json", "{");
  EXPECT_THAT(refusal(), HasSubstr("summary.json: not JSON"));
  put("summary.json", R"({"steps": 4, "interrupted": false, "eval_loss": null})");
  EXPECT_THAT(refusal(), HasSubstr("the key 'best_static' is missing"));
  fs::remove(folder_ / "summary.json");
  put("group_sizes.json", R"({"memory_per_rank": 1, "sizes": [{"ranks": 0}]})");
  EXPECT_THAT(refusal(), HasSubstr("group_sizes.json: sizes[0].ranks: expected an integer from 1"));
  fs::remove(folder_ / "group_sizes.json");
  put("plans/step-00003.json", "{\"format\": ");
  EXPECT_THAT(refusal(), HasSubstr("step-00003.json"));
  fs::remove(folder_ / "config.toml");
  EXPECT_THAT(refusal(), HasSubstr("is not the folder of a training run"));
}

// Also of a run that still goes on.
TEST_F(RunReport, TellsWhatWasMeasuredBesideAStaticPlan) {
  std::string lines;
  for (int step = 1; step <= 4; ++step) {
    Json one = line(step);
    if (step != 2) {
      one["compared_strategy"] = "METP";
      one["compared_seconds"] = step == 3 ? Json(nullptr) : Json(1.5 * step);
      one["compared_predicted_seconds"] = 3;
    }
    lines += one.dump() + "\n";
  }
  EXPECT_EQ(page_data(run(), chosen_plans(run()))["compared"], nullptr);
  put("metrics.jsonl", lines);
  EXPECT_EQ(
      page_data(run(), chosen_plans(run()))["compared"],
      "Measured comparison with the best static plan (METP, 2 steps): 1.50 times its speed (1.50 "
      "to 1.50); "
      "it did not fit into memory in 1 more.");
}

TEST_F(RunReport, ThinsLongRuns) {
  std::string lines;
  for (int step = 1; step <= 10000; ++step) {
    lines += line(step).dump() + "\n";
  }
  put("metrics.jsonl", lines);
  const ReportedRun read = run();
  const Json data = page_data(read, chosen_plans(read));
  const std::vector<int> steps = data["steps"]["step"];
  EXPECT_THAT(steps, SizeIs(3000));
  EXPECT_EQ(steps.front(), 1);
  EXPECT_EQ(steps.back(), 10000);
  EXPECT_EQ(data["totals"]["steps"], 10000);
  EXPECT_EQ(data["totals"]["tokens"], 4000000);
  EXPECT_THAT(data["notes"][0], HasSubstr("3000 of 10000 steps"));
}

TEST_F(RunReport, PutsOtherRunsBeside) {
  const ReportedRun mine = run();
  ReportedRun other = mine;
  other.name = "static METP";
  other.steps.pop_back();
  for (ReportedStep& step : other.steps) {
    step.seconds *= 3;
  }
  const Json beside = page_data(mine, chosen_plans(mine), {other})["beside"][0];
  EXPECT_EQ(beside["name"], "static METP");
  EXPECT_EQ(beside["step"], Json({1, 2, 3}));
  EXPECT_EQ(beside["both"], Json({{"steps", 2}, {"own", 5.0}, {"its", 15.0}}));  // steps 2 and 3
}

TEST_F(RunReport, TellsAPlanInTenLinesWithItsReason) {
  put_sizes();
  const ReportedRun read = run();
  const std::string text = step_text(read, read.steps[2], plan());
  EXPECT_EQ(
      text,
      "plan of step 3 (planner exact): 3 documents, 400 tokens\n"
      "  predicted 2.00 s, took 3.00 s; ranks were idle for 25.0 % of it\n"
      "  micro-batch 1, rank 0: 1 document, 70 tokens; DataZ+gather\n"
      "  micro-batch 1, rank 1: 1 document, 30 tokens; DataZ+gather\n"
      "  micro-batch 2, ranks 0-1: 1 document, 300 tokens, predicted 0.20 s; METP+pass\n"
      "  why: The document of 300 tokens is on a group of 2 ranks: one rank holds at\n"
      "       most 100 tokens within 64.0 MiB a rank.\n");
  ReportedRun roomy = read;  // all fits anywhere: then it is a matter of time
  roomy.sizes[0].longest.reset();
  roomy.sizes[0].by_length[1].fits = true;
  EXPECT_THAT(
      std::regex_replace(step_text(roomy, roomy.steps[2], plan()), std::regex("\n +"), " "),
      HasSubstr("a document of 256 tokens alone, the longest below that is priced, is predicted to "
                "take 0.75 s there and 1.00 s on one rank."));
  Plan many = plan();
  for (int i = 0; i < 20; ++i) {
    many.micro_batches.push_back(many.micro_batches[1]);
    many.micro_batches.back().groups[0].program = std::string(99, 'x');
  }
  std::istringstream lines(step_text(read, read.steps[2], many));
  int count = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    EXPECT_LE(line.size(), 80U) << line;
  }
  EXPECT_LE(count, 11);
}

}  // namespace
}  // namespace paradyse
