// Ranks that compute at unlike speeds: what steps teach of them, and plans that divide work by it.
#include "paradyse/plan/detail/rank_speeds.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "paradyse/plan/batch_planner.h"
#include "paradyse/plan/detail/time_model.h"
#include "src/plan/model/text/text_shape.h"
#include "src/plan/plan/group_timeline.h"
#include "src/plan/search/batch/document_planner.h"
#include "tests/support/grid_shapes.h"
#include "tests/support/sanitized.h"

namespace paradyse {
namespace {

using testing::DoubleNear;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// --- what steps teach ----------------------------------------------------------------------------

TEST(RankSpeeds, AreLearnedFromSteps) {
  RankSpeeds speeds;
  for (int i = 0; i < 4; ++i) {
    speeds.observe({1, 2, 1.1}, {1, 1, 1});
    EXPECT_THAT(speeds.speeds(), IsEmpty()) << "too few steps";
    EXPECT_EQ(speeds.version(), 0);
  }
  speeds.observe({1, 2, 1.1}, {1, 1, 1});
  EXPECT_THAT(speeds.speeds(), ElementsAre(1, DoubleNear(1.1 / 2, 1e-12), 1));
  EXPECT_EQ(speeds.version(), 1);
  EXPECT_EQ(speeds.said(), "rank 1 computes at 0.55 times the speed of the others");
  speeds.observe({1, 2.05, 1.1}, {1, 1, 1});
  EXPECT_EQ(speeds.version(), 1) << "a small change is not told";
  // What it has to do is what it is held against.
  for (int i = 0; i < 9; ++i) {
    speeds.observe({1, 2, 4}, {1, 2, 4});
  }
  EXPECT_THAT(speeds.speeds(), IsEmpty());
  EXPECT_EQ(speeds.version(), 2);
  EXPECT_EQ(speeds.said(), "all ranks compute at the same speed again");
}

// Once a rank is slow it is until it is nearly as fast as the others.
TEST(RankSpeeds, DoNotSwing) {
  const auto after = [](double before, double now) {
    RankSpeeds speeds;
    for (int i = 0; i < 9; ++i) {
      speeds.observe({1, before}, {1, 1});
    }
    for (int i = 0; i < 9; ++i) {
      speeds.observe({1, now}, {1, 1});
    }
    return speeds.speeds();
  };
  EXPECT_THAT(after(1.2, 1.2), IsEmpty());
  EXPECT_THAT(after(1.5, 1.2), ElementsAre(1, DoubleNear(1 / 1.2, 1e-12)));
  EXPECT_THAT(after(1.5, 1.1), IsEmpty());
}

TEST(RankSpeeds, PassOverWhatSaysNothing) {
  RankSpeeds speeds;
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (int i = 0; i < 20; ++i) {
    speeds.observe({0, 0, 0}, {1, 1, 1});      // a device that the host does not wait for
    speeds.observe({1, nan, 9}, {1, 1, 0});    // one rank is left
    speeds.observe({1, 1, 0.9}, {1, 1, 0.1});  // so little work takes any time
    speeds.observe({1, 1}, {1, 1, 1});         // of nobody
    speeds.observe({1e-3, 9e-3}, {1, 1});      // too short
    speeds.observe({}, {});
  }
  EXPECT_THAT(speeds.speeds(), IsEmpty());
  for (int i = 0; i < 9; ++i) {
    speeds.observe({1, 1, i == 4 ? 50.0 : 1.0}, {1, 1, 1});  // something disturbed it
  }
  EXPECT_THAT(speeds.speeds(), IsEmpty());
}

TEST(RankSpeeds, GoOnFromWhatTheyKnew) {
  RankSpeeds speeds;
  for (int i = 0; i < 7; ++i) {
    speeds.observe({1, 3}, {1, 1});
  }
  RankSpeeds next;
  next.learn(speeds.ratios(), speeds.slow_since());
  EXPECT_EQ(next.speeds(), speeds.speeds());
  EXPECT_EQ(next.ratios(), speeds.ratios());
  EXPECT_EQ(next.slow_since(), speeds.slow_since());

  // Slow enough to stay so, not to become so.
  RankSpeeds hardly;
  for (int step = 1; step <= 20; ++step) {
    hardly.observe({1, step <= 9 ? 2.0 : 1.2}, {1, 1}, step);
  }
  ASSERT_EQ(hardly.slow_since().at(1), 1);
  RankSpeeds resumed;
  resumed.learn(hardly.ratios(), hardly.slow_since());
  EXPECT_EQ(resumed.speeds(), hardly.speeds());
  EXPECT_EQ(resumed.slow_since(), hardly.slow_since());
}

// A rank is slow since the step where it became so, not since the one where that is told.
TEST(RankSpeeds, KnowSinceWhen) {
  // What is said of rank 1 from step 11 on, each once.
  const auto since = [](const std::vector<double>& times) {
    RankSpeeds speeds;
    std::vector<std::int64_t> said;
    std::int64_t step = 10;
    for (const double its : times) {
      speeds.observe({1, its}, {1, 1}, ++step);
      const std::int64_t now = speeds.slow_since().at(1);
      if (said.empty() || said.back() != now) {
        said.push_back(now);
      }
    }
    return said;
  };
  EXPECT_THAT(since({1, 1, 1, 1, 1, 1}), ElementsAre(0));
  EXPECT_THAT(since({2, 2, 2, 2, 2}), ElementsAre(0, 11));
  EXPECT_THAT(since({1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2}), ElementsAre(0, 16));
  EXPECT_THAT(since({1, 1, 2, 1, 2, 2, 2, 2}), ElementsAre(0, 15)) << "step 13 was disturbed";
  EXPECT_THAT(since({1, 1, 1, 1, 2, 2, 1, 2, 2, 2}), ElementsAre(0, 15)) << "step 17 was";
  // Until it is as fast as others; then anew.
  EXPECT_THAT(since({2, 2, 2, 2, 2, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2}), ElementsAre(0, 11, 0, 21));

  RankSpeeds speeds;
  for (int step = 1; step <= 9; ++step) {
    speeds.observe({1, step < 3 ? 1.0 : 2.0, step < 5 ? 1.0 : 4.0, 1, 1}, {1, 1, 1, 1, 1}, step);
  }
  EXPECT_EQ(
      speeds.said(),
      "rank 1 computes at 0.50 times the speed of the others (slow since step 3), rank 2 computes "
      "at 0.25 times the speed of the others (slow since step 5)");
  // Another run goes on: what it did not see it does not say, what it was told it keeps.
  RankSpeeds next;
  next.learn(speeds.ratios(), {});
  EXPECT_EQ(next.speeds(), speeds.speeds());
  EXPECT_THAT(next.slow_since(), ElementsAre(0, 0, 0, 0, 0));
  EXPECT_THAT(next.said(), testing::Not(HasSubstr("since")));
  next.learn(RankSpeeds::Ratios(5), {});
  next.learn(speeds.ratios(), speeds.slow_since());
  EXPECT_EQ(next.said(), speeds.said());
  for (int step = 10; step < 18; ++step) {
    next.observe({1, 3, 4, 1, 1}, {1, 1, 1, 1, 1}, step);
  }
  EXPECT_THAT(
      next.said(),
      HasSubstr("rank 1 computes at 0.33 times the speed of the others (slow "
                "since step 3)"));
}

// --- plans ---------------------------------------------------------------------------------------

PlanningTask task(int ranks, const std::string& planner, std::int64_t memory) {
  TextShape m;
  m.layers = 3;
  m.hidden = 64;
  m.heads = 8;
  m.kv_heads = 8;
  m.head_dim = 8;
  m.ffn = 160;
  m.vocab = 256;
  PlanningTask t;
  t.model = m;
  t.ranks = ranks;
  t.machine.cores = ranks;
  t.machine.collective_seconds = 1e-9;  // what is asked is how computing is divided
  t.machine.sent_bytes_per_second = 1e12;
  t.memory_per_rank = memory;
  t.batch_planner = planner;
  return t;
}

// [world rank] What a micro-batch has to compute, folded plainly.
std::vector<double> work(const PlanningTask& t, const Plan& plan, const PlanMicroBatch& micro) {
  std::vector<double> all(static_cast<std::size_t>(t.ranks));
  for (const PlanGroup& group : micro.groups) {
    const GroupTimeline built = group_timeline(plan, group, t.model, /*keep=*/true);
    for (std::size_t r = 0; r < group.ranks.size(); ++r) {
      for (const ScheduledPart& part : built.parts) {
        all[static_cast<std::size_t>(group.ranks[r])] +=
            computing_seconds(part_work(part, built.seats[r], t.precision), t.machine);
      }
    }
  }
  return all;
}

// Seconds of a plan on ranks of these speeds, where each group ends with its slowest rank and a
// rank waits for its groups alone (weights are whole), or all wait for each other.
double judged(const PlanningTask& t, const Plan& plan, const std::vector<double>& speeds) {
  std::vector<double> clocks(speeds.size());
  for (const PlanMicroBatch& micro : plan.micro_batches) {
    const std::vector<double> its = work(t, plan, micro);
    for (const PlanGroup& group : micro.groups) {
      double begin = 0;
      double longest = 0;
      for (const int rank : group.ranks) {
        const auto r = static_cast<std::size_t>(rank);
        begin = std::max(begin, clocks[r]);
        longest = std::max(longest, its[r] / speeds[r]);
      }
      for (const int rank : group.ranks) {
        clocks[static_cast<std::size_t>(rank)] = begin + longest;
      }
    }
    if (plan.messages.reshard_after_backward) {
      std::ranges::fill(clocks, std::ranges::max(clocks));
    }
  }
  return std::ranges::max(clocks);
}

struct Share {
  double of_gain = 0;    // of what ideal division would save
  double predicted = 0;  // seconds over judged ones
};

Share share_of_ideal_gain(
    const PlanningTask& t, const BatchSizes& batch, const std::vector<double>& speeds) {
  const std::unique_ptr<BatchPlanner> planner = batch_planner(t);
  const Plan even = *planner->plan(batch).plan;
  double all = 0;
  for (const PlanMicroBatch& micro : even.micro_batches) {
    const std::vector<double> its = work(t, even, micro);
    all += std::accumulate(its.begin(), its.end(), 0.0);
  }
  const double ideal = all / std::accumulate(speeds.begin(), speeds.end(), 0.0);
  // Steps of the plan on such ranks.
  std::vector<double> computed(speeds.size());
  for (const PlanMicroBatch& micro : even.micro_batches) {
    const std::vector<double> its = work(t, even, micro);
    for (std::size_t r = 0; r < speeds.size(); ++r) {
      computed[r] += 100 * its[r] / speeds[r];  // whatever the unit
    }
  }
  RankSpeeds learned;
  for (int i = 0; i < 9; ++i) {
    learned.observe(computed, planner->work_of_ranks(even));
  }
  EXPECT_THAT(learned.said(), HasSubstr("times the speed of the others"));
  planner->learn({.speeds = learned.ratios()});
  const Plan uneven = *planner->plan(batch).plan;
  EXPECT_THAT(problems(uneven, {.model = t.model, .precision = t.precision}), IsEmpty());
  const double before = judged(t, even, speeds);
  const double after = judged(t, uneven, speeds);
  return {
      .of_gain = (before - after) / (before - ideal),
      .predicted = *uneven.predicted.seconds / after};
}

std::vector<std::int64_t> short_documents(int count) {
  std::mt19937 random(3);
  std::vector<std::int64_t> lengths;
  for (int i = 0; i < count; ++i) {
    lengths.push_back(std::uniform_int_distribution<int>(30, 400)(random));
  }
  return lengths;
}

std::vector<std::int64_t> budgets() {
  constexpr std::int64_t kSome = std::int64_t{256} << 20;
  return test::kSanitized ? std::vector{kSome} : std::vector{std::int64_t{0}, kSome};
}

// At least 80 % of what an ideal division would save, where a rank is slowed by half.
TEST(RankSpeeds, DivideTheWorkOfABatch) {
  for (const std::string planner : {"groups", "borders"}) {
    for (const std::int64_t memory : budgets()) {
      SCOPED_TRACE(planner + ", memory " + std::to_string(memory));
      const Share one =
          share_of_ideal_gain(task(2, planner, memory), {.lengths = {9000}}, {1, 0.5});
      EXPECT_GE(one.of_gain, 0.8) << "one long document on two ranks";
      EXPECT_NEAR(one.predicted, 1, 0.1);
      const Share four =
          share_of_ideal_gain(task(4, planner, memory), {.lengths = {20000}}, {1, 1, 0.5, 1});
      EXPECT_GE(four.of_gain, 0.8) << "one long document on four ranks";
      EXPECT_NEAR(four.predicted, 1, 0.1);
    }
  }
  for (const std::int64_t memory : budgets()) {
    SCOPED_TRACE(memory);
    const Share two =
        share_of_ideal_gain(task(2, "groups", memory), {.lengths = short_documents(80)}, {0.5, 1});
    EXPECT_GE(two.of_gain, 0.8) << "short documents on two ranks";
    EXPECT_NEAR(two.predicted, 1, 0.1);
    const Share four = share_of_ideal_gain(
        task(4, "groups", memory), {.lengths = short_documents(120)}, {1, 1, 0.5, 1});
    EXPECT_GE(four.of_gain, 0.8) << "short documents on four ranks";
    EXPECT_NEAR(four.predicted, 1, 0.1);
  }
}

// Samples are not cut unevenly: a slow rank is given fewer, or smaller ones.
TEST(RankSpeeds, DivideTheSamplesOfABatch) {
  PlanningTask t = task(4, "groups", 0);
  t.model = test::small_stdit(2);
  BatchSizes clips;
  std::mt19937 random(3);
  for (int i = 0; i < 48; ++i) {
    const std::int64_t frames = std::uniform_int_distribution<int>(2, 9)(random);
    clips.lengths.push_back(frames * 6);
    clips.dims.push_back({{"frames", frames}, {"patches", 6}});
  }
  for (const std::int64_t memory : budgets()) {
    SCOPED_TRACE(memory);
    t.memory_per_rank = memory;
    const Share slow = share_of_ideal_gain(t, clips, {1, 1, 0.5, 1});
    EXPECT_GE(slow.of_gain, 0.8);
    EXPECT_NEAR(slow.predicted, 1, 0.1);
  }
}

// A rank that is given less has less to hold; what the others then lack is room.
TEST(RankSpeeds, GiveWayToMemory) {
  PlanningTask t = task(2, "groups", 0);
  const std::vector<std::int64_t> lengths = {3000, 300, 200};
  const std::unique_ptr<DocumentPlanner> unlimited = document_planner(t);
  std::int64_t most = 0;
  const Plan without = *unlimited->plan(lengths).plan;
  for (const PlanMicroBatch& micro : without.micro_batches) {
    for (const PlanGroup& group : micro.groups) {
      most = std::max(most, group.predicted.bytes->total());
    }
  }
  t.memory_per_rank = most;
  const std::unique_ptr<DocumentPlanner> planner = document_planner(t);
  BatchPlanner::Learned learned;
  learned.speeds = {std::deque<double>(9, 1.0), std::deque<double>(9, 4.0)};
  planner->learn(learned);
  const BatchPlanner::Answer answer = planner->plan(lengths);
  ASSERT_TRUE(answer.plan) << answer.why_not;
  for (const PlanMicroBatch& micro : answer.plan->micro_batches) {
    for (const PlanGroup& group : micro.groups) {
      EXPECT_LE(group.predicted.bytes->total(), most);
    }
  }
}

// What was learned of other ranks says nothing of these.
TEST(RankSpeeds, OfOtherRanksAreNotTaken) {
  const std::unique_ptr<DocumentPlanner> planner = document_planner(task(4, "groups", 0));
  const Plan before = *planner->plan({900, 40}).plan;
  BatchPlanner::Learned learned;
  learned.speeds = {std::deque<double>(9, 1.0), std::deque<double>(9, 4.0)};
  planner->learn(learned);
  EXPECT_THAT(planner->learned().speeds, IsEmpty());
  EXPECT_EQ(*planner->plan({900, 40}).plan, before);
}

}  // namespace
}  // namespace paradyse
