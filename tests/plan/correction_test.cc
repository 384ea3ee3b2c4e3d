// What steps teach: the formula, and planners on a pretended machine that changes its speed.
#include "paradyse/plan/detail/correction.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "paradyse/plan/batch_planner.h"
#include "src/plan/search/batch/document_planner.h"
#include "tests/plan/pretend_machine.h"

namespace paradyse {
namespace {

CostedPart attention(const std::string& strategy) {
  return {.part = "attention", .strategy = strategy};
}

Correction::Key key(const std::string& strategy, int ranks, std::int64_t longest) {
  return {attention(strategy), ranks, log2_bucket(longest)};
}

void observe(Correction& c, const std::string& strategy, double ratio, int times, int ranks = 4) {
  for (int i = 0; i < times; ++i) {
    c.observe({{key(strategy, ranks, 1000), 1.0, ratio}});
  }
}

// --- the formula ---------------------------------------------------------------------------------

TEST(Correction, IsOneUntilSomethingWasMeasuredThreeTimes) {
  Correction c;
  EXPECT_EQ(c.factor(attention("METP"), 4, 1000), 1);
  EXPECT_EQ(c.common_factor(), 1);
  observe(c, "METP", 1.3, 2);
  EXPECT_EQ(c.factor(attention("METP"), 4, 1000), 1);
  EXPECT_EQ(c.factor(attention("UlyssesZ"), 4, 1000), 1);
  EXPECT_EQ(c.version(), 0);
}

// One strategy, three times 1.3: half of it (in logarithms) is common, and of the rest three
// quarters are the strategy's and three quarters of what then is left the bucket's.
TEST(Correction, DrawsWhatIsSpecificToWhatIsCommon) {
  Correction c;
  c.observe({{key("METP", 4, 1000), 1.0, 1.3}});
  c.observe({{key("METP", 4, 900), 2.0, 2.6}});    // the same bucket
  c.observe({{key("METP", 4, 1000), 1.0, 50.0}});  // something else disturbed it
  const double y = std::log(1.3);
  const double common = y / 2;
  const double cell = common + 0.75 * (y - common);
  EXPECT_NEAR(std::log(c.common_factor()), common, 1e-12);
  EXPECT_NEAR(std::log(c.factor(attention("METP"), 4, 5000)), cell, 1e-12);
  EXPECT_NEAR(std::log(c.factor(attention("METP"), 4, 1000)), cell + 0.75 * (y - cell), 1e-12);
  EXPECT_NEAR(std::log(c.factor(attention("METP"), 2, 1000)), common - std::log(1.1), 1e-12);
  EXPECT_NEAR(std::log(c.factor(attention("UlyssesZ"), 4, 1000)), common - std::log(1.1), 1e-12);
  const std::int64_t version = c.version();
  c.observe({{key("METP", 4, 1000), 1.0, 1.3}});
  EXPECT_EQ(c.version(), version);  // nothing new

  // As more strategies agree, all of it is common; and what was seen often stands for itself.
  const std::vector<const char*> others = {"UlyssesZ", "USP", "ColossalZ"};
  for (const char* other : others) {
    observe(c, other, 1.3, 9);
  }
  EXPECT_NEAR(std::log(c.common_factor()), 4.0 / 5 * y, 1e-12);
  EXPECT_NEAR(c.factor(attention("USP"), 4, 1000), 1.3, 0.002);
  // One that is unlike them is known for what it is.
  observe(c, "AllGatherKV", 2.0, 9);
  EXPECT_NEAR(c.factor(attention("AllGatherKV"), 4, 1000), 2.0, 0.02);
  EXPECT_NEAR(std::log(c.common_factor()), 5.0 / 6 * y, 1e-12);
}

// What is faster than predicted counts whole for those that were not tried.
TEST(Correction, DoubtSpeaksForWhatWasNotTried) {
  Correction c;
  observe(c, "METP", 0.5, 3);
  EXPECT_NEAR(c.factor(attention("METP"), 4, 1000), 0.5, 1e-12);
  EXPECT_NEAR(c.factor(attention("UlyssesZ"), 4, 1000), 0.5 / 1.1, 1e-12);
  EXPECT_NEAR(c.common_factor(), 0.5, 1e-12);
}

// Unless it may fail where that takes most; of documents that are all as long it has to be there.
TEST(Correction, NothingIsTriedOnTheLongestDocuments) {
  Correction c;
  observe(c, "METP", 1.0, 3);
  EXPECT_NEAR(c.factor(attention("UlyssesZ"), 4, 1000), 1 / 1.1, 1e-12);
  const std::int64_t before = c.version();
  c.observe({{key("METP", 4, 9000), 1.0, 1.0}});
  EXPECT_GT(c.version(), before);
  for (const int ranks : {2, 4}) {
    EXPECT_NEAR(c.factor(attention("UlyssesZ"), ranks, 1000), 1 / 1.1, 1e-12);
    EXPECT_NEAR(c.factor(attention("UlyssesZ"), ranks, 9000), 1.0, 1e-12);
    EXPECT_NEAR(c.factor(attention("UlyssesZ"), ranks, 90000), 1.0, 1e-12);
  }
}

// After three steps on the changed machine every factor has moved by as much, that of a strategy
// which ran long ago and that of one which never did; and back.
TEST(Correction, MovesWithTheMachine) {
  Correction c;
  observe(c, "USP", 1.2, 5);
  observe(c, "METP", 1.0, 5);
  const std::vector<std::string> all = {"METP", "USP", "UlyssesZ"};
  std::map<std::string, double> before;
  for (const std::string& one : all) {
    before[one] = c.factor(attention(one), 4, 1000);
  }
  for (const double slower : {2.0, 0.5, 1.0}) {
    observe(c, "METP", slower, 3);
    EXPECT_DOUBLE_EQ(c.machine(), slower);
    for (const std::string& one : all) {
      EXPECT_NEAR(c.factor(attention(one), 4, 1000) / before[one], slower, 0.02 * slower) << one;
    }
    EXPECT_NEAR(c.factor(attention("METP"), 2, 77) / before["UlyssesZ"], slower, 0.02 * slower);
    observe(c, "METP", slower, 20);
    EXPECT_NEAR(c.factor(attention("USP"), 4, 1000) / before["USP"], slower, 0.02 * slower);
  }
  // What one step found slow is not the machine.
  observe(c, "METP", 9.0, 2);
  EXPECT_EQ(c.machine(), 1);
}

TEST(Correction, PassesOverWhatIsNoMeasurement) {
  Correction c;
  for (int i = 0; i < 5; ++i) {
    c.observe({{key("METP", 4, 1000), 0.0, 1.0}});
    c.observe({{key("METP", 4, 1000), 1.0, -1.0}});
    c.observe({{key("METP", 4, 1000), std::nan(""), 1.0}});
  }
  EXPECT_EQ(c.factor(attention("METP"), 4, 1000), 1);
  EXPECT_EQ(c.version(), 0);
  observe(c, "METP", 1e9, 5);
  EXPECT_EQ(c.factor(attention("METP"), 4, 1000), Correction::kMost);
  EXPECT_EQ(c.factor(attention("UlyssesZ"), 4, 1000), Correction::kMost);
}

// Each part of a micro-batch is corrected by its own ratio, under each strategy; what has none is
// no try.
TEST(Correction, TellsPartsApart) {
  Correction c;
  const auto at = [](CostedPart what) {
    return Correction::Key{std::move(what), 4, log2_bucket(1000)};
  };
  const CostedPart mlp{.part = "mlp", .strategy = "gather"};
  const CostedPart rest{.part = "rest", .strategy = ""};
  for (int i = 0; i < 9; ++i) {
    c.observe({{at(attention("METP")), 1.0, 1.0}, {at(mlp), 2.0, 5.0}, {at(rest), 3.0, 1.5}});
  }
  EXPECT_NEAR(c.common_factor(), 1, 1e-12);  // the median of the three
  EXPECT_NEAR(c.factor(attention("METP"), 4, 1000), 1, 1e-12);
  EXPECT_NEAR(c.factor(mlp, 4, 1000), 2.5, 0.03);
  EXPECT_NEAR(c.factor(rest, 4, 1000), 0.5, 0.02);
  // what was not tried goes by its part, and what is of no part by all
  EXPECT_NEAR(c.factor(attention("gather"), 4, 1000), 1 / 1.1, 1e-12);
  EXPECT_NEAR(c.factor({.part = "mlp", .strategy = "hold"}, 4, 1000), std::sqrt(2.5) / 1.1, 1e-12);
  EXPECT_NEAR(c.factor({.part = "rest", .strategy = ""}, 2, 1000), 0.5, 1e-12);
  EXPECT_NEAR(c.factor({.part = "move", .strategy = ""}, 4, 1000), 1, 1e-12);
  EXPECT_NEAR(c.machine(), 1, 1e-12);  // one micro-batch is one observation of the machine
}

// A machine that is twice as slow for good is told of once; one step that was slow is not.
TEST(Correction, NoticesAChangedMachine) {
  Correction c;
  const auto steps = [&](int count, double ratio) {
    int told = 0;
    for (int i = 0; i < count; ++i) {
      c.observe({{key(i % 2 == 0 ? "METP" : "DataZ", 4, 1000), 1.0, i == 7 ? 10 * ratio : ratio}});
      told += c.machine_changed().has_value() ? 1 : 0;
    }
    return told;
  };
  EXPECT_EQ(steps(60, 0.8), 0);
  EXPECT_EQ(steps(60, 1.6), 1);
  EXPECT_EQ(steps(60, 1.6), 0);
  EXPECT_EQ(steps(60, 0.8), 1);
}

// What was learned is all of it: the factors are those that were; without the machine's factor, as
// older checkpoints are, ratios are those of the machine of now.
TEST(Correction, GoesOnFromWhatItLearned) {
  Correction c;
  observe(c, "METP", 1.0, 4);
  observe(c, "USP", 1.3, 4);
  observe(c, "METP", 2.0, 9);
  Correction next;
  next.learn(c.ratios(), c.machine());
  for (const char* one : {"METP", "USP", "UlyssesZ"}) {
    EXPECT_NEAR(next.factor(attention(one), 4, 1000), c.factor(attention(one), 4, 1000), 0.02)
        << one;
  }
  EXPECT_EQ(next.ratios(), c.ratios());
  EXPECT_EQ(next.machine(), 2);
  observe(next, "METP", 1.0, 3);
  EXPECT_EQ(next.machine(), 1);
  EXPECT_FALSE(next.machine_changed());

  Correction old;
  old.learn({{key("METP", 4, 1000), {1.5, 1.5, 1.5}}});
  EXPECT_NEAR(old.factor(attention("METP"), 4, 1000), 1.5, 0.03);
}

// --- planners on a machine that changes ----------------------------------------------------------

// One document a step, split over four ranks under one of a few attention strategies; planned by
// the rates of the pretended machine, and run by what is true of it.
class PretendRun {
 public:
  explicit PretendRun(const std::vector<std::string>& names, std::int64_t length = 3000)
      : length_(length), truth_(std::make_shared<PretendTruth>(PretendMachine{})) {
    PlanningTask task;
    task.model = pretend_model();
    task.ranks = 4;
    task.machine.cores = 2;
    task.recompute = "none";
    task.mlp = "gather";
    task.try_options = false;
    task.seconds = std::make_shared<PretendTruth>(PretendMachine{});
    for (const Strategy& s : strategies("attention")) {
      if (std::ranges::find(names, s.name) == names.end()) {
        task.without.push_back(s.name);
      }
    }
    planner_ = document_planner(task);
    task.seconds = truth_;
    really_ = std::make_unique<DocumentPlans>(task);
  }

