// A batch planned from lengths to plan, on presets: what the plan says, and what is said of it.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lab/flexsp/presets.h"
#include "lab/grouping/rivals.h"
#include "paradyse/plan/detail/index.h"
#include "src/plan/search/grouping/batch.h"
#include "tests/support/random_lengths.h"

namespace paradyse {
namespace {

const bool kWithRivals = (add_rivals(), true);  // are rows of the table

using testing::HasSubstr;
using testing::IsEmpty;

std::vector<std::int64_t> random_lengths(std::mt19937& random, int documents, std::int64_t most) {
  return test::random_lengths(random, documents, 1200, 1.66, most);
}

FlexspSetting setting(int ranks) {
  return {.model = flexsp_model("flexsp-7b"), .ranks = ranks, .memory_mb = 40 * 1024};
}

// The plan is sound and says what the grouping is: lengths as given, seconds and bound, who
// planned and for how long, every rank in one group of each micro-batch.
void expect_planned(const std::vector<GroupSpace>& spaces, const char* planner) {
  const PlannedBatch planned =
      plan_batch(spaces, grouping_planner(planner), {.solver_seconds = 0.5});
  ASSERT_TRUE(planned.plan) << planned.why_not;
  EXPECT_EQ(planned.why_not, "");
  const GroupSpace& space = spaces[planned.space];
  const Plan& plan = *planned.plan;
  EXPECT_THAT(problems(plan), IsEmpty());
  EXPECT_THAT(problems(space.task, planned.grouping), IsEmpty());
  EXPECT_EQ(plan.lengths, space.task.lengths);
  EXPECT_EQ(plan.ranks, space.task.ranks);
  EXPECT_EQ(plan.weight_domain, space.weight_domain);
  EXPECT_EQ(plan.planner_name, planner);
  EXPECT_EQ(plan.planner_space, space.name);
  EXPECT_EQ(plan.planner_seconds, planned.search_seconds);
  EXPECT_GT(planned.search_seconds, 0);
  EXPECT_EQ(plan.predicted.seconds, planned.seconds);
  EXPECT_DOUBLE_EQ(planned.seconds, seconds_of(space.task, planned.grouping) + space.batch_seconds);
  EXPECT_GT(plan.predicted.lower_bound_seconds, 0);
  EXPECT_LE(*plan.predicted.lower_bound_seconds, planned.seconds);
  EXPECT_NE(planned.bound.name, "");
  EXPECT_GE(planned.gap(), -1e-9);
  double sum = space.batch_seconds;
  for (const PlanMicroBatch& micro_batch : plan.micro_batches) {
    sum += *micro_batch.predicted.seconds;
    int ranks = 0;
    for (const PlanGroup& group : micro_batch.groups) {
      ranks += static_cast<int>(group.ranks.size());
      if (group.documents.empty()) {
        EXPECT_EQ(group.ranks.size(), 1U);
        EXPECT_FALSE(group.predicted.seconds);
      } else {
        EXPECT_LE(*group.predicted.seconds, *micro_batch.predicted.seconds);
      }
    }
    EXPECT_EQ(ranks, plan.ranks);
  }
  EXPECT_NEAR(sum, planned.seconds, 1e-9 * sum);
}

TEST(GroupingBatch, PlansOnPresets) {
  for (unsigned seed = 1; seed <= 3; ++seed) {
    std::mt19937 random(seed);
    for (const int ranks : {16, 24, 64}) {
      const std::vector<std::int64_t> lengths = random_lengths(random, 100, 60'000);
      SCOPED_TRACE(testing::Message() << "seed " << seed << ", " << ranks << " ranks");
      expect_planned({flexsp_space(setting(ranks), lengths)}, "fast");
      expect_planned({flexsp_full_space(setting(ranks), {}, lengths)}, "fast");
      expect_planned(
          {flexsp_full_space(setting(ranks), {.overlapped = true}, lengths),
           flexsp_full_space(setting(ranks), {.overlapped = true, .node_domain = true}, lengths)},
          "fast");
    }
  }
}

TEST(GroupingBatch, PlansWithEveryPlanner) {
  for (const GroupingPlannerRow& row : grouping_planners()) {
    SCOPED_TRACE(row.name);
    expect_planned({flexsp_space(setting(8), {9000, 20'000, 700, 50, 3000})}, row.name);
  }
}

// Ranks that no group of the one document can use are idle, each by itself.
TEST(GroupingBatch, LeavesRanksIdle) {
  const std::vector<GroupSpace> spaces = {flexsp_space(setting(24), {100})};
  expect_planned(spaces, "fast");
  const PlannedBatch planned = plan_batch(spaces, grouping_planner("fast"), {});
  ASSERT_EQ(planned.plan->micro_batches.size(), 1U);
  std::size_t idle = 0;
  for (const PlanGroup& group : planned.plan->micro_batches[0].groups) {
    idle += group.documents.empty() ? group.ranks.size() : 0;
  }
  EXPECT_GE(idle, 8U);
}

// Of several spaces the best; the bound is below what any of them can reach.
TEST(GroupingBatch, TakesTheBestSpace) {
  std::mt19937 random(4);
  const std::vector<std::int64_t> lengths = random_lengths(random, 60, 30'000);
  std::vector<GroupSpace> spaces = {
      flexsp_full_space(setting(64), {}, lengths),
      flexsp_full_space(setting(64), {.node_domain = true}, lengths)};
  std::vector<double> alone;
  for (const GroupSpace& space : spaces) {
    alone.push_back(plan_batch({space}, grouping_planner("fast"), {}).seconds);
  }
  const PlannedBatch both = plan_batch(spaces, grouping_planner("fast"), {});
  EXPECT_EQ(both.seconds, std::ranges::min(alone));
  EXPECT_EQ(both.space, alone[0] <= alone[1] ? 0U : 1U);
  for (const GroupSpace& space : spaces) {
    EXPECT_LE(both.bound.seconds, lower_bound(space.task).seconds + space.batch_seconds + 1e-12);
  }
  std::swap(spaces[0], spaces[1]);
  EXPECT_EQ(plan_batch(spaces, grouping_planner("fast"), {}).seconds, both.seconds);
}

TEST(GroupingBatch, IsDeterministic) {
  std::mt19937 random(5);
  const GroupSpace space = flexsp_full_space(setting(64), {}, random_lengths(random, 200, 60'000));
  const std::string first = hash(*plan_batch({space}, grouping_planner("fast"), {}).plan);
  for (const int threads : {1, 2, 3}) {
    const PlannedBatch again = plan_batch({space}, grouping_planner("fast"), {.threads = threads});
    EXPECT_EQ(hash(*again.plan), first) << threads << " threads";
  }
}

TEST(GroupingBatch, ProvesOptimaOfSmallBatches) {
  const PlannedBatch planned = plan_batch(
      {flexsp_space(setting(8), {9000, 20'000, 700, 50, 3000})}, grouping_planner("exact"), {});
  ASSERT_TRUE(planned.plan);
  EXPECT_TRUE(planned.optimal);
  EXPECT_EQ(planned.bound.name, "optimum, proved");
  EXPECT_EQ(planned.gap(), 0);
  EXPECT_EQ(planned.plan->predicted.lower_bound_seconds, planned.seconds);
}

TEST(GroupingBatch, SaysWhyThereIsNone) {
  const PlannedBatch planned =
      plan_batch({flexsp_space(setting(16), {100, 190'000, 5})}, grouping_planner("fast"), {});
  EXPECT_FALSE(planned.plan);
  EXPECT_THAT(planned.why_not, HasSubstr("document 1 has 190000 tokens"));
  EXPECT_THAT(planned.why_not, HasSubstr("16 x UlyssesZ"));
}

// Every document and micro-batch stands in the explanation, and its shares are of the whole.
TEST(GroupingBatch, ExplainsWhatBinds) {
  std::mt19937 random(6);
  const GroupSpace space = flexsp_space(setting(16), random_lengths(random, 80, 60'000));
  const PlannedBatch planned = plan_batch({space}, grouping_planner("fast"), {});
  const std::string said = explained(space, planned.grouping);
  for (std::size_t m = 0; m < planned.grouping.micro_batches.size(); ++m) {
    EXPECT_THAT(said, HasSubstr("micro-batch " + std::to_string(m) + ": "));
  }
  for (const char* words :
       {"share of rank time: ", "per-micro-batch overhead", "waiting for the slowest group"}) {
    EXPECT_THAT(said, HasSubstr(words));
  }
  EXPECT_THAT(said, testing::Not(HasSubstr("nan")));
}

}  // namespace
}  // namespace paradyse
