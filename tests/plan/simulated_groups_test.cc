// Groups of any size side by side, and idle ranks, through the checker and the simulator: nobody
// waits for ever, and what is counted is what the folds count.
#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "paradyse/plan/batch_planner.h"
#include "paradyse/plan/simulate.h"
#include "src/plan/model/text/text_shape.h"
#include "src/plan/plan/group_timeline.h"
#include "tests/plan/random_groups.h"
#include "tests/plan/small_cluster.h"
#include "tests/support/grid_shapes.h"
#include "tests/support/sanitized.h"

namespace paradyse {
namespace {

// What the folds say of a rank over all micro-batches.
struct Folded {
  Traffic traffic;
  double model_flops = 0;
  std::int64_t peak_bytes = 0;
};

Folded folded(const Plan& plan, const Model& model, int rank, Precision precision) {
  Folded sum;
  for (const PlanMicroBatch& micro_batch : plan.micro_batches) {
    const RankPart part = rank_part(plan, micro_batch, model, rank, true);
    const Totals all = totals(part.timeline, part.seat, precision);
    sum.traffic += all.traffic;
    sum.model_flops +=
        all.forward.matmul_flops + all.backward.matmul_flops + 3 * all.forward.attention_flops;
    const std::int64_t held = stored_elements(model, plan.weight_domain, part.seat.domain_rank) *
                              precision.of_weight(Keeps::optimizer);
    sum.peak_bytes =
        std::max(sum.peak_bytes, footprint(part.timeline, part.seat, precision, held).peak_bytes);
  }
  return sum;
}

TEST(SimulatedGroups, CountWhatTheFoldsCount) {
  const TextShape m = random_groups_model();
  const Model model = text_model(m);
  std::set<std::size_t> sizes;
  int idle = 0;
  int side_by_side = 0;
  constexpr int kPlans = test::kSanitized ? 40 : 150;
  for (unsigned seed = 0; seed < kPlans; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const Plan plan = random_groups(
        random,
        m,
        {.ranks = 2 + static_cast<int>(seed % 7), .domains = 1 + static_cast<int>(seed % 3)});
    const SimulationOptions options{
        .precision = seed % 2 == 0 ? Precision{.activation = 2, .statistic = 4} : Precision{}};
    ASSERT_THAT(problems(plan, {.model = m, .precision = options.precision}), testing::IsEmpty());
    for (const PlanMicroBatch& micro_batch : plan.micro_batches) {
      std::set<std::size_t> here;
      for (const PlanGroup& group : micro_batch.groups) {
        here.insert(group.ranks.size());
        idle += group.documents.empty() ? 1 : 0;
      }
      side_by_side += here.size() > 1 ? 1 : 0;
      sizes.insert(here.begin(), here.end());
    }
    const Cluster c = small_cluster(plan.ranks, 1 + static_cast<int>(seed % 4));
    const Simulation found = simulate(plan, m, c, options);
    double longest = 0;
    for (const SimulatedRank& rank : found.ranks) {
      const int number = static_cast<int>(&rank - found.ranks.data());
      const Folded wanted = folded(plan, model, number, options.precision);
      EXPECT_EQ(rank.traffic, wanted.traffic) << "rank " << number;
      EXPECT_EQ(rank.peak_bytes(), wanted.peak_bytes) << "rank " << number;
      EXPECT_NEAR(rank.model_flops, wanted.model_flops, 1e-6 * wanted.model_flops);
      EXPECT_NEAR(
          rank.seconds,
          rank.compute_seconds + rank.exposed_seconds + rank.idle_seconds,
          1e-9 * rank.seconds);
      longest = std::max(longest, rank.seconds);
    }
    double of_micro_batches = 0;
    ASSERT_EQ(found.micro_batches.size(), plan.micro_batches.size());
    for (std::size_t b = 0; b < found.micro_batches.size(); ++b) {
      const SimulatedMicroBatch& one = found.micro_batches[b];
      of_micro_batches += one.seconds;
      ASSERT_EQ(one.group_seconds.size(), plan.micro_batches[b].groups.size());
      if (seed % 3 == 0) {  // one domain: nobody is busy longer than the micro-batch takes
        EXPECT_LE(one.group_seconds[one.slowest()], one.seconds * (1 + 1e-9));
      }
    }
    EXPECT_NEAR(of_micro_batches, longest, 1e-9 * longest);
  }
  // the plans were what this is about
  EXPECT_EQ(sizes, (std::set<std::size_t>{1, 2, 3, 4, 5, 6, 7, 8}));
  EXPECT_GT(idle, kPlans / 2);
  EXPECT_GT(side_by_side, kPlans);
}

// Sums of gradients go out in another type where an MLP takes its tokens in tiles; ranks that send
// and await unlike many bytes would wait for ever or mix them up.
TEST(SimulatedGroups, SendTheSameTypesOverTheDomain) {
  const TextShape m = random_groups_model();
  Plan plan;
  plan.layers = m.layers;
  plan.ranks = plan.weight_domain = 2;
  plan.lengths = {9, 8};
  LayerChoice layer = text_layer("DataZ", "gather");
  const auto program = [&] { return runs_of(std::vector<LayerChoice>(3, layer)); };
  plan.programs["plain"] = program();
  part_of(layer, "mlp").options["token_tiles"] = 3;
  plan.programs["tiled"] = program();
  plan.micro_batches = {
      {.groups =
           {{.ranks = {0}, .documents = {0}, .program = "plain"},
            {.ranks = {1}, .documents = {1}, .program = "tiled"}},
       .predicted = {}}};
  const Precision narrow{.activation = 2, .statistic = 4};
  EXPECT_THAT(problems(plan, {.model = m}), testing::IsEmpty());  // in float32 they are the same
  EXPECT_THAT(
      problems(plan, {.model = m, .precision = narrow}),
      testing::ElementsAre(testing::AllOf(
          testing::StartsWith("micro_batches[0].groups[1]: layer 2 mlp: gather_weights backward"),
          testing::HasSubstr("sends 4 bytes an element over sharding group 0"),
          testing::HasSubstr("that of micro_batches[0].groups[0] 2"))));
  EXPECT_THROW(
      simulate(plan, m, small_cluster(2, 2), {.precision = narrow}), std::invalid_argument);
  EXPECT_THROW(
      simulate(plan, m, small_cluster(2, 2), {.precision = narrow, .additive = true}),
      std::invalid_argument);
  EXPECT_GT(simulate(plan, m, small_cluster(2, 2), {.precision = {}}).seconds, 0);
  plan.micro_batches[0].groups[0].program = "tiled";
  EXPECT_THAT(problems(plan, {.model = m, .precision = narrow}), testing::IsEmpty());
  EXPECT_GT(simulate(plan, m, small_cluster(2, 2), {.precision = narrow}).seconds, 0);
}

// Sharding groups whose samples have as many rows in other dims, or whose ranks lie otherwise, are
// not alike: it does not matter which comes first.
TEST(SimulatedGroups, TellDimsAndMeshesApart) {
  const Model model = test::small_stdit(1);
  const DimSizes few = {{"frames", 2}, {"patches", 32}};
  const DimSizes many = {{"frames", 8}, {"patches", 8}};
  const BatchSizes one{.lengths = {model.rows(few)}, .dims = {few}};
  const Plan alone =
      batch_planner({.model = model, .ranks = 2, .machine = {}, .batch_planner = "groups-of-all"})
          ->plan(one)
          .plan.value();
  const auto both = [&](const DimSizes& first, const DimSizes& second) {
    Plan plan = alone;
    plan.ranks = 4;
    plan.messages = {};
    plan.lengths = {model.rows(few), model.rows(many)};
    plan.dims.clear();
    PlanGroup group = plan.micro_batches.front().groups.front();
    group.ranks = {0, 1};
    group.documents = {0};
    group.dims = first;
    PlanGroup other = group;
    other.ranks = {2, 3};
    other.documents = {1};
    other.dims = second;
    plan.micro_batches = {{.groups = {group, other}, .predicted = {}}};
    EXPECT_THAT(problems(plan, {.model = model}), testing::IsEmpty());
    return simulate(plan, model, small_cluster(4, 2));
  };
  const Simulation first = both(few, many);
  const Simulation second = both(many, few);
  EXPECT_DOUBLE_EQ(first.seconds, second.seconds);
  EXPECT_DOUBLE_EQ(first.model_flops, second.model_flops);
  EXPECT_NE(both(few, few).model_flops, both(many, many).model_flops);
}

}  // namespace
}  // namespace paradyse
