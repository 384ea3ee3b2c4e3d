// Groups of samples of multi-axis models on a described cluster: plans are sound, take what they
// predict where nothing overlaps, and no longer than all ranks for every sample.
#include "src/plan/simulate/sample_space.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <random>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "paradyse/plan/batch_planner.h"
#include "paradyse/plan/detail/index.h"
#include "paradyse/plan/simulate.h"
#include "src/plan/search/grouping/batch.h"
#include "src/plan/search/layouts/sample_units.h"
#include "src/plan/search/layouts/samples.h"
#include "src/plan/simulate/batch_question.h"
#include "tests/plan/small_cluster.h"
#include "tests/support/grid_shapes.h"
#include "tests/support/refusal.h"
#include "tests/support/sanitized.h"

namespace paradyse {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

constexpr Precision kHalfOfSamples{.activation = 2, .statistic = 4};

struct Ranks {
  int all = 1;
  int node = 1;
};

std::vector<Ranks> many_ranks() {
  return test::kSanitized ? std::vector<Ranks>{{4, 2}}
                          : std::vector<Ranks>{{1, 1}, {2, 2}, {3, 3}, {4, 2}, {6, 3}, {8, 4}};
}

// Slow enough that sizes of groups matter to samples as small as these.
Cluster cluster_of(Ranks ranks) {
  Cluster cluster = small_cluster(ranks.all, ranks.node);
  DeviceClass& device = cluster.devices.front();
  device.matmul_flops_per_second /= 1e4;
  device.float32_flops_per_second /= 1e4;
  device.memory_bytes_per_second /= 1e4;
  return cluster;
}

BatchSizes batch_of(const Model& model, const std::vector<DimSizes>& samples) {
  BatchSizes batch;
  for (const DimSizes& given : samples) {
    batch.dims.push_back(with_pairs(model, given));
    batch.lengths.push_back(model.rows(batch.dims.back()));
  }
  return batch;
}

// Few sizes, some of them many times.
BatchSizes random_batch(const Model& model, std::mt19937& random, int samples) {
  const bool video = model.has_dim("frames");
  const auto draw = [&](int most) { return std::uniform_int_distribution(1, most)(random); };
  std::vector<DimSizes> sizes;
  for (int i = 0; i < 3; ++i) {
    sizes.push_back(
        video ? DimSizes{{"frames", draw(16)}, {"patches", draw(40)}}
              : DimSizes{{"sequences", draw(12)}, {"residues", draw(24)}});
  }
  std::vector<DimSizes> all;
  for (int i = 0; i < samples; ++i) {
    all.push_back(sizes[idx(draw(3) - 1)]);
  }
  return batch_of(model, all);
}

std::int64_t peak(const Plan& plan, const Model& model) {
  std::int64_t most = 0;
  for (const PredictedBytes& bytes : bytes_of_ranks(plan, model, kHalfOfSamples)) {
    most = std::max(most, bytes.total());
  }
  return most;
}

double additive_seconds(const Plan& plan, const Model& model, const Cluster& cluster) {
  return simulate(
             plan,
             model,
             cluster,
             {.precision = kHalfOfSamples, .proportional_tokens = false, .additive = true})
      .seconds;
}

// A plan of these spaces is sound, has every sample, fits, and takes what it says.
Plan expect_sound(
    const Model& model,
    const Cluster& cluster,
    const ClusterSpaceOptions& options,
    const BatchSizes& batch,
    const std::vector<GroupSpace>& spaces,
    const char* planner = "fast") {
  const PlannedBatch planned = plan_batch(spaces, grouping_planner(planner), {});
  EXPECT_TRUE(planned.plan) << planned.why_not;
  const Plan& plan = planned.plan.value();
  EXPECT_EQ(sizes_of(plan), batch);
  EXPECT_THAT(problems(plan, {.model = model, .precision = kHalfOfSamples}), IsEmpty());
  EXPECT_EQ(plan_from_json(to_json(plan), "again"), plan);
  EXPECT_LE(
      static_cast<double>(peak(plan, model)),
      static_cast<double>(cluster.devices.front().memory_bytes) * (1 - options.reserve));
  EXPECT_LE(*plan.predicted.lower_bound_seconds, planned.seconds);
  EXPECT_LT(planned.seconds, kNoRoomSeconds);
  const double sums = additive_seconds(plan, model, cluster);
  EXPECT_NEAR(sums, planned.seconds, 1e-6 * sums);
  return plan;
}

// Random batches on all ranks, in both spaces.
void expect_no_slower_than_all_ranks(const Model& model) {
  unsigned seed = 0;
  std::set<std::size_t> sizes_seen;
  for (const Ranks ranks : many_ranks()) {
    const Cluster cluster = cluster_of(ranks);
    for (const bool flexsp : {true, false}) {
      std::mt19937 random(++seed);
      SCOPED_TRACE(
          testing::Message() << "seed " << seed << ", " << ranks.all << " ranks, flexsp "
                             << flexsp);
      const BatchSizes batch = random_batch(model, random, test::kSanitized ? 4 : 9);
      const ClusterSpaceOptions options{
          .flexsp = flexsp, .simulation = {.precision = kHalfOfSamples}};
      const std::vector<GroupSpace> spaces = sample_spaces(model, cluster, options, batch).spaces;
      ASSERT_FALSE(spaces.empty());
      const Plan plan = expect_sound(model, cluster, options, batch, spaces);
      for (const PlanMicroBatch& micro : plan.micro_batches) {
        for (const PlanGroup& group : micro.groups) {
          sizes_seen.insert(group.ranks.size());
        }
      }
      // groups of all ranks, as training would plan them
      const Plan in_turn = batch_planner({.model = model,
                                          .ranks = ranks.all,
                                          .machine = {},
                                          .precision = kHalfOfSamples,
                                          .batch_planner = "groups-of-all"})
                               ->plan(batch)
                               .plan.value();
      EXPECT_LE(*plan.predicted.seconds, additive_seconds(in_turn, model, cluster) * (1 + 1e-9));
      for (const char* const rival : {"static", "homogeneous", "longest-first"}) {
        SCOPED_TRACE(rival);
        const Plan other = expect_sound(model, cluster, options, batch, spaces, rival);
        EXPECT_LE(*plan.predicted.seconds, *other.predicted.seconds * (1 + 1e-9));
      }
    }
  }
  EXPECT_GE(sizes_seen.size(), test::kSanitized ? 1U : 3U);
}

TEST(SampleSpace, PlansClips) { expect_no_slower_than_all_ranks(test::small_stdit(3)); }

TEST(SampleSpace, PlansAlignments) { expect_no_slower_than_all_ranks(test::small_evoformer(2)); }

bool in_tiles(const LayerRuns& program) {
  return std::ranges::any_of(program, [](const LayerRun& run) {
    return std::ranges::any_of(
        run.choice, [](const PartChoice& part) { return part.options.contains(kTilesOption); });
  });
}

// [by whether it has all ranks] Programs in tiles of groups that find room.
std::array<int, 2> programs_in_tiles(const std::vector<GroupSpace>& spaces) {
  std::array<int, 2> found{};
  for (const GroupSpace& space : spaces) {
    for (int t = 0; t < std::ssize(space.task.types); ++t) {
      for (int k = 0; k < space.task.documents(); ++k) {
        const bool all = space.task.types[idx(t)].ranks == space.task.ranks;
        found[all ? 1 : 0] += space.task.fits(t, space.task.lengths[idx(k)]) &&
                                      in_tiles(space.program({.type = t, .documents = {k}}))
                                  ? 1
                                  : 0;
      }
    }
  }
  return found;
}

// Where memory is short plans fit, and where there is none the advice does.  Groups beside others
// run nothing in tiles: in two-byte types they would send wider gradients than those.
TEST(SampleSpace, StaysWithinMemory) {
  for (const Model& model : {Model(test::small_stdit(3)), Model(test::small_evoformer(2))}) {
    std::mt19937 random(3);
    const BatchSizes batch = random_batch(model, random, 5);
    Cluster cluster = cluster_of({4, 2});
    const ClusterSpaceOptions options{.reserve = 0.1, .simulation = {.precision = kHalfOfSamples}};
    std::int64_t memory = cluster.devices.front().memory_bytes;
    int planned = 0;
    int tiled = 0;
    for (bool fits = true; fits; memory -= memory / 8) {
      cluster.devices.front().memory_bytes = memory;
      const SampleSpaces found = sample_spaces(model, cluster, options, batch);
      fits = !found.spaces.empty();
      if (fits) {
        const Plan plan = expect_sound(model, cluster, options, batch, found.spaces);
        memory = std::min(memory, peak(plan, model) * 10 / 9 + 1);
        const auto [beside_others, alone] = programs_in_tiles(found.spaces);
        EXPECT_EQ(beside_others, 0);
        tiled += alone;
        ++planned;
        continue;
      }
      EXPECT_THAT(found.why_not, HasSubstr("sample " + std::to_string(found.sample) + " ("));
      EXPECT_THAT(found.why_not, HasSubstr("finds no room: it needs"));
      EXPECT_FALSE(has_room(model, cluster, options, batch.dims[found.sample]));
      EXPECT_GT(found.needed_bytes, memory);
      cluster.devices.front().memory_bytes = found.needed_bytes;
      EXPECT_TRUE(has_room(model, cluster, options, batch.dims[found.sample]));
    }
    EXPECT_GE(planned, 4);
    EXPECT_GE(tiled, 1);
  }
}

// Small samples are at once where weights take longer than they do.
TEST(SampleSpace, RunsSmallClipsTogether) {
  const Model model = test::small_stdit(3);
  Cluster cluster = cluster_of({4, 2});
  cluster.inside_node.latency_seconds = 1e-2;
  cluster.between_nodes.latency_seconds = 1e-2;
  const BatchSizes batch =
      batch_of(model, std::vector<DimSizes>(13, {{"frames", 4}, {"patches", 9}}));
  const ClusterSpaceOptions options{.flexsp = true, .simulation = {.precision = kHalfOfSamples}};
  const SampleSpaces found = sample_spaces(model, cluster, options, batch);
  EXPECT_EQ(found.spaces.size(), 5U);  // 1, 2, 4, 8 and 13 at once
  const Plan plan = expect_sound(model, cluster, options, batch, found.spaces);
  EXPECT_EQ(plan.micro_batches.size(), 1U);
  EXPECT_EQ(plan.dims, batch.dims.front());
}

// The exact planner says how good the fast one is.
TEST(SampleSpace, IsPlannedExactly) {
  for (const Model& model : {Model(test::small_stdit(2)), Model(test::small_evoformer(1))}) {
    for (unsigned seed = 1; seed <= (test::kSanitized ? 1U : 4U); ++seed) {
      std::mt19937 random(seed);
      const Cluster cluster = cluster_of({4, 4});
      const BatchSizes batch = random_batch(model, random, 8);
      const ClusterSpaceOptions options{
          .flexsp = true, .simulation = {.precision = kHalfOfSamples}};
      std::vector<GroupSpace> spaces = sample_spaces(model, cluster, options, batch).spaces;
      spaces.resize(1);
      const PlannedBatch exact = plan_batch(spaces, exact_planner(), {});
      ASSERT_TRUE(exact.plan) << exact.why_not;
      EXPECT_TRUE(exact.optimal);
      const PlannedBatch fast =
          plan_batch(spaces, grouping_planner("fast"), {.tiny_exactly = false});
      EXPECT_GE(fast.seconds, exact.seconds * (1 - 1e-9)) << "seed " << seed;
      EXPECT_LE(fast.seconds, exact.seconds * 1.1) << "seed " << seed;
    }
  }
}

// Weights over each node: groups stay inside one, and gradients meet at the end.
TEST(SampleSpace, ShardsWeightsOverANode) {
  const Model model = test::small_stdit(3);
  const Cluster cluster = cluster_of({8, 4});
  std::mt19937 random(5);
  const BatchSizes batch = random_batch(model, random, 9);
  for (const bool overlapped : {false, true}) {
    const ClusterSpaceOptions options{
        .overlapped = overlapped, .weight_domain = 4, .simulation = {.precision = kHalfOfSamples}};
    const std::vector<GroupSpace> spaces = sample_spaces(model, cluster, options, batch).spaces;
    ASSERT_FALSE(spaces.empty());
    EXPECT_GT(spaces.front().batch_seconds, 0);
    const PlannedBatch planned = plan_batch(spaces, grouping_planner("fast"), {});
    const Plan& plan = planned.plan.value();
    EXPECT_EQ(plan.weight_domain, 4);
    EXPECT_EQ(plan.messages.overlap, overlapped);
    EXPECT_EQ(sizes_of(plan), batch);
    EXPECT_THAT(problems(plan, {.model = model, .precision = kHalfOfSamples}), IsEmpty());
    // domains wait for one another at the end alone
    if (!overlapped) {
      EXPECT_LE(additive_seconds(plan, model, cluster), planned.seconds * (1 + 1e-9));
    }
  }
}

// All devices count as the slowest and smallest.
TEST(SampleSpace, PlansUnlikeDevicesForTheWorst) {
  const Model model = test::small_stdit(3);
  Cluster worst = cluster_of({4, 2});
  Cluster unlike = worst;
  unlike.devices.push_back(unlike.devices.front());
  unlike.devices[0].count = unlike.devices[1].count = 2;
  unlike.devices[0].matmul_flops_per_second *= 3;
  unlike.devices[1].memory_bytes *= 2;
  std::mt19937 random(8);
  const BatchSizes batch = random_batch(model, random, 6);
  const ClusterSpaceOptions options{.simulation = {.precision = kHalfOfSamples}};
  const PlannedBatch planned =
      plan_batch(sample_spaces(model, unlike, options, batch).spaces, grouping_planner("fast"), {});
  EXPECT_LE(additive_seconds(planned.plan.value(), model, unlike), planned.seconds * (1 + 1e-9));
  EXPECT_NEAR(
      additive_seconds(*planned.plan, model, worst), planned.seconds, 1e-6 * planned.seconds);
}

TEST(SampleSpace, RefusesWhatItHasNot) {
  const Model model = test::small_stdit(2);
  const Cluster cluster = cluster_of({6, 3});
  const BatchSizes batch = batch_of(model, {{{"frames", 4}, {"patches", 9}}});
  EXPECT_THAT(
      test::refusal(
          [&] { sample_spaces(model, cluster, {.flexsp = true, .group_sizes = {5}}, batch); }),
      HasSubstr("--group-sizes 5: there are no such groups here; accepted: 1, 2, 3, 6"));
  EXPECT_THAT(
      test::refusal([&] { sample_spaces(model, cluster, {.weight_domain = 4}, batch); }),
      HasSubstr("4 ranks does not divide the cluster's 6:"));
  Cluster small = cluster;
  small.devices.front().memory_bytes = 4096;
  const std::string why =
      test::refusal([&] { samples_question({.model = model, .cluster = small}, batch); });
  EXPECT_THAT(why, HasSubstr("no plan: sample 0 (frames 4, patches 9) finds no room: it needs"));
  EXPECT_THAT(why, HasSubstr("it would fit with"));
}

}  // namespace
}  // namespace paradyse
