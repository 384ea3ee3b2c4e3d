// One strategy for all documents, and plans judged by the best such; layers whose parts are alike.
#include "paradyse/plan/detail/static_strategy.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "paradyse/plan/detail/index.h"
#include "src/plan/model/text/text_shape.h"
#include "src/plan/search/batch/document_planner.h"
#include "src/plan/search/layers/layer_costs.h"
#include "tests/support/grid_shapes.h"
#include "tests/support/sanitized.h"

namespace paradyse {
namespace {

PlanningTask task(std::int64_t memory = 0) {
  PlanningTask t;
  t.model = TextShape{
      .layers = 3,
      .hidden = 64,
      .heads = 4,
      .kv_heads = 2,
      .head_dim = 16,
      .ffn = 160,
      .vocab = 256};
  t.ranks = 4;
  t.machine.cores = 2;
  t.memory_per_rank = memory;
  return t;
}

const std::vector<std::vector<std::int64_t>> kBatches = {
    {700}, {40, 300, 20, 900, 10, 350, 400}, {5, 5, 5, 5, 5, 5}, {1300, 1, 1300}};

std::int64_t most_bytes(const Plan& plan) {
  std::int64_t most = 0;
  for (const PlanMicroBatch& micro : plan.micro_batches) {
    for (const PlanGroup& group : micro.groups) {
      most = std::max(most, group.predicted.bytes->total());
    }
  }
  return most;
}

// Budgets from the bytes of the longest document of a batch: what it needs, and a little more than
// half of that, so that batches take several micro-batches.
TEST(StaticStrategy, RunsAllDocumentsByOneStrategyWithinMemory) {
  for (const Strategy& s : strategies("attention")) {
    SCOPED_TRACE(s.name);
    const std::int64_t all = most_bytes(*StaticStrategy(task(), s.name, {}).plan({900}));
    for (const std::int64_t memory : {std::int64_t{0}, all, all * 3 / 2}) {
      if (test::kSanitized && memory == 0) {
        continue;
      }
      for (const bool recomputes : {false, true}) {
        const PlanningTask t = task(memory);
        StaticStrategy one(t, s.name, {.recomputes = recomputes});
        for (const std::vector<std::int64_t>& lengths : kBatches) {
          const std::optional<Plan> plan = one.plan(lengths);
          const std::int64_t longest = *std::max_element(lengths.begin(), lengths.end());
          EXPECT_EQ(plan.has_value(), memory == 0 || longest <= *one.longest()) << longest;
          if (!plan) {
            continue;
          }
          const std::vector<std::string> wrong = problems(*plan, {.model = t.model});
          EXPECT_TRUE(wrong.empty()) << wrong.front();
          EXPECT_TRUE(memory == 0 || most_bytes(*plan) <= memory);
          EXPECT_GT(*plan->predicted.seconds, 0);
          for (const auto& [name, program] : plan->programs) {
            for (const LayerRun& run : program) {
              EXPECT_EQ(part_of(run.choice, "attention").strategy, s.name);
              EXPECT_EQ(strategy("mlp", part_of(run.choice, "mlp").strategy).verb, s.verb);
            }
          }
        }
      }
    }
  }
}

TEST(StaticStrategy, PacksInOrderAndRecomputesOnlyWhereItMust) {
  // Without room for messages beside work.
  const std::int64_t ample = most_bytes(*StaticStrategy(task(), "UlyssesZ", {}).plan({900}));
  const std::int64_t bytes =
      most_bytes(*StaticStrategy(task(ample - 1), "UlyssesZ", {}).plan({900}));
  StaticStrategy plain(task(bytes), "UlyssesZ", {});
  StaticStrategy leaner(task(bytes), "UlyssesZ", {.recomputes = true});
  const std::optional<Plan> packed = plain.plan({40, 300, 20, 900, 10, 350, 400});
  ASSERT_TRUE(packed);
  std::vector<std::vector<std::int64_t>> found;
  for (const PlanMicroBatch& micro : packed->micro_batches) {
    ASSERT_EQ(micro.groups.size(), 1U);
    found.push_back(micro.groups.front().documents);
  }
  EXPECT_EQ(found, (std::vector<std::vector<std::int64_t>>{{0, 1, 2}, {3}, {4, 5, 6}}));
  EXPECT_EQ(leaner.plan({900}), plain.plan({900}));
  EXPECT_FALSE(plain.plan({1000}));
  EXPECT_TRUE(leaner.plan({1000}));
  EXPECT_GT(*leaner.longest(), *plain.longest());
  EXPECT_EQ(
      StaticStrategy(task(), "UlyssesZ", {.packs = false}).plan({9, 9})->micro_batches.size(), 2U);
}

TEST(ComparedToStatic, IsTheBestOfAllSumsBesideOurs) {
  const std::int64_t bytes = most_bytes(*StaticStrategy(task(), "METP", {}).plan({1000}));
  for (const std::int64_t memory : {std::int64_t{0}, bytes}) {
    const auto planner = batch_planner(task(memory));
    std::vector<Plan> plans;
    double ours = 0;
    for (const std::vector<std::int64_t>& lengths : kBatches) {
      plans.push_back(*planner->plan(lengths).plan);
      ours += *plans.back().predicted.seconds;
      plans.back().predicted.seconds = 77;  // what is said of it does not count
    }
    const std::optional<StaticComparison> found = compared_to_static(*planner, plans);
    ASSERT_TRUE(found);
    EXPECT_EQ(found->batches, std::ssize(kBatches));
    EXPECT_NEAR(found->ours, ours, 1e-9 * ours);
    double least = std::numeric_limits<double>::infinity();
    std::string best;
    for (const Strategy& s : strategies("attention")) {
      StaticStrategy one(task(memory), s.name, {.recomputes = true});
      double sum = 0;
      for (const std::vector<std::int64_t>& lengths : kBatches) {
        const std::optional<Plan> plan = one.plan(lengths);
        sum += plan ? *plan->predicted.seconds : std::numeric_limits<double>::infinity();
      }
      if (sum < least) {
        least = sum;
        best = s.name;
      }
    }
    EXPECT_EQ(found->strategy, best);
    EXPECT_NEAR(found->seconds, least, 1e-9 * least);
    EXPECT_NEAR(found->ratio(), least / ours, 1e-9);
  }
  PlanningTask one_left = task();
  for (const Strategy& s : strategies("attention")) {
    if (s.name != "METP") {
      one_left.without.push_back(s.name);
    }
  }
  const auto planner = batch_planner(one_left);
  std::vector<Plan> plans = {*planner->plan({50}).plan};
  EXPECT_EQ(compared_to_static(*planner, plans)->strategy, "METP");
  EXPECT_FALSE(compared_to_static(*planner, {}));
}

// Samples in groups of one size, whatever they are; the best size is what a run is compared with.
TEST(StaticStrategy, OfSamplesIsASizeOfGroups) {
  PlanningTask t{.model = test::small_stdit(3), .ranks = 4, .machine = {}};
  t.machine.cores = 4;
  BatchSizes batch;
  for (const std::int64_t frames : {4, 16, 4, 2, 4}) {
    batch.dims.push_back({{"frames", frames}, {"patches", 9}});
    batch.lengths.push_back(t.model.rows(batch.dims.back()));
  }
  std::vector<std::string> names;
  double least = std::numeric_limits<double>::infinity();
  std::string best;
  for (NamedStrategy& one : static_strategies(t)) {
    names.push_back(one.name);
    const Plan plan = one.plans.plan(batch).value();
    EXPECT_EQ(sizes_of(plan), batch);
    EXPECT_TRUE(problems(plan, {.model = t.model}).empty());
    const std::size_t size = one.name == "groups-of-1" ? 1 : one.name == "groups-of-2" ? 2 : 4;
    for (const PlanMicroBatch& micro : plan.micro_batches) {
      for (const PlanGroup& group : micro.groups) {
        EXPECT_EQ(group.ranks.size(), group.documents.empty() ? 1 : size);
      }
    }
    if (*plan.predicted.seconds < least) {
      least = *plan.predicted.seconds;
      best = one.name;
    }
  }
  EXPECT_THAT(names, testing::ElementsAre("groups-of-1", "groups-of-2", "groups-of-4"));
  const auto known = batch_planner(t);
  std::vector<Plan> plans = {known->plan(batch).plan.value()};
  const StaticComparison found = compared_to_static(*known, plans).value();
  EXPECT_EQ(found.strategy, best);
  EXPECT_NEAR(found.seconds, least, 1e-9 * least);
  EXPECT_GE(found.ratio(), 1 - 1e-9);
}

// As published, both parts of a layer run one strategy; the fastest such is not left out.
TEST(LayerCosts, OfPartsAlike) {
  PlanningTask t = task();
  t.mix_parts = false;
  Correction none;
  LayerCosts costs(t, t.ranks, t.ranks, none);
  for (const std::int64_t n : {16, 1000, 40000}) {
    const LayerWays ways = costs.ways(n);
    double least = std::numeric_limits<double>::infinity();
    for (std::size_t i = 0; i < ways.layers.size(); ++i) {
      EXPECT_EQ(
          strategy("attention", part_of(ways.layers[i], "attention").strategy).verb,
          strategy("mlp", part_of(ways.layers[i], "mlp").strategy).verb)
          << ways.costs[i].name;
      least = std::min(least, ways.costs[i].seconds);
    }
    for (const LayerChoice& layer : costs.uniform()) {
      if (strategy("attention", part_of(layer, "attention").strategy).verb ==
          strategy("mlp", part_of(layer, "mlp").strategy).verb) {
        EXPECT_GE(costs.layer(layer, n).wall, least * (1 - 1e-12));
      }
    }
  }
}

}  // namespace
}  // namespace paradyse
