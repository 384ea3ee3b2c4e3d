// Plans of a run's steps: made two steps ahead in the background, by what was known when they were
// asked for, and replaced by a fallback where they are late.  Planners wait until a test lets them.
#include "src/run/train/step_plans.h"

#include <chrono>
#include <cmath>
#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "paradyse/plan/detail/index.h"
#include "paradyse/run/train.h"
#include "src/plan/model/text/text_shape.h"
#include "src/plan/search/batch/document_planner.h"
#include "tests/support/folder.h"
#include "tests/support/models.h"
#include "tests/support/small_llama.h"

namespace paradyse {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

using Lengths = std::vector<std::int64_t>;

// Batches are planned in the order in which they come here, as many as are let through.
class Gate {
 public:
  struct Passed {
    Lengths lengths;
    BatchPlanner::Learned learned;  // by the planner then
  };
  static constexpr std::size_t kAll = 1000000;
  static constexpr std::chrono::seconds kPatience{120};  // a test that fails shall end

  void pass(const Lengths& lengths, BatchPlanner::Learned learned) {
    std::unique_lock lock(mutex_);
    passed_.push_back({lengths, std::move(learned)});
    const std::size_t number = passed_.size();
    changed_.notify_all();
    EXPECT_TRUE(changed_.wait_for(lock, kPatience, [&] { return number <= let_; }));
  }
  void let(std::size_t batches) {
    const std::lock_guard lock(mutex_);
    let_ = batches;
    changed_.notify_all();
  }
  // Until this batch has come.
  void wait_for(const Lengths& lengths) {
    std::unique_lock lock(mutex_);
    ASSERT_TRUE(changed_.wait_for(lock, kPatience, [&] {
      return std::ranges::find(passed_, lengths, &Passed::lengths) != passed_.end();
    }));
  }
  std::vector<Passed> passed() {
    const std::lock_guard lock(mutex_);
    return passed_;
  }
  std::vector<Lengths> batches() {
    std::vector<Lengths> all;
    for (const Passed& one : passed()) {
      all.push_back(one.lengths);
    }
    return all;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Passed> passed_;
  std::size_t let_ = kAll;
};

class Gated final : public DocumentPlanner {
 public:
  Gated(PlanningTask task, Gate& gate)
      : DocumentPlanner(task), inner_(batch_planner(std::move(task))), gate_(gate) {}

 private:
  Answer make(const Lengths& lengths, Caps caps) override {
    if (caps == Caps::held) {
      gate_.pass(lengths, learned());
    }
    inner_->learn(learned());
    return inner_->plan(lengths);
  }

  std::unique_ptr<BatchPlanner> inner_;
  Gate& gate_;
};

class StepPlansTest : public testing::Test {
 protected:
  ~StepPlansTest() override { gate_.let(Gate::kAll); }

  StepPlans::Planners planners() {
    return planners_of(task(), [this](PlanningTask task) {
      return std::make_unique<Gated>(std::move(task), gate_);
    });
  }
  StepPlans::Options options() {
    return {
        .steps = lengths_.size(),
        .batch = [this](std::size_t step) { return BatchSizes{.lengths = lengths_[step]}; },
        .note = [this](const std::string& line) { notes_.push_back(line); }};
  }
  static PlanningTask task() {
    PlanningTask t;
    t.model = test::llama({.heads = 6, .kv_heads = 2, .ffn = 13, .vocab = 31});
    t.ranks = 3;
    t.machine.cores = 2;
    return t;
  }
  // What all ranks took, if everything takes twice as long as predicted and each part as long.
  static BatchPlanner::PartSeconds twice(const Plan& plan) {
    BatchPlanner::PartSeconds seconds;
    for (const PlanMicroBatch& micro : plan.micro_batches) {
      auto& of_ranks = seconds.emplace_back(idx(plan.ranks));
      for (const PlanGroup& group : micro.groups) {
        const std::size_t parts = costed_parts(plan.programs.at(group.program)).size();
        const double each = 2 * micro.predicted.seconds.value() / static_cast<double>(parts);
        for (const int rank : group.ranks) {
          of_ranks[idx(rank)].assign(parts, each);
        }
      }
    }
    return seconds;
  }

