// Where groups of a plan that leaves weights whole go: to the ranks that are done first, inside
// nodes.
#include <algorithm>
#include <functional>
#include <numeric>
#include <random>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "paradyse/plan/detail/index.h"
#include "src/plan/search/batch/micro_batches.h"

namespace paradyse {
namespace {

struct Drawn {
  int ranks = 1;
  double seconds = 0;
};

Plan plan_of(int ranks, const std::vector<std::vector<Drawn>>& micro_batches) {
  Plan plan;
  plan.ranks = ranks;
  for (const std::vector<Drawn>& groups : micro_batches) {
    PlanMicroBatch& micro = plan.micro_batches.emplace_back();
    int first = 0;
    for (const Drawn& one : groups) {
      PlanGroup& group = micro.groups.emplace_back();
      group.ranks.resize(idx(one.ranks));
      std::iota(group.ranks.begin(), group.ranks.end(), first);
      first += one.ranks;
      group.documents = {std::ssize(plan.lengths)};
      plan.lengths.push_back(100);
      group.predicted.seconds = one.seconds;
    }
  }
  return plan;
}

// Powers of two up to `most` until no rank is left; some groups without documents take no time.
std::vector<Drawn> groups_of(int ranks, int most, std::mt19937& random) {
  std::vector<Drawn> groups;
  for (int left = ranks; left > 0;) {
    int size = 1 << random() % 4;
    while (size > std::min(left, most)) {
      size /= 2;
    }
    groups.push_back({.ranks = size, .seconds = static_cast<double>(random() % 50)});
    left -= size;
  }
  return groups;
}

using Place = std::pair<std::vector<std::int64_t>, std::size_t>;  // documents, number of ranks

std::multiset<Place> groups_in(const PlanMicroBatch& micro) {
  std::multiset<Place> all;
  for (const PlanGroup& group : micro.groups) {
    all.emplace(group.documents, group.ranks.size());
  }
  return all;
}

double begin_of(const std::vector<double>& clocks, int first, int size) {
  return *std::max_element(clocks.begin() + first, clocks.begin() + first + size);
}

// Played again in the order that is promised: nowhere else that was free would a group have begun
// earlier.
void expect_first_free(const Plan& plan) {
  std::vector<double> clocks(idx(plan.ranks));
  for (const PlanMicroBatch& micro : plan.micro_batches) {
    std::vector<PlanGroup> groups = micro.groups;
    std::ranges::sort(groups, std::greater(), [&](const PlanGroup& group) {
      const auto size = static_cast<int>(group.ranks.size());
      // of those alike the one that begins first chose first
      return std::tuple(
          size, *group.predicted.seconds, -begin_of(clocks, group.ranks.front(), size));
    });
    std::vector<double> after = clocks;
    std::set<int> taken;
    for (const PlanGroup& group : groups) {
      const auto size = static_cast<int>(group.ranks.size());
      const double begin = begin_of(clocks, group.ranks.front(), size);
      for (int first = 0; first + size <= plan.ranks; first += size) {
        const auto here = taken.lower_bound(first);
        if (here == taken.end() || *here >= first + size) {
          EXPECT_LE(begin, begin_of(clocks, first, size)) << "from rank " << first;
        }
      }
      for (const int rank : group.ranks) {
        EXPECT_TRUE(taken.insert(rank).second) << "rank " << rank << " is in two groups";
        after[idx(rank)] = begin + *group.predicted.seconds;
      }
    }
    clocks = after;
  }
}

// Any groups that divide nodes: the same ones, each on neighbouring ranks of one node, where they
// begin first.
TEST(SpreadOverRanks, GroupsGoToRanksThatAreDoneFirst) {
  for (unsigned seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    const int node = 1 << random() % 4;
    const int ranks = node * (1 + static_cast<int>(random() % 4));
    std::vector<std::vector<Drawn>> drawn;
    for (unsigned m = 0; m < 1 + random() % 5; ++m) {
      drawn.push_back(groups_of(ranks, node, random));
    }
    const Plan before = plan_of(ranks, drawn);
    Plan plan = before;
    ASSERT_TRUE(spread_over_ranks(NodeCores::of_their_own(plan.ranks), plan));
    for (std::size_t m = 0; m < plan.micro_batches.size(); ++m) {
      const PlanMicroBatch& micro = plan.micro_batches[m];
      EXPECT_EQ(groups_in(micro), groups_in(before.micro_batches[m]));
      EXPECT_TRUE(std::ranges::is_sorted(
          micro.groups, {}, [](const PlanGroup& group) { return group.ranks.front(); }));
      for (const PlanGroup& group : micro.groups) {
        EXPECT_EQ(group.ranks.back() - group.ranks.front() + 1, std::ssize(group.ranks));
        EXPECT_EQ(group.ranks.front() / node, group.ranks.back() / node) << "nodes of " << node;
      }
    }
    expect_first_free(plan);
  }
}

// Groups of any size up to a node, and of whole nodes, which keep to them.
TEST(SpreadOverRanks, GroupsOfAnySizeKeepToNodes) {
  int moved = 0;
  for (unsigned seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    const int node = 2 + static_cast<int>(random() % 11);
    const int nodes = 2 + static_cast<int>(random() % 3);
    std::vector<std::vector<Drawn>> drawn;
    for (int m = 0; m < 4; ++m) {
      std::vector<Drawn>& groups = drawn.emplace_back();
      for (int n = 0; n < nodes; ++n) {
        for (int left = node; left > 0; left -= groups.back().ranks) {
          groups.push_back(
              {.ranks = 1 + static_cast<int>(random() % static_cast<unsigned>(left)),
               .seconds = static_cast<double>(random() % 50)});
        }
      }
    }
    const Plan before = plan_of(node * nodes, drawn);
    Plan plan = before;
    if (!spread_over_ranks(NodeCores::of_their_own(plan.ranks, node), plan)) {
      continue;
    }
    ++moved;
    for (std::size_t m = 0; m < plan.micro_batches.size(); ++m) {
      EXPECT_EQ(groups_in(plan.micro_batches[m]), groups_in(before.micro_batches[m]));
      for (const PlanGroup& group : plan.micro_batches[m].groups) {
        EXPECT_EQ(group.ranks.front() / node, group.ranks.back() / node) << "nodes of " << node;
      }
    }
  }
  EXPECT_GT(moved, 50);
}

// Where a node's ranks have cores of their own, an idle one does not wait for its neighbours.
TEST(SpreadOverRanks, CoresOfTheirOwnDoNotWait) {
  Plan plan = plan_of(
      4,
      {{{.ranks = 1, .seconds = 9},
        {.ranks = 1, .seconds = 0},
        {.ranks = 1, .seconds = 4},
        {.ranks = 1, .seconds = 3}},
       {{.ranks = 1, .seconds = 5}}});
  ASSERT_TRUE(spread_over_ranks(NodeCores::of_their_own(4, 2), plan));
  const auto idle = std::ranges::find_if(plan.micro_batches[0].groups, [](const PlanGroup& group) {
    return group.predicted.seconds == 0;
  });
  EXPECT_EQ(plan.micro_batches[1].groups.front().ranks, idle->ranks);
}

// A long group and short ones, twice: the second long one waits for nobody.
TEST(SpreadOverRanks, ALongGroupFollowsShortOnes) {
  const std::vector<Drawn> groups = {
      {.ranks = 2, .seconds = 9}, {.ranks = 1, .seconds = 1}, {.ranks = 1, .seconds = 2}};
  Plan plan = plan_of(4, {groups, groups});
  ASSERT_TRUE(spread_over_ranks(NodeCores::of_their_own(plan.ranks), plan));
  const auto& second = plan.micro_batches[1].groups;
  EXPECT_THAT(second.back().ranks, testing::ElementsAre(2, 3));
  EXPECT_EQ(second.back().predicted.seconds, 9);
}

// What was done first does not lie side by side.
TEST(SpreadOverRanks, SaysWhereThereIsNoRoom) {
  Plan plan = plan_of(
      8,
      {{{.ranks = 7, .seconds = 1}, {.ranks = 1, .seconds = 9}},
       {{.ranks = 1, .seconds = 8}},  // on rank 0: now 1 to 6 are done first
       {{.ranks = 5, .seconds = 1}, {.ranks = 3, .seconds = 1}}});
  EXPECT_FALSE(spread_over_ranks(NodeCores::of_their_own(plan.ranks), plan));
}

// On two nodes with a core each, long groups do not share one.
TEST(SpreadOverRanks, LongGroupsHaveCoresOfTheirOwn) {
  const std::vector<Drawn> groups = {
      {.ranks = 1, .seconds = 9},
      {.ranks = 1, .seconds = 8},
      {.ranks = 1, .seconds = 2},
      {.ranks = 1, .seconds = 1}};
  const NodeCores cores = {.cores = 2, .ranks = 4, .ranks_per_node = 2};
  const auto of_first_node = [](const Plan& plan) {
    return *plan.micro_batches[0].groups[0].predicted.seconds +
           *plan.micro_batches[0].groups[1].predicted.seconds;
  };
  Plan one_after_the_other = plan_of(4, {groups});
  ASSERT_TRUE(spread_over_ranks(cores, one_after_the_other));
  EXPECT_EQ(of_first_node(one_after_the_other), 10);
  Plan all_meet = plan_of(4, {groups});
  ASSERT_TRUE(spread_over_nodes(cores, all_meet));
  EXPECT_EQ(of_first_node(all_meet), 10);
  EXPECT_FALSE(spread_over_nodes(cores, all_meet));  // they are already
  EXPECT_FALSE(spread_over_nodes(NodeCores::of_their_own(4), all_meet));
  // a group of all ranks stays, and one of a node changes places with none
  Plan others = plan_of(
      4,
      {{{.ranks = 4, .seconds = 9}},
       {{.ranks = 2, .seconds = 1}, {.ranks = 1, .seconds = 5}, {.ranks = 1, .seconds = 2}}});
  const Plan before = others;
  EXPECT_FALSE(spread_over_nodes(cores, others));
  EXPECT_EQ(others, before);
}

}  // namespace
}  // namespace paradyse
