// The fast planner of groups, what it is made of, and the bounds that judge it.
#include <algorithm>
#include <limits>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "src/plan/search/grouping/fast/improve.h"
#include "src/plan/search/grouping/fast/key_set.h"
#include "src/plan/search/grouping/fast/polish.h"
#include "src/plan/search/grouping/fast/room.h"
#include "tests/plan/random_grouping.h"
#include "tests/support/random_lengths.h"

namespace paradyse {
namespace {

GroupingAnswer fast(const GroupingTask& task, const GroupingOptions& options = {}) {
  return grouping_planner("fast").plan(task, options);
}

// Lengths as corpora have them, none longer than the context.
std::vector<std::int64_t> drawn(unsigned seed, int documents, double sigma = 1.66) {
  std::mt19937_64 random(seed);
  return test::random_lengths(random, documents, 1200, sigma, 192'000);
}

FlexspSetting preset(int ranks = kFlexspRanks) {
  return {.model = flexsp_model("flexsp-7b"), .ranks = ranks};
}

TEST(KeySet, FindsWhatASetFinds) {
  std::mt19937 random(7);
  for (const int keys : {1, 64, 65, 5000, 300'000}) {
    fast::KeySet set;
    set.reset(keys);
    std::set<int> plain;
    for (int i = 0; i < 3000; ++i) {
      const int key = static_cast<int>(random() % static_cast<unsigned>(keys));
      if (plain.contains(key)) {
        plain.erase(key);
        set.erase(key);
      } else {
        plain.insert(key);
        set.insert(key);
      }
      const int at = static_cast<int>(random() % static_cast<unsigned>(keys));
      const auto above = plain.upper_bound(at);
      ASSERT_EQ(set.last_at_most(at), above == plain.begin() ? -1 : *std::prev(above));
      ASSERT_EQ(set.first(), plain.empty() ? -1 : *plain.begin());
      ASSERT_EQ(set.empty(), plain.empty());
    }
    set.clear();
    EXPECT_TRUE(set.empty());
    EXPECT_EQ(set.last_at_most(keys - 1), -1);
  }
}

// Room is given exactly where all groups find a place, largest first.
TEST(Room, IsWhereGroupsFindPlaces) {
  for (unsigned seed = 1; seed <= 200; ++seed) {
    std::mt19937 random(seed);
    const int ranks = 1 + static_cast<int>(random() % 40);
    const int node = random() % 3 == 0 ? 0 : 1 + static_cast<int>(random() % 8);
    fast::Room room(ranks, node);
    std::vector<int> sizes;
    for (int i = 0; i < 30; ++i) {
      int size = 1 + static_cast<int>(random() % static_cast<unsigned>(std::max(node, 8)));
      if (node > 0 && size > node) {
        size = size / node * node;
      }
      sizes.push_back(size);
      int sum = 0;
      for (const int s : sizes) {
        sum += s;
      }
      const bool fits = sum <= ranks && first_ranks(ranks, node, sizes).has_value();
      ASSERT_EQ(room.take(size), fits) << "seed " << seed;
      if (!fits) {
        sizes.pop_back();
      }
    }
  }
}

TEST(FirstRanks, AreAlignedAndInsideNodes) {
  // sizes that divide one another: a buddy tree
  const std::vector<int> sizes = {1, 4, 2, 1, 8};
  const auto first = first_ranks(16, 0, sizes);
  ASSERT_TRUE(first);
  for (std::size_t g = 0; g < sizes.size(); ++g) {
    EXPECT_EQ((*first)[g] % sizes[g], 0);
  }
  // nodes of 4: two groups of 3 do not share one with anything but single ranks
  EXPECT_THAT(
      first_ranks(8, 4, std::vector{3, 3, 1, 1}),
      testing::Optional(testing::ElementsAre(0, 4, 7, 3)));
  EXPECT_EQ(first_ranks(8, 4, std::vector{3, 3, 2}), std::nullopt);
  EXPECT_EQ(first_ranks(8, 4, std::vector{8, 1}), std::nullopt);
}

TEST(FastGrouping, IsSoundOnAnyTask) {
  for (unsigned seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    const GroupingTask task = random_task(random, 12, 40);
    const GroupingAnswer answer = fast(task);
    expect_sound(task, answer);
    if (answer.grouping) {
      EXPECT_GE(answer.grouping->seconds, lower_bound(task).seconds * (1 - 1e-9));
    }
  }
}

TEST(FastGrouping, IsNeverWorseThanGroupsOfOneSize) {
  for (unsigned seed = 1; seed <= 12; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    const GroupingTask task = random_flexsp_task(random, 8 << seed % 4, 200);
    const double ours = fast(task).grouping->seconds;
    for (const char* name : {"homogeneous", "longest-first", "static"}) {
      EXPECT_LE(ours, grouping_planner(name).plan(task, {}).grouping->seconds * (1 + 1e-9)) << name;
    }
  }
}

// Small enough for the exact planner to take a moment: as published, or of no rule at all.
GroupingTask tiny_task(unsigned seed, bool published) {
  std::mt19937 random(seed);
  if (!published) {
    return random_task(random, 8, 12);
  }
  const int ranks = 1 << random() % 4;
  return random_flexsp_task(random, ranks, 1 + static_cast<int>(random() % 12));
}

TEST(FastGrouping, LeavesTinyCasesToTheExactPlanner) {
  for (unsigned seed = 1; seed <= 25; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const GroupingTask task = tiny_task(seed, /*published=*/true);
    for (const double moves : {1.0, kMovesOfTraining}) {
      EXPECT_TRUE(fast(task, {.moves = moves}).optimal);
    }
    EXPECT_FALSE(fast(task, {.tiny_exactly = false}).optimal);
  }
}

// How far the search alone is from the optimum of cases that the planner would not search.
struct NearOptimum {
  int tasks = 0;
  int optimal = 0;
  double mean = 0;  // of seconds by the optimum's
  double worst = 0;
};

NearOptimum near_optimum(bool published, double moves) {
  NearOptimum near;
  for (unsigned seed = 1; seed <= 500; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const GroupingTask task = tiny_task(seed, published);
    const GroupingAnswer best = grouping_planner("exact").plan(task, {});
    if (!best.grouping || task.documents() == 0) {
      continue;
    }
    const GroupingAnswer ours = fast(task, {.moves = moves, .tiny_exactly = false});
    expect_sound(task, ours);
    if (!ours.grouping) {
      continue;
    }
    const double ratio = ours.grouping->seconds / best.grouping->seconds;
    EXPECT_GE(ratio, 1 - 1e-9);
    ++near.tasks;
    near.optimal += ratio <= 1 + 1e-9 ? 1 : 0;
    near.mean += ratio;
    near.worst = std::max(near.worst, ratio);
  }
  near.mean /= near.tasks;
  return near;
}

// Limits are just above what was measured: of 500 published cases 429 were optimal (426 with the
// moves of training), 0.03 % above the optimum in the mean and 1.4 % at worst; of 466 whose seconds
// follow no rule 372 (367), 1.7 % (2.0 %) in the mean and 46 % at worst.
TEST(FastGrouping, SearchIsNearTheOptimumOfTinyCases) {
  for (const double moves : {1.0, kMovesOfTraining}) {
    SCOPED_TRACE(testing::Message() << "moves " << moves);
    const NearOptimum published = near_optimum(/*published=*/true, moves);
    EXPECT_EQ(published.tasks, 500);
    EXPECT_GE(published.optimal, 420);
    EXPECT_LE(published.mean, 1.0005);
    EXPECT_LE(published.worst, 1.015);
    const NearOptimum any = near_optimum(/*published=*/false, moves);
    EXPECT_GE(any.tasks, 450);
    EXPECT_GE(any.optimal, 0.78 * any.tasks);
    EXPECT_LE(any.mean, 1.021);
    EXPECT_LE(any.worst, 1.46);
  }
}

TEST(FastGrouping, DependsOnTheBatchAlone) {
  const GroupingTask task = flexsp_task(preset(), drawn(3, 512));
  const GroupingAnswer once = fast(task);
  EXPECT_EQ(fast(task).grouping, once.grouping);
  EXPECT_EQ(fast(task, {.threads = 3}).grouping, once.grouping);
  // more moves try more starts, which the seed draws
  const GroupingAnswer more = fast(task, {.seed = 5, .moves = 4, .threads = 2});
  EXPECT_EQ(fast(task, {.seed = 5, .moves = 4}).grouping, more.grouping);
  EXPECT_LE(more.grouping->seconds, once.grouping->seconds * (1 + 1e-9));
  EXPECT_GT(more.tried, once.tried);
  EXPECT_LT(fast(task, {.moves = 0}).tried, once.tried);
}

// Limits are just above what was measured, of which the bound's own distance from the optimum is
// most: in the mean 1.0537, 1.0752 and 1.0718, at worst 1.104, with 1556 moves a document.
TEST(FastGrouping, IsNearTheBoundAndScales) {
  struct Size {
    int ranks = 0;
    unsigned batches = 0;
    double mean = 0;  // of seconds by the bound's
  };
  for (const Size& size :
       {Size{.ranks = 64, .batches = 16, .mean = 1.056},
        Size{.ranks = 256, .batches = 6, .mean = 1.078},
        Size{.ranks = 1024, .batches = 3, .mean = 1.075}}) {
    double mean = 0;
    for (unsigned seed = 1; seed <= size.batches; ++seed) {
      SCOPED_TRACE(testing::Message() << size.ranks << " ranks, seed " << seed);
      const GroupingTask task = flexsp_task(preset(size.ranks), drawn(seed, 8 * size.ranks));
      const GroupingAnswer answer = fast(task);
      expect_sound(task, answer);
      const double ratio = answer.grouping->seconds / area_bound(task).seconds;
      EXPECT_LT(ratio, 1.11);
      mean += ratio / size.batches;
      // every item is looked at a bounded number of times
      EXPECT_LT(answer.tried, 1700 * task.documents());
    }
    EXPECT_LT(mean, size.mean) << size.ranks << " ranks";
  }
}

// The least seconds of all groupings: every document joins a group there is, or opens one.
class Enumeration {
 public:
  explicit Enumeration(const GroupingTask& task) : task_(task) { place(0); }
  [[nodiscard]] double seconds() const { return best_; }

 private:
  void place(int k) {
    if (k == task_.documents()) {
      best_ = std::min(best_, seconds_of(task_, grouping_));
      return;
    }
    auto& all = grouping_.micro_batches;
    for (std::size_t m = 0; m <= all.size(); ++m) {
      const bool fresh = m == all.size();
      if (fresh) {
        all.emplace_back();
      }
      for (std::size_t g = 0; g < all[m].size(); ++g) {
        all[m][g].documents.push_back(k);
        if (task_.fits(all[m][g].type, group_tokens(task_, all[m][g]))) {
          place(k + 1);
        }
        all[m][g].documents.pop_back();
      }
      for (int t = 0; t < std::ssize(task_.types); ++t) {
        all[m].push_back({.type = t, .documents = {k}});
        if (task_.fits(t, task_.lengths[idx(k)]) && first_ranks(task_, all[m])) {
          place(k + 1);
        }
        all[m].pop_back();
      }
      if (fresh) {
        all.pop_back();
        break;
      }
    }
  }

  const GroupingTask& task_;
  Grouping grouping_;
  double best_ = std::numeric_limits<double>::infinity();
};

// Devices that are unlike: plans are sound, bounds hold, and the optimum is not far.
TEST(FastGrouping, PlansPools) {
  double above = 0;
  constexpr unsigned kTasks = 150;
  for (unsigned seed = 1; seed <= kTasks; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    const GroupingTask task = random_pooled_task(random, 5);
    const GroupingAnswer answer = fast(task);
    ASSERT_TRUE(answer.grouping) << answer.why_not;
    EXPECT_EQ(problems(task, *answer.grouping), std::vector<std::string>{});
    const double best = Enumeration(task).seconds();
    for (const LowerBound& bound :
         {area_bound(task), longest_micro_batch_bound(task), memory_bound(task)}) {
      EXPECT_LE(bound.seconds, best * (1 + 1e-9)) << bound.name;
    }
    EXPECT_GE(answer.grouping->seconds, best * (1 - 1e-9));
    above += answer.grouping->seconds / best - 1;
  }
  EXPECT_LT(above / kTasks, 0.03);
}

TEST(FastGrouping, UsesLevelsAndSizesOfTheFullSpace) {
  const std::vector<std::int64_t> lengths = drawn(11, 512);
  const GroupSpace published = flexsp_space(preset(), lengths);
  const GroupSpace full = flexsp_full_space(preset(), {}, lengths);
  const GroupingAnswer ours = fast(full.task);
  expect_sound(full.task, ours);
  EXPECT_LT(ours.grouping->seconds, 0.92 * fast(published.task).grouping->seconds);
  // with overlap nothing takes longer
  const GroupSpace overlapped = flexsp_full_space(preset(), {.overlapped = true}, lengths);
  EXPECT_LT(fast(overlapped.task).grouping->seconds, ours.grouping->seconds);
}

TEST(FastGrouping, NamesADocumentThatFitsNowhere) {
  const GroupingTask task = plain_task(4, {1, 2, 4}, 100, 0, {50, 401});
  const GroupingAnswer answer = fast(task);
  EXPECT_FALSE(answer.grouping);
  EXPECT_THAT(answer.why_not, testing::HasSubstr("401"));
}

TEST(FastGrouping, PlansNoDocuments) {
  const GroupingAnswer answer = fast(plain_task(4, {1, 2}, 100, 1, {}));
  ASSERT_TRUE(answer.grouping);
  EXPECT_EQ(answer.grouping->seconds, 0);
}

TEST(Polish, OnlyMakesTheSlowestFaster) {
  for (unsigned seed = 1; seed <= 100; ++seed) {
    std::mt19937 random(seed);
    const GroupingTask task = random_flexsp_task(random, 16, 60);
    const fast::Items items(task);
    fast::Packer packer(items);
    std::vector<int> all(idx(items.size()));
    std::iota(all.begin(), all.end(), 0);
    fast::Packed packed;
    std::vector<int> left;
    packer.pack(10, {.least = 0, .even = seed % 2 == 0}, all, packed, left);
    const double before = packed.slowest;
    std::vector<int> placed = packed.items;
    polish(items, packed);
    EXPECT_LE(packed.slowest, before * (1 + 1e-12)) << seed;
    EXPECT_EQ(packed.items, placed);
  }
}

// Bounds hold for the optimum, and each is above the others somewhere.
TEST(Bounds, AreBelowTheOptimum) {
  int memory = 0;
  int longest = 0;
  for (unsigned seed = 1; seed <= 400; ++seed) {
    std::mt19937 random(seed);
    const GroupingTask task = random_task(random, 6, 8);
    const GroupingAnswer best = grouping_planner("exact").plan(task, {});
    if (!best.grouping) {
      continue;
    }
    const double area = area_bound(task).seconds;
    for (const LowerBound& bound :
         {area_bound(task), longest_micro_batch_bound(task), memory_bound(task)}) {
      EXPECT_LE(bound.seconds, best.grouping->seconds * (1 + 1e-9))
          << bound.name << ", seed " << seed;
    }
    memory += memory_bound(task).seconds > area * (1 + 1e-6) ? 1 : 0;
    longest += longest_micro_batch_bound(task).seconds > area * (1 + 1e-6) ? 1 : 0;
    EXPECT_GE(lower_bound(task).seconds, area);
  }
  EXPECT_GT(memory, 10);
  EXPECT_GT(longest, 10);
}

TEST(Bounds, KnowHowTheLongestDocumentForcesASize) {
  // Four ranks, two documents of which the long one takes 8 s alone on four ranks or 12 on two.
  GroupingTask task{.ranks = 4, .lengths = {100, 10}, .types = {}, .seconds = {}};
  task.types = {
      {.name = "2", .ranks = 2, .capacity = 200}, {.name = "4", .ranks = 4, .capacity = 400}};
  task.seconds = {12, 1, 8, 0.9};
  // beside one another on two ranks each: 12; one after the other: 8.9; the area alone says 13/2
  EXPECT_DOUBLE_EQ(area_bound(task).seconds, 8);
  EXPECT_DOUBLE_EQ(longest_micro_batch_bound(task).seconds, 8.5);
  EXPECT_DOUBLE_EQ(fast(task).grouping->seconds, 8.9);
}

}  // namespace
}  // namespace paradyse
