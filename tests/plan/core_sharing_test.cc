// Ranks that share the cores of their node.
#include "src/plan/simulate/core_sharing.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "paradyse/plan/detail/index.h"
#include "paradyse/plan/detail/time_model.h"
#include "paradyse/plan/plan.h"
#include "paradyse/plan/simulate.h"
#include "src/plan/model/text/text_shape.h"
#include "tests/plan/small_cluster.h"
#include "tests/support/refusal.h"

namespace paradyse {
namespace {

using testing::DoubleNear;
using testing::Each;
using testing::ElementsAre;

Cluster cluster_of(int ranks, int node, int cores) {
  Cluster cluster = small_cluster(ranks, node);
  cluster.cores_per_node = cores;
  return cluster;
}

TEST(CoreSharing, GivesWhatOthersHaveLeft) {
  const Cluster four = cluster_of(4, 4, 2);
  const auto alone = [](std::vector<double> seconds) {
    std::vector<GroupLoad> loads;
    for (std::size_t r = 0; r < seconds.size(); ++r) {
      loads.push_back({.ranks = {static_cast<int>(r)}, .seconds = seconds[r]});
    }
    return loads;
  };
  EXPECT_THAT(speeds_beside_others(four, alone({3, 3, 3, 3})), Each(1));
  // two are done at 1; then each other has a core, which is twice as fast: 1 + 2 / 2
  EXPECT_THAT(speeds_beside_others(four, alone({1, 3, 3, 1})), ElementsAre(1, 1.5, 1.5, 1));
  // done at 1; 1 + 1 / (4 / 3); + 1 / 2; + 1 / 2: no rank has more than a core
  EXPECT_THAT(
      speeds_beside_others(four, alone({1, 2, 3, 4})),
      ElementsAre(
          1,
          DoubleNear(2 / 1.75, 1e-12),
          DoubleNear(3 / 2.25, 1e-12),
          DoubleNear(4 / 2.75, 1e-12)));
  EXPECT_THAT(speeds_beside_others(four, alone({0, 0, 0, 2})), ElementsAre(1, 1, 1, 2));
  // ranks that no group has work on
  EXPECT_THAT(
      speeds_beside_others(four, alone({1, 2})), ElementsAre(1, DoubleNear(8.0 / 7, 1e-12)));
  EXPECT_THAT(speeds_beside_others(cluster_of(4, 4, 4), alone({1, 2, 3, 4})), Each(1));
  EXPECT_THAT(speeds_beside_others(cluster_of(4, 4, 0), alone({1, 2, 3, 4})), Each(1));
}

// A core does the work of several ranks, but no rank's work is done by several cores.
TEST(CoreSharing, ARankHasOneCore) {
  const auto flops_together = [](std::vector<double> of_ranks, int cores) {
    std::vector<PartWork> works;
    for (const double flops : of_ranks) {
      works.emplace_back().phases[0].values[Amounts::matmul_flops] = flops;
    }
    return together(works, cores).phases[0].values[Amounts::matmul_flops];
  };
  EXPECT_EQ(flops_together({3e9, 3e9, 3e9, 3e9}, 2), 6e9);
  EXPECT_EQ(flops_together({1e9, 5e9, 3e9, 3e9}, 2), 6e9);
  EXPECT_EQ(flops_together({12e9, 0, 0, 0}, 2), 12e9);
  EXPECT_EQ(flops_together({1e9, 5e9, 3e9, 3e9}, 4), 5e9);
}

TEST(CoreSharing, GoesByTheSlowestNode) {
  const Cluster two = cluster_of(4, 2, 1);
  // ranks 1 and 2 together: 1 shares with rank 0 for long, 2 is soon alone
  const std::vector<GroupLoad> loads = {
      {.ranks = {0}, .seconds = 9}, {.ranks = {1, 2}, .seconds = 3}, {.ranks = {3}, .seconds = 1}};
  EXPECT_THAT(speeds_beside_others(two, loads), ElementsAre(DoubleNear(9.0 / 6, 1e-12), 1, 1));
}

// Whatever groups there are: cores are never busier than they can be, and never idle while more
// ranks than cores have work.
TEST(CoreSharing, KeepsCoresBusy) {
  std::mt19937 random(7);
  for (int trial = 0; trial < 200; ++trial) {
    const int ranks = std::uniform_int_distribution<int>(2, 9)(random);
    const int cores = std::uniform_int_distribution<int>(1, ranks)(random);
    const Cluster cluster = cluster_of(ranks, ranks, cores);
    std::vector<GroupLoad> loads;
    for (int first = 0; first < ranks;) {
      const int size = std::uniform_int_distribution<int>(1, ranks - first)(random);
      GroupLoad& load = loads.emplace_back();
      load.ranks.resize(idx(size));
      std::iota(load.ranks.begin(), load.ranks.end(), first);
      load.seconds = std::uniform_real_distribution<double>(0.1, 5)(random);
      first += size;
    }
    const std::vector<double> speeds = speeds_beside_others(cluster, loads);
    double work = 0;  // of cores
    double last = 0;
    double longest = 0;  // with a core for each rank
    for (std::size_t g = 0; g < loads.size(); ++g) {
      EXPECT_GE(speeds[g], 1 - 1e-12);
      EXPECT_LE(speeds[g], static_cast<double>(ranks) / cores + 1e-12);
      work += static_cast<double>(loads[g].ranks.size()) * loads[g].seconds * cores / ranks;
      last = std::max(last, loads[g].seconds / speeds[g]);
      longest = std::max(longest, loads[g].seconds * cores / ranks);
    }
    EXPECT_GE(last, std::max(work / cores, longest) * (1 - 1e-9));
    EXPECT_LE(last, (work / cores + longest) * (1 + 1e-9));
  }
}

// A document a rank, all alike: nothing is shared anew.  One alone has a core of its own.
TEST(CoreSharing, CountsInSimulations) {
  const Model model = TextShape{
      .layers = 2,
      .hidden = 64,
      .heads = 4,
      .kv_heads = 4,
      .head_dim = 16,
      .ffn = 128,
      .vocab = 256};
  const Cluster own = cluster_of(4, 4, 0);
  const Cluster shared = cluster_of(4, 4, 2);
  const LayerChoice alone = text_layer("DataZ", "gather", Recompute::none, Recompute::none);
  const auto plan = [&](const std::vector<std::int64_t>& lengths) {
    return uniform_plan(model, lengths, 4, std::vector<LayerChoice>(2, alone));
  };
  for (const bool additive : {false, true}) {
    const auto seconds = [&](const Plan& of, const Cluster& on) {
      return simulate(of, model, on, {.additive = additive}).micro_batches.front().seconds;
    };
    EXPECT_DOUBLE_EQ(
        seconds(plan({512, 512, 512, 512}), shared), seconds(plan({512, 512, 512, 512}), own));
    const double one = seconds(plan({4096, 8, 8, 8}), own);
    EXPECT_LT(seconds(plan({4096, 8, 8, 8}), shared), 0.7 * one);
    EXPECT_GE(seconds(plan({4096, 8, 8, 8}), shared), 0.5 * one);
    const double four = seconds(plan({1024, 2048, 3072, 4096}), shared);
    EXPECT_LT(four, 0.8 * seconds(plan({1024, 2048, 3072, 4096}), own));
    EXPECT_GT(four, seconds(plan({4096, 8, 8, 8}), shared));
  }
}

TEST(CoreSharing, IsReadWrittenAndRefused) {
  const Cluster shared = cluster_of(4, 4, 2);
  EXPECT_EQ(cluster_from_toml(to_toml(shared), "c.toml"), shared);
  const Cluster half = with_ranks(shared, 2, "c.toml");  // a core each
  EXPECT_FALSE(half.shares_cores());
  EXPECT_DOUBLE_EQ(
      half.devices.front().matmul_flops_per_second,
      2 * shared.devices.front().matmul_flops_per_second);
  EXPECT_EQ(with_ranks(shared, 3, "c.toml").cores_per_node, 2);
  const Cluster own = with_ranks(cluster_of(4, 4, 4), 2, "c.toml");
  EXPECT_EQ(cluster_from_toml(to_toml(own), "c.toml"), own);
  for (const char* const cores : {"0", "5", "1.5", "\"two\""}) {
    std::string text = to_toml(shared);
    text.replace(text.find("cores_per_node = 2"), 18, std::string("cores_per_node = ") + cores);
    EXPECT_THAT(
        test::refusal([&] { cluster_from_toml(text, "c.toml"); }),
        testing::HasSubstr("c.toml: cores_per_node: expected a whole number from 1 to 4, found"))
        << cores;
  }
}

}  // namespace
}  // namespace paradyse
