// Groups of any sizes side by side: random plans that the checker accepts give the loss and every
// gradient of plain single-rank autograd, with memory and traffic as the folds say; plans that
// somebody edited are refused by name or run right.  No wait is longer than the backend's deadline,
// so what would hang fails.  PARADYSE_TEST_LONG=1 takes many more.
#include <algorithm>
#include <cstdlib>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "paradyse/plan/detail/index.h"
#include "paradyse/plan/plan.h"
#include "tests/support/equality.h"
#include "tests/support/random_plans.h"

namespace paradyse {
namespace {

using test::Case;

constexpr int kMostRanks = 8;

int rounds(int usual) { return std::getenv("PARADYSE_TEST_LONG") != nullptr ? 12 * usual : usual; }

const std::vector<Case>& cases() {
  static const std::vector<Case> all = test::group_cases();
  return all;
}

// A plan to be run, by its number.
struct Round {
  const Case* of = nullptr;
  int ranks = 1;
  Plan plan;
};

Round round_of(int number) {
  const Case& c = cases()[idx(number) % cases().size()];
  const int ranks = 2 + number / static_cast<int>(cases().size()) % (kMostRanks - 1);
  return {
      .of = &c, .ranks = ranks, .plan = test::random_plan(c.model, c.lengths, ranks, idx(number))};
}

constexpr int kPlans = 168;

// What the test above has in it without PARADYSE_TEST_LONG.
TEST(Groups, RandomPlansHaveEverything) {
  std::set<std::tuple<std::string, int>> sizes;         // strategy, beside another size of group
  std::set<std::tuple<std::string, Recompute>> levels;  // the same
  std::set<std::string> options;
  std::set<int> micro_batches;
  int idle = 0;
  int unlike_micro_batches = 0;
  int small_domains = 0;
  int shares = 0;
  int meshes = 0;
  for (int number = 0; number < kPlans; ++number) {
    const Plan plan = round_of(number).plan;
    small_domains += plan.weight_domain < plan.ranks ? 1 : 0;
    micro_batches.insert(static_cast<int>(plan.micro_batches.size()));
    std::set<std::size_t> groups;
    for (const PlanMicroBatch& micro : plan.micro_batches) {
      groups.insert(micro.groups.size());
      const auto beside = [&](std::size_t size) {
        return std::ranges::any_of(
            micro.groups, [&](const PlanGroup& other) { return other.ranks.size() != size; });
      };
      for (const PlanGroup& group : micro.groups) {
        idle += group.documents.empty() ? 1 : 0;
        shares += group.shares.empty() ? 0 : 1;
        meshes += group.mesh.empty() ? 0 : 1;
        if (group.documents.empty() || !beside(group.ranks.size())) {
          continue;
        }
        for (const LayerRun& run : plan.programs.at(group.program)) {
          for (const PartChoice& part : run.choice) {
            sizes.emplace(part.strategy, static_cast<int>(group.ranks.size()));
            levels.emplace(part.strategy, part.recompute);
            for (const auto& [option, value] : part.options) {
              options.insert(option);
            }
          }
        }
      }
    }
    unlike_micro_batches += groups.size() > 1 ? 1 : 0;
  }
  for (const Strategy& strategy : strategies("attention")) {
    if (strategy.verb != Verb::gather) {
      continue;
    }
    for (const Recompute level : kRecomputeLevels) {
      EXPECT_TRUE(levels.contains({strategy.name, level}))
          << strategy.name << ", recompute " << to_string(level);
    }
    for (int size = 1; size < kMostRanks - 1 && (size == 1 || !strategy.one_rank); ++size) {
      EXPECT_TRUE(sizes.contains({strategy.name, size})) << strategy.name << " on " << size;
    }
  }
  EXPECT_THAT(options, testing::IsSupersetOf({"ulysses_degree", "token_tiles"}));
  EXPECT_THAT(micro_batches, testing::IsSupersetOf({1, 2, 3, 4}));
  for (const int count : {idle, unlike_micro_batches, small_domains, shares, meshes}) {
    EXPECT_GT(count, kPlans / 10);
  }
}

// Of a model and batch for which the bounds of expect_within_rounding() were measured; plans that
// the checker refuses for the type alone are left out.
TEST(Groups, RandomPlansStayWithinTheirRoundingInNarrowTypes) {
  const Case c{
      "gqa", test::llama({.heads = 6, .kv_heads = 2, .ffn = 13, .vocab = 31}), {1, 9, 2, 17, 3}};
  const Model model = c.model;
  int refused = 0;
  for (int number = 0; number < rounds(60); ++number) {
    const Dtype dtype = number % 3 == 0 ? Dtype::float16 : Dtype::bfloat16;
    const Plan plan = test::random_plan(c.model, c.lengths, 2 + number % 5, idx(number));
    SCOPED_TRACE("seed " + std::to_string(number));
    const std::vector<std::string> wrong =
        problems(plan, {.model = model, .precision = precision_of(dtype)});
    if (wrong.empty()) {
      test::expect_within_rounding(c, plan, dtype);
    } else {
      ++refused;
      EXPECT_THAT(wrong, testing::Each(testing::HasSubstr("token_tiles")));
    }
    if (HasFailure()) {
      return;
    }
  }
  EXPECT_GT(refused, 0);
}

// The place comes first: "micro_batches[0].groups[1].ranks[0]: ...".
MATCHER(NamesItsPlace, "") {
  const std::string place = arg.substr(0, arg.find(": "));
  const std::string head = place.substr(0, place.find_first_of(".["));
  return std::set<std::string>{
      "cluster", "dims", "lengths", "micro_batches", "model", "programs", "weight_domain"}
      .contains(head);
}

TEST(Groups, EditedPlansAreNamedOrRunRight) {
  int named = 0;
  int run = 0;
  for (int number = 0; number < rounds(400); ++number) {
    const Round round = round_of(number);
    test::Edit edit = test::random_edit(round.plan, idx(number));
    if (number % 4 == 3) {
      edit = test::random_edit(std::move(edit.plan), idx(number) + 1000000);
    }
    SCOPED_TRACE("seed " + std::to_string(number) + ", " + edit.what);
    Case c = *round.of;
    const Model model = c.model;
    const std::vector<std::string> wrong = problems(edit.plan, {.model = model});
    if (!wrong.empty()) {
      ++named;
      EXPECT_THAT(wrong, testing::Each(NamesItsPlace()));
      continue;
    }
    ++run;
    if (c.lengths != edit.plan.lengths) {
      c.lengths = edit.plan.lengths;
      c.name += ", edited " + std::to_string(number);
    }
    test::expect_equal(c, edit.plan, Dtype::float64, 1e-10);
    if (HasFailure()) {
      return;
    }
  }
  EXPECT_GT(named, 100);
  EXPECT_GT(run, 50);
}

}  // namespace
}  // namespace paradyse