  PretendTruth& truth() { return *truth_; }

  // The strategies that so many steps went by.
  std::vector<std::string> steps(int count) {
    std::vector<std::string> used;
    for (int i = 0; i < count; ++i) {
      const Plan plan = *planner_->plan({length_}).plan;
      const PlanMicroBatch& micro = plan.micro_batches.at(0);
      used.push_back(part_of(plan.programs.begin()->second.at(0).choice, "attention").strategy);
      std::vector<double> parts = really_->prediction().uncorrected_parts(plan, micro).at(0);
      const double times = std::exp(noise_(random_));
      for (double& part : parts) {
        part *= times;
      }
      planner_->observe(plan, {std::vector<std::vector<double>>(4, parts)});
      const double seconds = std::accumulate(parts.begin(), parts.end(), 0.0);
      error_ = *micro.predicted.seconds / seconds - 1;
    }
    return used;
  }
  // Of the last step's prediction.
  [[nodiscard]] double error() const { return error_; }
  // As the planner predicts one strategy now.
  double predicted(const std::string& strategy) {
    return planner_->documents().estimate(text_layer(strategy, "gather"), length_, 4).wall;
  }

 private:
  std::int64_t length_;
  std::shared_ptr<PretendTruth> truth_;
  std::unique_ptr<DocumentPlanner> planner_;
  std::unique_ptr<DocumentPlans> really_;
  std::mt19937 random_{7};
  std::normal_distribution<double> noise_{0, 0.01};
  double error_ = 0;
};

const std::vector<std::string> kNames = {"UlyssesZ", "MegatronCZ", "AllGatherKV"};

// Costs that are right stay right: twice as slow, four times as fast, and back, the strategies'
// order and the choice stay what they were, whatever was tried on the way, and predictions follow.
TEST(ChangingMachine, EqualStrategiesKeepTheirOrder) {
  PretendRun run(kNames);
  run.steps(20);
  const std::string choice = run.steps(1).front();
  std::map<std::string, double> before;
  for (const std::string& one : kNames) {
    before[one] = run.predicted(one) / run.predicted(choice);
  }
  for (const double slower : {2.0, 0.5, 1.0, 0.5, 2.0, 1.0}) {
    run.truth().slower = slower;
    EXPECT_THAT(run.steps(25), testing::Each(choice)) << slower;
    EXPECT_NEAR(run.error(), 0, 0.1) << slower;
    for (const std::string& one : kNames) {
      EXPECT_NEAR(run.predicted(one) / run.predicted(choice), before[one], 0.03)
          << one << " " << slower;
    }
  }
}

// The strategy that is predicted to be fastest is not: the one that is, is found, whatever the
// machine does meanwhile.
TEST(ChangingMachine, FindsTheFasterStrategy) {
  for (const std::vector<double>& speeds : std::vector<std::vector<double>>{
           {1, 1, 1}, {1, 2, 1}, {1, 0.5, 1}, {2, 1, 2}, {0.5, 1, 2}}) {
    PretendRun run(kNames);
    std::map<std::string, double> predicted;
    for (const std::string& one : kNames) {
      predicted[one] = run.predicted(one);
    }
    const auto less = [](const auto& a, const auto& b) { return a.second < b.second; };
    const std::string first = std::ranges::min_element(predicted, less)->first;
    run.truth().strategy_slower[first] = 2;
    std::vector<std::string> used;
    for (const double slower : speeds) {
      run.truth().slower = slower;
      used = run.steps(20);
    }
    predicted.erase(first);
    const std::string second = std::ranges::min_element(predicted, less)->first;
    EXPECT_THAT(used, testing::Each(second)) << testing::PrintToString(speeds);
    EXPECT_NEAR(run.error(), 0, 0.1);
  }
}

// On a machine that is faster than its costs say, a strategy that is slower than they say looks as
// good as predicted.  One that costs predict to be as fast, but for what they may err by, is tried
// all the same, there and then, and stays.
TEST(ChangingMachine, LeavesAChoiceThatSpeedLockedIn) {
  PretendRun run(kNames);
  std::vector<std::pair<double, std::string>> order;
  order.reserve(kNames.size());
  for (const std::string& one : kNames) {
    order.emplace_back(run.predicted(one), one);
  }
  std::ranges::sort(order);
  ASSERT_LT(order[1].first, 1.08 * order[0].first);
  run.truth().slower = 0.5;
  run.truth().strategy_slower[order[0].second] = 1.3;
  EXPECT_THAT(run.steps(3), testing::Each(order[0].second));
  run.steps(17);
  EXPECT_THAT(run.steps(5), testing::Each(order[1].second));
  run.truth().slower = 1;
  EXPECT_THAT(run.steps(20), testing::Each(order[1].second));
}

}  // namespace
}  // namespace paradyse
