// Groups of a model on a described cluster: what a plan of them predicts is what the additive
// simulation takes, and what the folds count fits the devices.
#include "src/plan/simulate/cluster_space.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lab/grouping/rivals.h"
#include "paradyse/plan/cluster.h"
#include "paradyse/plan/detail/index.h"
#include "paradyse/plan/simulate.h"
#include "src/plan/model/text/text_shape.h"
#include "src/plan/search/grouping/batch.h"
#include "tests/support/random_lengths.h"
#include "tests/support/refusal.h"
#include "tests/support/sanitized.h"

namespace paradyse {
namespace {

const bool kWithRivals = (add_rivals(), true);  // are rows of the table

using testing::HasSubstr;
using testing::IsEmpty;

constexpr Precision kHalf{.activation = 2, .statistic = 4};

// A billion parameters or so; documents of it take what those of a real model take.
TextShape small_llama() {
  TextShape m;
  m.layers = 8;
  m.hidden = 2048;
  m.heads = 16;
  m.kv_heads = 8;
  m.head_dim = 128;
  m.ffn = 5632;
  m.vocab = 32'000;
  return m;
}

// configs/clusters/64xA100-40GB.toml, so many of its ranks and of its bytes.
Cluster a100(int ranks, std::int64_t memory_bytes, int ranks_per_node = 8) {
  return {
      .name = "A100",
      .ranks_per_node = std::min(ranks, ranks_per_node),
      .devices =
          {{.name = "A100-SXM4-40GB",
            .count = ranks,
            .matmul_flops_per_second = 312e12,
            .float32_flops_per_second = 19.5e12,
            .matmul_fraction = 0.7,
            .attention_fraction = 0.5,
            .memory_bytes_per_second = 1555e9,
            .memory_bytes = memory_bytes,
            .launch_seconds = 4e-6,
            .host_bytes_per_second = 25e9}},
      .inside_node = {.bytes_per_second = 250e9, .latency_seconds = 8e-6},
      .between_nodes = {.bytes_per_second = 6.25e9, .latency_seconds = 15e-6}};
}

constexpr std::int64_t kGiB = std::int64_t{1} << 30;

using test::random_lengths;

// The plan is sound, fits by the folds, and takes what it says within 2 % where nothing overlaps.
void expect_true_to_simulation(
    const TextShape& model,
    const Cluster& cluster,
    const ClusterSpaceOptions& options,
    const std::vector<std::int64_t>& lengths,
    const char* planner = "fast") {
  const PlannedBatch planned =
      plan_batch({cluster_space(model, cluster, options, lengths)}, grouping_planner(planner), {});
  ASSERT_TRUE(planned.plan) << planned.why_not;
  const Plan& plan = *planned.plan;
  EXPECT_EQ(plan.lengths, lengths);
  const auto limit = static_cast<std::int64_t>(
      static_cast<double>(cluster.devices.front().memory_bytes) * (1 - options.reserve));
  EXPECT_THAT(
      problems(plan, {.model = model, .memory_per_rank = limit, .precision = kHalf}), IsEmpty());
  const Simulation sums = simulate(plan, model, cluster, {.precision = kHalf, .additive = true});
  EXPECT_TRUE(sums.fits());
  EXPECT_GT(*plan.planner_seconds, 0);
  EXPECT_GT(*plan.predicted.lower_bound_seconds, 0);
  EXPECT_LE(*plan.predicted.lower_bound_seconds, *plan.predicted.seconds);
  EXPECT_NEAR(sums.seconds, *plan.predicted.seconds, 0.02 * sums.seconds);
}

struct Kind {
  const char* name = "";
  int documents = 0;
  double median = 0;
  double sigma = 0;
  std::int64_t most = 0;
};

// One rank, a node, nodes that come in twos and threes, ranks that do not divide the heads; batches
// of one micro-batch and of fourteen.
TEST(ClusterSpace, PlansTakeWhatTheyPredict) {
  const std::vector<Kind> kinds = {
      {.name = "code-like", .documents = 64, .median = 1200, .sigma = 1.66, .most = 30'000},
      {.name = "short", .documents = 128, .median = 300, .sigma = 1, .most = 4'000},
      {.name = "few", .documents = 5, .median = 3000, .sigma = 1, .most = 30'000},
      {.name = "long", .documents = 24, .median = 16'000, .sigma = 0.5, .most = 30'000}};
  struct Size {
    int ranks = 0;
    int node = 8;
    std::int64_t memory = 0;
  };
  const std::vector<Size> sizes = {
      {.ranks = 8, .memory = 9 * kGiB},
      {.ranks = 16, .memory = 6 * kGiB},
      {.ranks = 12, .node = 4, .memory = 16 * kGiB},
      {.ranks = 1, .memory = 24 * kGiB},
      {.ranks = 3, .memory = 16 * kGiB}};
  unsigned seed = 0;
  for (const Kind& kind : kinds) {
    for (const bool flexsp : {true, false}) {
      for (const Size& size : sizes) {
        std::mt19937 random(++seed);
        if (test::kSanitized && seed % 3 != 0) {
          continue;
        }
        SCOPED_TRACE(
            testing::Message() << kind.name << ", seed " << seed << ", " << size.ranks
                               << (flexsp ? " ranks, flexsp" : " ranks, full"));
        expect_true_to_simulation(
            small_llama(),
            a100(size.ranks, size.memory, size.node),
            {.flexsp = flexsp},
            random_lengths(random, kind.documents, kind.median, kind.sigma, kind.most));
      }
    }
  }
}

// Positions that are learned, biases, a tied head; hardly a token for each rank.
TEST(ClusterSpace, PlansOtherModels) {
  TextShape gpt;
  gpt.architecture = "gpt2";
  gpt.layers = 12;
  gpt.hidden = 768;
  gpt.heads = gpt.kv_heads = 12;
  gpt.head_dim = 64;
  gpt.ffn = 3072;
  gpt.vocab = 50'257;
  gpt.max_positions = 1024;
  gpt.tied = gpt.layer_norm = gpt.qkv_bias = gpt.out_bias = gpt.mlp_bias = true;
  gpt.learned_positions = true;
  gpt.activation = Activation::gelu_tanh;
  for (unsigned seed = 1; seed <= 3; ++seed) {
    std::mt19937 random(seed);
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    expect_true_to_simulation(
        gpt, a100(8, 4 * kGiB), {}, random_lengths(random, 300, 300, 1, 1024));
  }
  expect_true_to_simulation(small_llama(), a100(8, 16 * kGiB), {}, {3});
  expect_true_to_simulation(small_llama(), a100(8, 16 * kGiB), {}, std::vector<std::int64_t>(9, 1));
}

// Every rival plans on models as on presets.
TEST(ClusterSpace, ServesEveryPlanner) {
  std::mt19937 random(5);
  const std::vector<std::int64_t> lengths = random_lengths(random, 20, 1200, 1.66, 20'000);
  for (const char* planner :
       {"static",
        "homogeneous",
        "sorted",
        "best-fit",
        "longest-first",
        "karmarkar-karp",
        "megatron",
        "two-stage"}) {
    SCOPED_TRACE(planner);
    expect_true_to_simulation(
        small_llama(), a100(8, 16 * kGiB), {.flexsp = true}, lengths, planner);
  }
}

// Domains go their own way between the steps that share gradients: the plan says the slowest of
// each micro-batch, which is never less.
TEST(ClusterSpace, CutsWeightsOverANode) {
  const TextShape model = small_llama();
  const Cluster cluster = a100(16, 16 * kGiB);
  for (unsigned seed = 1; seed <= 3; ++seed) {
    std::mt19937 random(seed);
    const GroupSpace space = cluster_space(
        model, cluster, {.weight_domain = 8}, random_lengths(random, 64, 1200, 1.66, 30'000));
    for (const GroupType& type : space.task.types) {
      EXPECT_LE(type.ranks, 8);
    }
    EXPECT_GT(space.batch_seconds, 0);
    const PlannedBatch planned = plan_batch({space}, grouping_planner("fast"), {});
    ASSERT_TRUE(planned.plan) << planned.why_not;
    EXPECT_EQ(planned.plan->weight_domain, 8);
    EXPECT_THAT(
        problems(*planned.plan, {.model = model, .memory_per_rank = 15 * kGiB, .precision = kHalf}),
        IsEmpty());
    const Simulation sums =
        simulate(*planned.plan, model, cluster, {.precision = kHalf, .additive = true});
    EXPECT_LE(sums.seconds, 1.001 * *planned.plan->predicted.seconds) << "seed " << seed;
    EXPECT_GE(sums.seconds, 0.9 * *planned.plan->predicted.seconds) << "seed " << seed;
  }
}

// The first ranks are as they were, the others half as fast, with more memory.
Cluster unlike_a100(int ranks, int fast) {
  Cluster cluster = a100(ranks, 9 * kGiB);
  cluster.devices.push_back(cluster.devices.front());
  cluster.devices[0].count = fast;
  cluster.devices[1].count = ranks - fast;
  cluster.devices[1].name = "slow";
  cluster.devices[1].matmul_flops_per_second /= 2;
  cluster.devices[1].memory_bytes = 16 * kGiB;
  return cluster;
}

// Groups in pools of like devices take what they say, need no rank of other devices to wait, and
// leave none short of memory.
TEST(ClusterSpace, PlansUnlikeDevicesForWhatTheyAre) {
  const TextShape model = small_llama();
  struct Case {
    int ranks = 0;
    int fast = 0;
  };
  unsigned seed = 0;
  // pools of nodes, and pools that share one
  const std::vector<Case> all = {{8, 4}, {16, 8}, {16, 12}, {24, 5}};
  const std::vector<Case> few = {{8, 4}, {8, 3}};
  for (const Case& c : test::kSanitized ? few : all) {
    const Cluster unlike = unlike_a100(c.ranks, c.fast);
    std::mt19937 random(++seed);
    SCOPED_TRACE(testing::Message() << c.ranks << " ranks, " << c.fast << " of them fast");
    const std::vector<std::int64_t> lengths =
        random_lengths(random, 24 * c.ranks, 1200, 1.66, 20'000);
    const GroupSpace space = cluster_space(model, unlike, {}, lengths);
    const PlannedBatch planned = plan_batch({space}, grouping_planner("fast"), {});
    ASSERT_TRUE(planned.plan) << planned.why_not;
    EXPECT_THAT(problems(*planned.plan, {.model = model, .precision = kHalf}), IsEmpty());
    const Simulation sums = simulate(
        *planned.plan,
        model,
        unlike,
        {.precision = kHalf, .proportional_tokens = false, .additive = true});
    EXPECT_TRUE(sums.fits());
    EXPECT_NEAR(sums.seconds, planned.seconds, 0.02 * sums.seconds);
    EXPECT_LE(*planned.plan->predicted.lower_bound_seconds, planned.seconds);
    EXPECT_LT(planned.gap(), 0.15);
    // as if all were slow and small
    GroupSpace worst = space;
    worst.task = without_pools(worst.task);
    const PlannedBatch wary = plan_batch({worst}, grouping_planner("fast"), {});
    EXPECT_LT(planned.seconds, 0.95 * wary.seconds);
  }
}

// One that no pool has room for goes over all of them, beside what else fits there.
TEST(ClusterSpace, PlansLongDocumentsOverUnlikeDevices) {
  const TextShape model = small_llama();
  const Cluster unlike = unlike_a100(8, 4);
  std::mt19937 random(11);
  std::vector<std::int64_t> lengths = random_lengths(random, 200, 1200, 1.66, 20'000);
  std::int64_t most = 0;  // in a pool
  for (const GroupType& type : cluster_space(model, unlike, {}, {1}).task.types) {
    most = std::max(most, type.pool < 0 ? 0 : type.capacity);
  }
  lengths.push_back(most + 4096);
  const PlannedBatch planned =
      plan_batch({cluster_space(model, unlike, {}, lengths)}, grouping_planner("fast"), {});
  ASSERT_TRUE(planned.plan) << planned.why_not;
  const Simulation sums = simulate(
      *planned.plan,
      model,
      unlike,
      {.precision = kHalf, .proportional_tokens = false, .additive = true});
  EXPECT_TRUE(sums.fits());
  EXPECT_LE(sums.seconds, 1.02 * planned.seconds);
  EXPECT_GT(planned.grouping.micro_batches.size(), 1U);
}

// A planner that knows like devices alone is sound on unlike ones: all count as the worst.
TEST(ClusterSpace, ServesEveryPlannerOnUnlikeDevices) {
  const TextShape model = small_llama();
  const Cluster unlike = unlike_a100(8, 4);
  std::mt19937 random(7);
  const std::vector<std::int64_t> lengths = random_lengths(random, 40, 1200, 1.66, 20'000);
  const GroupSpace space = cluster_space(model, unlike, {}, lengths);
  const double ours = plan_batch({space}, grouping_planner("fast"), {}).seconds;
  for (const char* name : {"static", "homogeneous", "sorted", "best-fit", "longest-first"}) {
    SCOPED_TRACE(name);
    const PlannedBatch planned = plan_batch({space}, grouping_planner(name), {});
    ASSERT_TRUE(planned.plan) << planned.why_not;
    EXPECT_LE(ours, planned.seconds);
    const Simulation sums = simulate(
        *planned.plan,
        model,
        unlike,
        {.precision = kHalf, .proportional_tokens = false, .additive = true});
    EXPECT_TRUE(sums.fits());
    EXPECT_LE(sums.seconds, 1.02 * planned.seconds);
  }
  EXPECT_THAT(plan_batch({space}, grouping_planner("exact"), {}).why_not, HasSubstr("devices"));
}

// No type is worse than another of its size in everything, and the space flexsp has one a size.
TEST(ClusterSpace, KeepsWhatNothingBeats) {
  std::mt19937 random(3);
  const std::vector<std::int64_t> lengths = random_lengths(random, 64, 1200, 1.66, 30'000);
  const Cluster cluster = a100(16, 9 * kGiB);
  const GroupSpace full = cluster_space(small_llama(), cluster, {}, lengths);
  const GroupingTask& task = full.task;
  for (int a = 0; idx(a) < task.types.size(); ++a) {
    for (int b = 0; idx(b) < task.types.size(); ++b) {
      const GroupType& one = task.types[idx(a)];
      const GroupType& other = task.types[idx(b)];
      bool beats = a != b && one.ranks == other.ranks && one.capacity >= other.capacity &&
                   one.fixed_seconds <= other.fixed_seconds;
      for (int k = 0; k < task.documents() && beats; ++k) {
        beats = task.at(a, k) <= task.at(b, k);
      }
      EXPECT_FALSE(beats) << one.name << " beats " << other.name;
    }
  }
  EXPECT_EQ(task.node, 8);
  const GroupSpace published = cluster_space(small_llama(), cluster, {.flexsp = true}, lengths);
  std::vector<int> ranks;
  for (const GroupType& type : published.task.types) {
    ranks.push_back(type.ranks);
  }
  EXPECT_THAT(ranks, testing::ElementsAre(1, 2, 4, 8, 16));
}

// So much memory is enough, and not much more than enough.
TEST(ClusterSpace, SaysWhatMemoryADocumentNeeds) {
  const TextShape model = small_llama();
  for (const int ranks : test::kSanitized ? std::vector{3} : std::vector{1, 3, 8, 16}) {
    for (const bool flexsp : {true, false}) {
      const ClusterSpaceOptions options{.flexsp = flexsp};
      const std::int64_t needed = memory_for(model, a100(ranks, 1), options, 50'000);
      const GroupingTask enough = cluster_space(model, a100(ranks, needed), options, {50'000}).task;
      EXPECT_THAT(too_long(enough), IsEmpty()) << ranks << " ranks";
      const GroupingTask less =
          cluster_space(model, a100(ranks, needed - needed / 50), options, {50'000}).task;
      EXPECT_THAT(too_long(less), testing::ElementsAre(0)) << ranks << " ranks";
    }
  }
}

TEST(ClusterSpace, RefusesWhatCannotBe) {
  TextShape model = small_llama();
  EXPECT_THAT(
      test::refusal([&] { cluster_space(model, a100(8, 16 * kGiB), {.weight_domain = 3}, {5}); }),
      HasSubstr("a sharding group (weight_domain) of 3 ranks does not divide the cluster's 8"));
  EXPECT_THAT(
      test::refusal([&] { cluster_space(model, a100(1, 2 * kGiB), {}, {5}); }),
      HasSubstr("leaves no memory for a token"));
  EXPECT_THAT(
      test::refusal([&] { cluster_space(model, a100(8, 16 * kGiB), {}, {5, 0}); }),
      HasSubstr("at least 1"));
  model.learned_positions = true;
  model.max_positions = 100;
  EXPECT_THAT(
      test::refusal([&] { cluster_space(model, a100(8, 16 * kGiB), {}, {101}); }),
      HasSubstr("learned 100 positions"));
}

}  // namespace
}  // namespace paradyse
