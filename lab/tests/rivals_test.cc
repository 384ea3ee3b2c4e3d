// Every planner of groups on random tasks, and each rule on a case made by hand.
#include "lab/grouping/rivals.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <functional>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lab/grouping/blaster.h"
#include "lab/grouping/milp.h"
#include "tests/plan/random_grouping.h"

namespace paradyse {
namespace {

const bool kWithRivals = (add_rivals(), true);  // are rows of the table

using testing::ElementsAre;

std::int64_t tokens_of_all(const GroupingTask& task) {
  return std::accumulate(task.lengths.begin(), task.lengths.end(), std::int64_t{0});
}

// [micro-batch][group] type and documents, for what is known by heart.
using Groups = std::vector<std::vector<std::pair<int, std::vector<int>>>>;
Groups groups_of(const Grouping& grouping) {
  Groups found;
  for (const Grouping::MicroBatch& micro_batch : grouping.micro_batches) {
    auto& groups = found.emplace_back();
    for (const Grouping::Group& group : micro_batch) {
      groups.emplace_back(group.type, group.documents);
    }
  }
  return found;
}

Groups planned(const std::string& name, const GroupingTask& task, GroupingOptions options = {}) {
  const GroupingAnswer answer = grouping_planner(name).plan(task, options);
  EXPECT_TRUE(answer.grouping) << answer.why_not;
  expect_sound(task, answer);
  return answer.grouping ? groups_of(*answer.grouping) : Groups{};
}

bool is(const GroupingPlannerRow& row, const std::string& name) { return row.name == name; }

bool needs_solver(const GroupingPlannerRow& row) {
  return is(row, "flexsp-milp") || is(row, "flexsp-milp-as-written");
}

// The published planners take their time, so they are asked only where that is said.
void expect_all_sound(const GroupingTask& task, bool published = false) {
  for (const GroupingPlannerRow& row : grouping_planners()) {
    SCOPED_TRACE(row.name);
    if (needs_solver(row) && !(published && has_milp_solver())) {
      continue;
    }
    const GroupingAnswer answer = row.plan(task, {.solver_seconds = 0.02, .more_micro_batches = 1});
    if (is(row, "exact") && !answer.grouping && too_long(task).empty()) {
      continue;  // too large for it
    }
    expect_sound(task, answer);
  }
}

TEST(GroupingPlanners, AreSoundOnAnyTask) {
  for (unsigned seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    expect_all_sound(random_task(random, 12, 30), seed % 8 == 0);
  }
}

TEST(GroupingPlanners, AreSoundOnThePublishedCluster) {
  for (unsigned seed = 1; seed <= 12; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    const int ranks = seed % 2 == 0 ? 16 : 24;  // 24: groups of 1, 2, 4, 8 and 16
    expect_all_sound(random_flexsp_task(random, ranks, 60), seed == 1);
  }
}

TEST(GroupingPlanners, TakeNoDocumentsAndOne) {
  for (const std::vector<std::int64_t>& lengths :
       std::vector<std::vector<std::int64_t>>{{}, {1}, {40}}) {
    expect_all_sound(plain_task(4, {1, 2, 4}, 10, 1, lengths), true);
  }
  GroupingTask no_room = plain_task(4, {1, 2}, 10, 1, {});
  no_room.types[0].capacity = 0;
  no_room.types[1].capacity = -5;
  expect_all_sound(no_room, true);
}

// Same task, same answer, where no clock ends the search.
TEST(GroupingPlanners, AreDeterministic) {
  std::mt19937 random(1);
  const GroupingTask task = random_flexsp_task(random, 8, 12);
  for (const GroupingPlannerRow& row : grouping_planners()) {
    const GroupingOptions options{.solver_seconds = 60, .more_micro_batches = 1};
    EXPECT_EQ(row.plan(task, options).grouping, row.plan(task, options).grouping) << row.name;
  }
}

// 2 groups of 20 tokens, filled to 18.
TEST(Homogeneous, PacksBestFitToNineTenths) {
  const GroupingTask task = plain_task(4, {2}, 10, 1, {8, 9, 17, 1, 8, 1});
  // Longest first 17, 9, 8, 8, 1, 1: {17}, {9, 8}, {8}; 1 to the fullest with room, {17}, then {9,
  // 8}.
  EXPECT_EQ(
      planned("homogeneous", task),
      // The fourth group gets the first document of the last group that has two.
      (Groups{{{0, {2, 3}}, {0, {1, 5}}}, {{0, {4}}, {0, {0}}}}));
}

TEST(Homogeneous, EvensOutLargeGroups) {
  // Room for 32, filled to 28 and so {28}, {10, 10, 5, 3}; the third group gets a document, the
  // first of the second, the fourth another; 16 ranks: then the last micro-batch is evened out.
  const GroupingTask task = plain_task(32, {16}, 2, 1, {28, 10, 10, 5, 3, 14});
  const Groups groups = planned("static", task);
  // {28}, {14, 10, 3}, {10, 5}: the fourth gets document 2, of {10, 5} (15, average 7): both stay
  // below.
  EXPECT_EQ(groups, (Groups{{{0, {0}}, {0, {1, 4, 5}}}, {{0, {3}}, {0, {2}}}}));
}

TEST(Static, TakesTheLargestSizeAndHomogeneousTheBest) {
  const GroupingTask task = plain_task(4, {1, 4}, 10, 1, {5, 5, 5, 5});
  EXPECT_EQ(planned("static", task), (Groups{{{1, {0, 1, 2, 3}}}}));
  EXPECT_EQ(planned("homogeneous", task), (Groups{{{0, {0}}, {0, {1}}, {0, {2}}, {0, {3}}}}));
}

// Groups of 10 tokens, two a micro-batch: 10 | 9 and 8 | 2 + 1 take 18, 10 and 9 + 1 | 8 + 2
// take 20.
TEST(Sorted, CutsTheSortedBatchWhereThatIsBest) {
  EXPECT_EQ(
      planned("sorted", plain_task(2, {1}, 10, 1, {1, 9, 2, 8, 10})),
      (Groups{{{0, {4}}, {0, {1}}}, {{0, {3}}, {0, {0, 2}}}}));
  // With room for all, another micro-batch is not worth its seconds.
  EXPECT_EQ(
      planned("sorted", plain_task(2, {1}, 100, 1, {1, 9, 2, 8})),
      (Groups{{{0, {0, 1}}, {0, {2, 3}}}}));
}

// Every way to cut the sorted batch, each micro-batch dealt plainly.
TEST(Sorted, EqualsEnumerationOfCuts) {
  for (unsigned seed = 1; seed <= 100; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    GroupingTask task = random_task(random, 8, 8);
    std::vector<int> order(task.lengths.size());
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(
        order, [&](int a, int b) { return task.lengths[idx(a)] > task.lengths[idx(b)]; });
    double best = task.documents() == 0 ? 0 : std::numeric_limits<double>::infinity();
    for (int t = 0; t < std::ssize(task.types); ++t) {
      const GroupType& type = task.types[idx(t)];
      for (unsigned cuts = 0; cuts < 1U << task.lengths.size(); ++cuts) {
        double sum = 0;
        std::vector<Grouping::Group> groups(
            idx(task.ranks / type.ranks), {.type = t, .documents = {}});
        for (std::size_t i = 0; i < order.size(); ++i) {
          Grouping::Group* least = nullptr;
          for (Grouping::Group& group : groups) {
            const std::int64_t tokens = group_tokens(task, group) + task.lengths[idx(order[i])];
            if (tokens <= type.capacity &&
                (least == nullptr || group_seconds(task, group) < group_seconds(task, *least))) {
              least = &group;
            }
          }
          if (least == nullptr) {
            sum = std::numeric_limits<double>::infinity();
            break;
          }
          least->documents.push_back(order[i]);
          if ((cuts >> i & 1U) != 0 || i + 1 == order.size()) {
            sum += task.micro_batch(slowest_group(task, groups));
            groups.assign(groups.size(), {.type = t, .documents = {}});
          }
        }
        best = order.empty() ? 0 : std::min(best, sum);
      }
    }
    const GroupingAnswer answer = grouping_planner("sorted").plan(task, {});
    ASSERT_TRUE(answer.grouping);
    EXPECT_NEAR(answer.grouping->seconds, best, 1e-9 * best);
  }
}

// 30 in four ranks leaves room for 10, 15 in two for 5; 8 goes to the former, 6 has to have a group
// of its own, where 4 fits exactly.
TEST(BestFit, TakesTheTightestGroupElseTheSmallest) {
  EXPECT_EQ(
      planned("best-fit", plain_task(4, {1, 2, 4}, 10, 1, {30, 4, 6, 8, 15})),
      (Groups{{{2, {0, 3}}}, {{1, {4}}, {0, {1, 2}}}}));
}

// Graham's: 7 + 4 + 3 beside 6 + 5.
TEST(LongestFirst, GoesToTheLeastBusy) {
  EXPECT_EQ(
      planned("longest-first", plain_task(2, {1}, 100, 2, {7, 6, 5, 4, 3})),
      (Groups{{{0, {0, 3, 4}}, {0, {1, 2}}}}));
}

// 8 - 7 = 1, 6 - 5 = 1, 4 - 1 = 3, 3 - 1 = 2: 16 beside 14, where longest-first has 17 beside 13.
TEST(KarmarkarKarp, Differences) {
  EXPECT_EQ(
      planned("karmarkar-karp", plain_task(2, {1}, 100, 2, {8, 7, 6, 5, 4})),
      (Groups{{{0, {1, 3, 4}}, {0, {0, 2}}}}));
  // 16 finds no room in 15: its shortest document goes to the other group, which has room for none;
  // so there are two micro-batches, 5 + 4 | 8 and 7 | 6.
  EXPECT_EQ(
      planned("karmarkar-karp", plain_task(2, {1}, 15, 2, {8, 7, 6, 5, 4})),
      (Groups{{{0, {3, 4}}, {0, {0}}}, {{0, {1}}, {0, {2}}}}));
}

// By tokens 90 + 40 | 60 + 50 thousand; by 24,576 s + s^2 the longest is as much as the others.
TEST(Verl, CountsSquares) {
  const std::vector<std::int64_t> lengths = {90'000, 60'000, 50'000, 40'000};
  const GroupingTask task = plain_task(2, {1}, 1'000'000, 1e6, lengths);
  EXPECT_EQ(planned("karmarkar-karp", task), (Groups{{{0, {0, 3}}, {0, {1, 2}}}}));
  EXPECT_EQ(planned("verl", task), (Groups{{{0, {1, 2, 3}}, {0, {0}}}}));
}

TEST(Megatron, TakesTheLeastPowerOfTwo) {
  EXPECT_EQ(
      planned("megatron", plain_task(4, {1, 2, 3, 4}, 10, 1, {30, 15, 8, 6})),
      (Groups{{{3, {0}}}, {{1, {1}}, {0, {2}}, {0, {3}}}}));
  // Free ranks are spent by doubling.
  EXPECT_EQ(planned("megatron", plain_task(4, {1, 2, 4}, 10, 1, {8})), (Groups{{{2, {0}}}}));
}

TEST(TwoStage, GivesAtomicGroupsTheirRanks) {
  // One group, {12, 6}, of two ranks gets all four.
  EXPECT_EQ(
      planned("two-stage", plain_task(4, {1, 2, 3, 4}, 10, 1, {12, 6})), (Groups{{{3, {0, 1}}}}));
  // {20} of at least two and {9} of at least one: three and one.
  EXPECT_EQ(
      planned("two-stage", plain_task(4, {1, 2, 3, 4}, 10, 3, {20, 9})),
      (Groups{{{2, {0}}, {0, {1}}}}));
}

// So much for a micro-batch that there is one, and each length has a bucket: the MILP's optimum is
// the optimum.
TEST(Published, IsTheOptimumOfOneMicroBatch) {
  if (!has_milp_solver()) {
    GTEST_SKIP() << "built without HiGHS";
  }
  for (unsigned seed = 1; seed <= 12; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    GroupingTask task = random_flexsp_task(random, 4, 9);
    while (tokens_of_all(task) > task.types.back().capacity) {
      task = random_flexsp_task(random, 4, 9);
    }
    task.micro_batch_seconds = 1000;
    const GroupingAnswer exact = grouping_planner("exact").plan(task, {});
    for (const char* wording : {"flexsp-milp", "published-as-written"}) {
      SCOPED_TRACE(wording);
      const GroupingAnswer answer =
          grouping_planner(wording).plan(task, {.solver_seconds = 60, .more_micro_batches = 0});
      expect_sound(task, answer);
      EXPECT_NEAR(
          answer.grouping->seconds - 1000,
          exact.grouping->seconds - 1000,
          2e-4 * (exact.grouping->seconds - 1000));
    }
  }
}

TEST(Published, SaysThatItHasNoSolver) {
  if (has_milp_solver()) {
    GTEST_SKIP() << "built with HiGHS";
  }
  const GroupingAnswer answer =
      grouping_planner("flexsp-milp").plan(plain_task(2, {1}, 10, 1, {5}), {});
  EXPECT_FALSE(answer.grouping);
  EXPECT_THAT(answer.why_not, testing::HasSubstr("built without HiGHS"));
}

TEST(Blaster, CutsTheSortedBatchEvenly) {
  const GroupingTask task = plain_task(2, {1}, 100, 1, {9, 1, 5, 3, 2});
  EXPECT_THAT(blasted(task, 1), ElementsAre(ElementsAre(0, 2, 3, 4, 1)));
  EXPECT_THAT(blasted(task, 2), ElementsAre(ElementsAre(0), ElementsAre(2, 3, 4, 1)));
  EXPECT_THAT(
      blasted(task, 4),
      ElementsAre(ElementsAre(0), ElementsAre(2, 3), ElementsAre(4), ElementsAre(1)));
  EXPECT_EQ(blasted(task, 5).size(), 5U);
}

// The least sum of any cut, by trying them all.
std::int64_t least_largest(const std::vector<std::int64_t>& sorted, std::size_t from, int parts) {
  std::int64_t tokens = 0;
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  for (std::size_t to = from + 1; to <= sorted.size(); ++to) {
    tokens += sorted[to - 1];
    if (parts == 1 && to < sorted.size()) {
      continue;
    }
    if (parts > 1 && to == sorted.size()) {
      break;
    }
    least = std::min(
        least, parts == 1 ? tokens : std::max(tokens, least_largest(sorted, to, parts - 1)));
  }
  return least;
}

TEST(Blaster, EqualsEnumeration) {
  for (unsigned seed = 1; seed <= 100; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    std::vector<std::int64_t> lengths(1 + random() % 9);
    for (std::int64_t& n : lengths) {
      n = 1 + static_cast<std::int64_t>(random() % 20);
    }
    const GroupingTask task = plain_task(2, {1}, 100, 1, lengths);
    std::ranges::sort(lengths, std::greater());
    for (int m = 1; m <= task.documents(); ++m) {
      const auto cut = blasted(task, m);
      ASSERT_EQ(std::ssize(cut), m);
      std::int64_t most = 0;
      for (const std::vector<int>& documents : cut) {
        ASSERT_FALSE(documents.empty());
        std::int64_t tokens = 0;
        for (const int k : documents) {
          tokens += task.lengths[idx(k)];
        }
        most = std::max(most, tokens);
      }
      ASSERT_EQ(most, least_largest(lengths, 0, m)) << m;
    }
  }
}

TEST(Buckets, RoundUpByTheFewestTokens) {
  const GroupingTask task = plain_task(2, {1}, 100, 1, {12, 1, 10, 2, 11, 1});
  const std::vector<Bucket> buckets = bucketed(task, {0, 1, 2, 3, 4, 5}, 2);
  ASSERT_EQ(buckets.size(), 2U);
  EXPECT_EQ(buckets[0].length, 2);
  EXPECT_THAT(buckets[0].documents, ElementsAre(1, 5, 3));
  EXPECT_EQ(buckets[1].length, 12);
  EXPECT_THAT(buckets[1].documents, ElementsAre(2, 4, 0));
  EXPECT_EQ(bucketed(task, {0, 1, 2, 3, 4, 5}, 16).size(), 5U);  // the lengths there are
  EXPECT_EQ(bucketed(task, {1, 5}, 16).size(), 1U);
}

TEST(Buckets, EqualEnumeration) {
  for (unsigned seed = 1; seed <= 100; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    std::vector<std::int64_t> lengths(1 + random() % 8);
    std::vector<int> documents;
    for (std::int64_t& n : lengths) {
      n = 1 + static_cast<std::int64_t>(random() % 30);
      documents.push_back(static_cast<int>(documents.size()));
    }
    const GroupingTask task = plain_task(2, {1}, 100, 1, lengths);
    const int most = 1 + static_cast<int>(random() % 4);
    std::int64_t added = 0;
    std::vector<int> seen;
    for (const Bucket& bucket : bucketed(task, documents, most)) {
      for (const int k : bucket.documents) {
        ASSERT_LE(lengths[idx(k)], bucket.length);
        added += bucket.length - lengths[idx(k)];
        seen.push_back(k);
      }
    }
    EXPECT_THAT(seen, testing::UnorderedElementsAreArray(documents));
    // Every set of at most so many of the lengths as those of buckets, the longest among them.
    std::int64_t least = std::numeric_limits<std::int64_t>::max();
    for (unsigned chosen = 1; chosen < 1U << lengths.size(); ++chosen) {
      if (std::popcount(chosen) > most) {
        continue;
      }
      std::int64_t sum = 0;
      bool fits = true;
      for (const std::int64_t n : lengths) {
        std::int64_t up = std::numeric_limits<std::int64_t>::max();
        for (std::size_t i = 0; i < lengths.size(); ++i) {
          if ((chosen >> i & 1U) != 0 && lengths[i] >= n) {
            up = std::min(up, lengths[i]);
          }
        }
        fits = fits && up < std::numeric_limits<std::int64_t>::max();
        sum += fits ? up - n : 0;
      }
      least = fits ? std::min(least, sum) : least;
    }
    EXPECT_EQ(added, least);
  }
}

}  // namespace
}  // namespace paradyse
