// The first planner: sound plans, memory respected, costs followed, honest refusals.
#include "paradyse/planner.h"

#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace paradyse {
namespace {

ModelShape model() {
  ModelShape m;
  m.layers = 4;
  m.hidden = 128;
  m.heads = 4;
  m.kv_heads = 2;
  m.head_dim = 32;
  m.ffn = 352;
  m.vocab = 256;
  m.tied = true;
  return m;
}

PlanningTask task(int ranks, std::int64_t memory) {
  PlanningTask t;
  t.model = model();
  t.ranks = ranks;
  t.machine.cores = 2;
  t.memory_per_rank = memory;
  return t;
}

std::vector<std::int64_t> long_tailed(std::uint64_t seed, int count) {
  std::mt19937_64 random(seed);
  std::lognormal_distribution<double> length(6.5, 1.3);
  std::vector<std::int64_t> lengths;
  for (int i = 0; i < count; ++i) {
    lengths.push_back(
        std::clamp<std::int64_t>(static_cast<std::int64_t>(length(random)), 1, 16384));
  }
  return lengths;
}

// Whatever the lengths, ranks and budget: each document once, the checker content, every rank
// within its budget.
TEST(Planner, GivesSoundPlansThatFit) {
  for (const int ranks : {1, 2, 3, 4, 8}) {
    for (const std::int64_t memory :
         {std::int64_t{0}, std::int64_t{64} << 20, std::int64_t{256} << 20}) {
      Planner planner(task(ranks, memory));
      for (std::uint64_t seed = 0; seed < 5; ++seed) {
        const std::vector<std::int64_t> lengths = long_tailed(seed, 12);
        const Planner::Answer answer = planner.plan(lengths);
        SCOPED_TRACE(
            std::to_string(ranks) + " ranks, " + std::to_string(memory) + " bytes, seed " +
            std::to_string(seed) + ": " + answer.why_not);
        if (!answer.plan) {
          EXPECT_GT(memory, 0);
          continue;
        }
        const ModelShape m = model();
        CheckContext context{.model = &m};
        if (memory > 0) {
          context.memory_per_rank = memory;
        }
        EXPECT_THAT(problems(*answer.plan, context), testing::IsEmpty());
        EXPECT_EQ(answer.plan->lengths, lengths);
      }
    }
  }
}

TEST(Planner, IsDeterministic) {
  const std::vector<std::int64_t> lengths = long_tailed(3, 40);
  Planner first(task(4, std::int64_t{128} << 20));
  Planner second(task(4, std::int64_t{128} << 20));
  second.plan(long_tailed(4, 40));  // what was asked before does not matter
  EXPECT_EQ(hash(*first.plan(lengths).plan), hash(*second.plan(lengths).plan));
}

// With memory to spare short documents stay whole; one long document alone is split, since it would
// leave the other core idle.
TEST(Planner, SplitsLongDocumentsAndKeepsShortOnesWhole) {
  Planner planner(task(4, 0));
  const Plan shorts = *planner.plan(std::vector<std::int64_t>(16, 500)).plan;
  for (const PlanMicroBatch& micro : shorts.micro_batches) {
    for (const PlanGroup& group : micro.groups) {
      EXPECT_EQ(group.ranks.size(), 1U);
    }
  }
  const Plan one = *planner.plan({16000}).plan;
  ASSERT_EQ(one.micro_batches.size(), 1U);
  EXPECT_EQ(one.micro_batches[0].groups[0].ranks.size(), 4U);
}

// Less memory: first documents are split, then parts recomputed, then there is no plan; and the
// longest document it names is indeed the longest that fits.
TEST(Planner, SaysWhatDoesNotFitAndWhatWould) {
  const std::int64_t memory = std::int64_t{24} << 20;
  Planner planner(task(4, memory));
  const Planner::Answer answer = planner.plan({100, 16384});
  ASSERT_FALSE(answer.plan);
  EXPECT_THAT(answer.why_not, testing::HasSubstr("16384 tokens needs"));
  EXPECT_THAT(answer.why_not, testing::HasSubstr("24.0 MiB"));
  const std::string marker = "longest document that fits has ";
  const std::int64_t longest =
      std::stoll(answer.why_not.substr(answer.why_not.find(marker) + marker.size()));
  EXPECT_TRUE(planner.plan({longest}).plan);
  EXPECT_FALSE(planner.plan({longest + 1}).plan);
}

TEST(Planner, TakesTheCheaperOfWhatItIsAllowed) {
  const std::vector<std::int64_t> lengths = long_tailed(9, 20);
  Planner free(task(4, 0));
  const double best = *free.plan(lengths).plan->predicted.seconds;
  for (const char* name : {"MegatronTS", "UlyssesZ", "DataZ"}) {
    PlanningTask fixed = task(4, 0);
    fixed.attention = name;
    Planner planner(fixed);
    EXPECT_GE(*planner.plan(lengths).plan->predicted.seconds, best * 0.999) << name;
  }
}

TEST(Planner, RefusesWhatCannotBe) {
  PlanningTask t = task(4, 0);
  t.attention = "MegatronT";
  EXPECT_THROW(Planner{t}, std::invalid_argument);
  t.attention = "DataZ";
  t.mlp = "hold";
  EXPECT_THROW(Planner{t}, std::invalid_argument);
}

}  // namespace
}  // namespace paradyse
