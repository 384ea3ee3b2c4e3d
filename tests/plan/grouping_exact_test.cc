// The exact planner of groups against enumeration.
#include <algorithm>
#include <functional>
#include <limits>
#include <random>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/plan/random_grouping.h"

namespace paradyse {
namespace {

// Puts the documents one after another into every group there is so far, and into a new one of
// every type in every micro-batch there is so far and in a new one.
double enumerated(const GroupingTask& task) {
  double best = std::numeric_limits<double>::infinity();
  Grouping grouping;
  const std::function<void(int)> place = [&](int k) {
    if (k == task.documents()) {
      grouping.seconds = seconds_of(task, grouping);
      if (problems(task, grouping).empty()) {
        best = std::min(best, grouping.seconds);
      }
      return;
    }
    for (std::size_t m = 0; m <= grouping.micro_batches.size(); ++m) {
      const bool another = m == grouping.micro_batches.size();
      if (another) {
        grouping.micro_batches.emplace_back();
      }
      for (std::size_t g = 0; g < grouping.micro_batches[m].size(); ++g) {
        grouping.micro_batches[m][g].documents.push_back(k);
        place(k + 1);
        grouping.micro_batches[m][g].documents.pop_back();
      }
      int ranks = 0;
      for (const Grouping::Group& group : grouping.micro_batches[m]) {
        ranks += task.types[idx(group.type)].ranks;
      }
      for (int t = 0; t < std::ssize(task.types); ++t) {
        if (ranks + task.types[idx(t)].ranks > task.ranks) {
          break;
        }
        grouping.micro_batches[m].push_back({.type = t, .documents = {k}});
        place(k + 1);
        grouping.micro_batches[m].pop_back();
      }
      if (another) {
        grouping.micro_batches.pop_back();
        break;
      }
    }
  };
  place(0);
  return best;
}

void expect_optimal(const GroupingTask& task) {
  const GroupingAnswer answer = grouping_planner("exact").plan(task, {});
  ASSERT_TRUE(answer.grouping) << answer.why_not;
  EXPECT_TRUE(answer.optimal);
  expect_sound(task, answer);
  const double best = enumerated(task);
  EXPECT_NEAR(answer.grouping->seconds, best, 1e-9 * best);
}

TEST(ExactGrouping, EqualsEnumeration) {
  for (unsigned seed = 1; seed <= 150; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    expect_optimal(random_task(random, 8, 4));
  }
}

TEST(ExactGrouping, EqualsEnumerationOfMoreDocuments) {
  for (unsigned seed = 1; seed <= 4; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    expect_optimal(random_flexsp_task(random, 4, 6));
    GroupingTask two = random_task(random, 6, 5);
    two.types.resize(std::min<std::size_t>(two.types.size(), 2));
    two.seconds.resize(two.types.size() * two.lengths.size());
    if (too_long(two).empty()) {
      expect_optimal(two);
    }
  }
}

// 30 tokens at 10 a rank need three ranks; beside them goes what fits into one.
TEST(ExactGrouping, OfAHandMadeCase) {
  const GroupingTask task = plain_task(4, {1, 3}, 10, 1, {30, 4, 6, 5});
  const GroupingAnswer answer = grouping_planner("exact").plan(task, {});
  ASSERT_TRUE(answer.grouping);
  // Together 45 tokens, more than the room of one micro-batch; {30} with {4, 6} takes 10, then 5
  // / 3.
  EXPECT_DOUBLE_EQ(answer.grouping->seconds, 1 + 10 + 1 + 5.0 / 3);
  EXPECT_EQ(answer.grouping->micro_batches.size(), 2U);
}

TEST(ExactGrouping, IsNeverBeatenAndRefusesWhatIsTooLarge) {
  for (unsigned seed = 1; seed <= 10; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    const GroupingTask task = random_flexsp_task(random, 8, 10);
    const GroupingAnswer exact = grouping_planner("exact").plan(task, {});
    ASSERT_TRUE(exact.grouping) << exact.why_not;
    for (const GroupingPlannerRow& row : grouping_planners()) {
      const GroupingAnswer answer =
          row.plan(task, {.solver_seconds = 0.1, .more_micro_batches = 0});
      if (answer.grouping) {
        EXPECT_GE(answer.grouping->seconds, exact.grouping->seconds * (1 - 1e-9)) << row.name;
      }
    }
  }
  std::mt19937 random(1);
  for (const auto& [ranks, documents] : {std::pair(2, 15), std::pair(64, 14)}) {
    const GroupingAnswer answer =
        grouping_planner("exact").plan(random_flexsp_task(random, ranks, documents), {});
    EXPECT_FALSE(answer.grouping);
    EXPECT_THAT(answer.why_not, testing::HasSubstr("at most 14 documents"));
  }
}

// The largest case that is promised.
TEST(ExactGrouping, Of14DocumentsOn8Ranks) {
  std::mt19937 random(1);
  const GroupingTask task = random_flexsp_task(random, 8, 14);
  const GroupingAnswer answer = grouping_planner("exact").plan(task, {});
  ASSERT_TRUE(answer.grouping) << answer.why_not;
  expect_sound(task, answer);
  EXPECT_EQ(grouping_planner("exact").plan(task, {}).grouping, answer.grouping);
}

}  // namespace
}  // namespace paradyse