  const std::vector<Lengths> lengths_ = {{5, 90}, {6, 80}, {7, 70}, {8, 60}, {9, 50}, {10, 40}};
  Gate gate_;
  std::vector<std::string> notes_;
};

TEST_F(StepPlansTest, KeepsAQueueOfTwo) {
  StepPlans plans(planners(), options());
  EXPECT_EQ(plans.take(0).plan.lengths, lengths_[0]);
  gate_.wait_for(lengths_[2]);
  plans.planner();  // nothing is under way
  EXPECT_THAT(gate_.batches(), ElementsAre(lengths_[0], lengths_[1], lengths_[2]));
}

TEST_F(StepPlansTest, PlansEachStepOnce) {
  StepPlans plans(planners(), options());
  for (std::size_t step = 0; step < lengths_.size(); ++step) {
    const StepPlans::Step planned = plans.take(step);
    EXPECT_EQ(planned.plan.lengths, lengths_[step]);
    EXPECT_FALSE(planned.late);
  }
  EXPECT_EQ(gate_.batches(), lengths_);
  EXPECT_THAT(notes_, IsEmpty());
}

TEST_F(StepPlansTest, ALatePlanIsReplaced) {
  StepPlans::Options wanted = options();
  wanted.planning_seconds = 0.02;
  wanted.decided = {{0, false}};  // the first is waited for
  gate_.let(1);
  StepPlans plans(planners(), wanted);
  EXPECT_FALSE(plans.take(0).late);
  const Model model = task().model;
  for (const std::size_t step : {1U, 2U}) {
    const StepPlans::Step planned = plans.take(step);
    EXPECT_TRUE(planned.late);
    EXPECT_EQ(planned.plan.lengths, lengths_[step]);
    EXPECT_EQ(planned.plan.planner_name, StepPlans::kFallback);
    EXPECT_TRUE(planned.plan.predicted.seconds);
    EXPECT_THAT(problems(planned.plan, {.model = model}), IsEmpty());
  }
  // said once
  EXPECT_THAT(
      notes_, ElementsAre(AllOf(HasSubstr("step 2: "), HasSubstr("parallel.planning_seconds"))));
  // The planner comes back: what was not begun in time is passed over, and then plans are there.
  gate_.let(Gate::kAll);
  gate_.wait_for(lengths_[4]);
  const StepPlans::Step planned = plans.take(3);
  EXPECT_FALSE(planned.late);
  EXPECT_EQ(planned.plan.lengths, lengths_[3]);
  EXPECT_THAT(
      gate_.batches(), testing::IsSupersetOf({lengths_[0], lengths_[1], lengths_[3], lengths_[4]}));
  EXPECT_THAT(gate_.batches(), testing::Not(testing::Contains(lengths_[2])));
}

// However fast the planner is now.
TEST_F(StepPlansTest, WhatARunDecidedIsDecidedAgain) {
  StepPlans::Options wanted = options();
  wanted.planning_seconds = 0;
  wanted.decided = {{0, true}, {1, false}};
  StepPlans plans(planners(), wanted);
  gate_.let(0);
  EXPECT_TRUE(plans.take(0).late);
  std::thread later([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    gate_.let(Gate::kAll);
  });
  EXPECT_FALSE(plans.take(1).late);
  later.join();
}

// Two steps before its own, and not when it is planned.
TEST_F(StepPlansTest, APlanKnowsWhatWasKnownWhenItWasAskedFor) {
  StepPlans::Options wanted = options();
  wanted.correct = true;
  wanted.decided = {{2, true}};
  StepPlans plans(planners(), wanted);
  gate_.let(2);
  std::vector<BatchPlanner::Learned> known = {plans.learned()};  // [steps that are over]
  for (const std::size_t step : {0U, 1U, 2U}) {
    const Plan plan = plans.take(step).plan;
    plans.took(step, plan, twice(plan), {});
    known.push_back(plans.learned());
    EXPECT_NE(known.back(), known[step]);
  }
  gate_.let(Gate::kAll);
  for (const std::size_t step : {3U, 4U, 5U}) {
    plans.take(step);
  }
  std::map<Lengths, BatchPlanner::Learned> found;
  for (const Gate::Passed& one : gate_.passed()) {
    found[one.lengths] = one.learned;
  }
  EXPECT_EQ(found.at(lengths_[0]), known[0]);
  EXPECT_EQ(found.at(lengths_[1]), known[0]);
  EXPECT_EQ(found.at(lengths_[3]), known[1]);
  EXPECT_EQ(found.at(lengths_[4]), known[2]);
  EXPECT_EQ(found.at(lengths_[5]), known[3]);
}

// A slow rank is named; plans give it less where steps correct them, and go on as before elsewhere.
TEST_F(StepPlansTest, ASlowRankIsNamed) {
  for (const bool correct : {true, false}) {
    SCOPED_TRACE(correct);
    StepPlans::Options wanted = options();
    wanted.correct = correct;
    std::vector<std::string> notes;
    wanted.note = [&](const std::string& line) { notes.push_back(line); };
    StepPlans plans(planners(), wanted);
    gate_.let(Gate::kAll);
    const Plan plan = plans.take(0).plan;
    std::vector<double> computed = planners().fallback->work_of_ranks(plan);
    ASSERT_GE(computed.size(), 2U);
    ASSERT_GT(computed.back(), 0);
    for (double& seconds : computed) {
      seconds *= 1e3;  // whatever the unit
    }
    computed.back() *= 2;
    for (std::size_t step = 0; step < 9; ++step) {
      plans.took(step, plan, {}, computed);
    }
    ASSERT_THAT(notes, testing::SizeIs(1));
    EXPECT_THAT(
        notes[0],
        testing::AllOf(
            testing::HasSubstr("step 5: rank 2 computes at 0.50 times the speed of the others "
                               "(slow since step 1): plans"),
            testing::HasSubstr(correct ? "plans take this into account" : "plans do not take")));
    EXPECT_EQ(plans.learned().speeds.empty(), !correct);
    EXPECT_EQ(
        plans.learned().slow_since,
        correct ? std::vector<std::int64_t>({0, 0, 1}) : std::vector<std::int64_t>());
    // A run that goes on knows it, and since when; plans know no more than before.
    EXPECT_THAT(plans.to_keep().slow_since, ElementsAre(0, 0, 1));
    StepPlans resumed(planners(), wanted);
    resumed.learn(plans.to_keep());
    EXPECT_EQ(resumed.learned(), plans.learned());
    for (std::size_t step = 9; step < 12; ++step) {
      resumed.took(step, plan, {}, computed);
    }
    EXPECT_THAT(notes, testing::SizeIs(1));
    EXPECT_THAT(resumed.to_keep().slow_since, ElementsAre(0, 0, 1));
  }
}

// What a lack of memory teaches holds for the plans that were asked for before it, too.
TEST_F(StepPlansTest, ALackOfMemoryPlansTheNextStepsAnew) {
  for (const bool late : {false, true}) {
    StepPlans::Options wanted = options();
    wanted.decided = {{0, late}};
    StepPlans plans(planners(), wanted);
    const StepPlans::Step planned = plans.take(0);
    ASSERT_EQ(planned.late, late);
    const std::optional<Plan> less = plans.leaner(0, planned);
    ASSERT_TRUE(less);
    EXPECT_EQ(less->planner_name == StepPlans::kFallback, late);
    const BatchPlanner::Learned learned = plans.learned();
    EXPECT_FALSE(learned.caps.empty());
    EXPECT_EQ(plans.take(1).plan.lengths, lengths_[1]);
    EXPECT_EQ(plans.take(2).plan.lengths, lengths_[2]);
    plans.planner();
    BatchPlanner::Learned of_last;
    for (const Gate::Passed& one : gate_.passed()) {
      if (one.lengths == lengths_[2]) {
        of_last = one.learned;
      }
    }
    EXPECT_EQ(of_last, learned);
  }
}

// A whole run, whose planner sleeps from its second step until the third is over.
TEST_F(StepPlansTest, ARunGoesOnWithoutItsPlanner) {
  const test::Folder folder;
  std::ofstream(folder / "model.toml") << test::kSmallLlama;
  std::ofstream data(folder / "data.jsonl");
  for (int length = 10; length < 200; length += 7) {
    data << nlohmann::json{{"tokens", std::vector<int>(idx(length), length % 64)}}.dump() << "\n";
  }
  data.close();
  const auto losses = [&](const char* name, const char* seconds, auto planner) {
    const LoadedConfig config = load_config(
        "",
        {"model.path=" + (folder / "model.toml").string(),
         "data.path=" + (folder / "data.jsonl").string(),
         "output.folder=" + folder.string(),
         "output.name=" + std::string(name),
         "parallel.ranks=3",
         "parallel.planning_seconds=" + std::string(seconds),
         "train.steps=6",
         "train.tokens_per_step=400",
         "train.dtype=float64"});
    std::vector<StepReport> reports;
    TrainHooks hooks;
    hooks.planner = planner;
    hooks.step = [&](const StepReport& report) {
      reports.push_back(report);
      if (report.step == 3) {
        gate_.let(Gate::kAll);
      }
    };
    const std::shared_ptr<Backend> backend = local_backend();
    const TrainSummary summary = train(config, hooks, *backend);
    EXPECT_EQ(summary.late_plans, std::ranges::count_if(reports, [](const StepReport& report) {
                return report.late;
              }));
    return reports;
  };
  gate_.let(2);  // the longest document, before the run, and the first step
  const std::vector<StepReport> late =
      losses("late", "0.2", [&](PlanningTask task) -> std::unique_ptr<BatchPlanner> {
        return std::make_unique<Gated>(std::move(task), gate_);
      });
  const std::vector<StepReport> straight = losses("straight", "1000.0", nullptr);
  ASSERT_EQ(late.size(), 6U);
  EXPECT_TRUE(late[1].late);
  EXPECT_TRUE(late[2].late);
  for (std::size_t step = 0; step < 6; ++step) {
    EXPECT_FALSE(straight[step].late);
    EXPECT_NEAR(late[step].loss, straight[step].loss, 1e-9);
  }
  std::ifstream metrics(folder / "late" / "metrics.jsonl");
  for (std::string line; std::getline(metrics, line);) {
    const nlohmann::json json = nlohmann::json::parse(line);
    EXPECT_EQ(json.at("late"), late.at(json.at("step").get<std::size_t>() - 1).late);
  }
}

}  // namespace
}  // namespace paradyse
