// Seconds without overlap: the sum that simulate() takes is the one that planners ask for, and the
// event simulation is below it where ranks are alike.
#include "src/plan/simulate/additive.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "paradyse/plan/simulate.h"
#include "src/plan/model/text/text_shape.h"
#include "src/plan/plan/group_timeline.h"
#include "src/plan/simulate/choices.h"
#include "tests/plan/random_groups.h"
#include "tests/plan/small_cluster.h"
#include "tests/support/sanitized.h"

namespace paradyse {
namespace {

// Heads and widths that 2, 4 and 8 ranks divide.
TextShape even_model() {
  TextShape m;
  m.layers = 3;
  m.hidden = 64;
  m.heads = 8;
  m.kv_heads = 8;
  m.head_dim = 8;
  m.ffn = 160;
  m.vocab = 128;
  return m;
}

std::vector<LayerChoice> alike(const LayerChoice& choice) {
  return std::vector<LayerChoice>(3, choice);
}

std::vector<int> ranks_from(int first, int count) {
  std::vector<int> ranks(static_cast<std::size_t>(count));
  std::iota(ranks.begin(), ranks.end(), first);
  return ranks;
}

// Every attention strategy that runs on so many ranks, at every level, with every verb that suits.
std::vector<LayerChoice> choices_for(int ranks, int domain) {
  std::vector<LayerChoice> all;
  for (const Strategy& strategy : strategies("attention")) {
    for (const Verb verb : kVerbs) {
      for (const Recompute level : kRecomputeLevels) {
        const bool whole = ranks == domain;
        if ((strategy.one_rank && ranks > 1) ||
            (!whole && (verb != Verb::gather || strategy.verb != Verb::gather))) {
          continue;
        }
        all.push_back(text_layer(strategy.name, to_string(verb), level, level));
        part_of(all.back(), "mlp").offload = level == Recompute::light;
      }
    }
  }
  return all;
}

double working(const Simulation& simulation) {
  return simulation.seconds - simulation.gradient_seconds - simulation.optimizer_seconds;
}

// One op after the other: forward, recomputed, backward; of the slowest rank.  Exchanges take no
// time.
TEST(Additive, SumsWhatRanksCompute) {
  const TextShape m = even_model();
  Cluster c = small_cluster(4);
  c.inside_node = c.between_nodes = {.bytes_per_second = 1e300, .latency_seconds = 0};
  AdditiveCosts costs(c);
  const Precision precision{.activation = 2, .statistic = 4};
  for (const LayerChoice& choice : choices_for(3, 4)) {
    LayerChoice stays = choice;
    part_of(stays, "mlp").offload = false;
    const GroupTask task{
        .layers = runs_of(alike(stays)),
        .lengths = {37, 5},
        .ranks = 3,
        .shares = {},
        .weight_domain = 4};
    double slowest = 0;
    for (int r = 0; r < 3; ++r) {
      double sum = 0;
      for (const ScheduledPart& part : timeline(task, text_model(m))) {
        for (const auto* steps : part.schedule().passes()) {
          for (const ScheduledOp& step : *steps) {
            const Op& op = part.program().ops[static_cast<std::size_t>(step.op)];
            const OpView view{
                part.program(),
                op,
                {.group_rank = r, .domain_rank = r + 1},
                step.adjoint ? Phase::adjoint : Phase::forward,
                precision};
            // A ring's hops are rooflines of their own.
            sum += traits(op.kind).rings > 0 ? compute_seconds(view, c.device(0))
                                             : seconds(work(view), c.device(0), precision);
          }
        }
      }
      slowest = std::max(slowest, sum);
    }
    const AdditiveSeconds found = costs.seconds(task, {1, 2, 3}, text_model(m));
    EXPECT_NEAR(found.group, slowest, 1e-12 * slowest) << name(choice);
    EXPECT_LT(found.weights, 1e-12 * slowest);
  }
}

// Computing takes no time: what a group of two nodes sends, by hand.  UlyssesZ sends q, k and v
// there and o back, forward and backward; weights are gathered twice and their gradients summed
// once.
TEST(Additive, SumsWhatGroupsExchange) {
  TextShape m = even_model();
  m.layers = 5;
  Cluster c = small_cluster(4);
  c.devices[0].matmul_flops_per_second = c.devices[0].memory_bytes_per_second = 1e300;
  c.devices[0].launch_seconds = 0;
  AdditiveCosts costs(c);
  const double T = 256;
  const double H = 64;
  const GroupTask task{
      .layers = runs_of(std::vector<LayerChoice>(5, text_layer("UlyssesZ", "gather"))),
      .lengths = {256},
      .ranks = 4,
      .shares = {},
      .weight_domain = 4};
  // Of its T/4 rows of width w a rank gives each other a quarter of the columns, two bytes each;
  // half of what a rank has goes to the other node, and its links are used by two.
  const auto all_to_all = [&](double w) {
    const double of_rank = T / 4 * w * 2;
    return 2 * 5e-6 + std::max(0.75 * of_rank / 1e10, 2 * of_rank / 2 / (2 * 1e9));
  };
  const AdditiveSeconds found = costs.seconds(task, {0, 1, 2, 3}, text_model(m));
  EXPECT_NEAR(found.group, 5 * 2 * (all_to_all(3 * H) + all_to_all(H)), 1e-9 * found.group);
  // Of a gathered matrix half enters a node, over two links; sums as much, in two bytes; of the
  // vocabulary in four.
  const auto domain = [&](double elements, double bytes) {
    return 2 * 5e-6 + std::max(0.75 * elements * bytes / 1e10, elements / 2 * bytes / (2 * 1e9));
  };
  const double layer = 3 * domain(4 * H * H, 2) + 3 * domain(3 * H * 160, 2);
  const double ends = 2 * (domain(128 * H, 2) + domain(128 * H, 4));
  EXPECT_NEAR(found.weights, 5 * layer + ends, 1e-9 * found.weights);
}

// One rank of many is asked where all do the same; that is what all would say.
TEST(Additive, AsksOneRankWhereAllDoTheSame) {
  const Model model = text_model(even_model());
  const Cluster c = small_cluster(16, 4);
  for (const int p : test::kSanitized ? std::vector{3, 4} : std::vector{1, 2, 3, 4, 6, 8}) {
    for (const LayerChoice& choice : choices_for(p, 16)) {
      for (const std::int64_t length : {96L, 480L, 97L, 3L}) {
        const GroupTask task{
            .layers = runs_of(alike(choice)),
            .lengths = {length, 2 * length},
            .ranks = p,
            .shares = {},
            .weight_domain = 16};
        const std::vector<int> ranks = ranks_from(3, p);
        AdditiveCosts known(c);
        known.seconds(task, ranks, model);  // tables are there
        const AdditiveSeconds found = known.seconds(task, ranks, model);
        AdditiveCosts fresh(c);
        const AdditiveSeconds wanted =
            fresh.group(timeline(task, model), {.ranks = ranks, .domain_first = 0, .domain = 16})
                .seconds();
        EXPECT_NEAR(found.group, wanted.group, 1e-12 * wanted.group)
            << name(choice) << " on " << p << " of " << length;
        EXPECT_EQ(found.weights, wanted.weights);
      }
    }
  }
}

// Gathers are of the domain: no group, strategy, level or document changes them.
TEST(Additive, WeightsAreTheSameForAllGroups) {
  const Model model = text_model(even_model());
  const Cluster c = small_cluster(8, 4);
  AdditiveCosts costs(c);
  const auto weights = [&](const LayerChoice& choice, std::vector<std::int64_t> lengths, int p) {
    const GroupTask task{
        .layers = runs_of(alike(choice)),
        .lengths = std::move(lengths),
        .ranks = p,
        .shares = {},
        .weight_domain = 8};
    return costs.seconds(task, ranks_from(8 - p, p), model).weights;
  };
  const double wanted = weights(text_layer("DataZ", "gather"), {}, 1);
  EXPECT_GT(wanted, 0);
  for (const int p : {1, 2, 3, 5, 8}) {
    for (const LayerChoice& choice : choices_for(p, 16)) {  // those that gather
      EXPECT_NEAR(weights(choice, {70, 3}, p), wanted, 1e-12 * wanted) << name(choice) << p;
    }
  }
}

// simulate() takes the sum, micro-batch by micro-batch, and domain by domain.
void expect_sum(const Plan& plan, const TextShape& m, const Cluster& c) {
  const Simulation found = simulate(plan, m, c, {.additive = true});
  const Model model = text_model(m);
  AdditiveCosts costs(c);
  double longest = 0;
  for (int first = 0; first < plan.ranks; first += plan.weight_domain) {
    double sum = 0;
    for (std::size_t b = 0; b < plan.micro_batches.size(); ++b) {
      AdditiveSeconds slowest;
      for (std::size_t g = 0; g < plan.micro_batches[b].groups.size(); ++g) {
        const PlanGroup& group = plan.micro_batches[b].groups[g];
        if (group.ranks[0] < first || group.ranks[0] >= first + plan.weight_domain) {
          continue;
        }
        const AdditiveSeconds one =
            costs.seconds(group_task(plan, group, true), group.ranks, model);
        EXPECT_NEAR(found.micro_batches[b].group_seconds[g], one.sum(), 1e-9 * one.sum());
        slowest = {
            .group = std::max(slowest.group, one.group),
            .weights = std::max(slowest.weights, one.weights)};
      }
      sum += slowest.sum();
    }
    longest = std::max(longest, sum);
  }
  EXPECT_NEAR(working(found), longest, 1e-12 * longest);
  double of_micro_batches = 0;
  for (const SimulatedMicroBatch& micro_batch : found.micro_batches) {
    of_micro_batches += micro_batch.seconds;
  }
  EXPECT_NEAR(working(found), of_micro_batches, 1e-12 * longest);
  for (const SimulatedRank& rank : found.ranks) {
    EXPECT_NEAR(
        rank.seconds,
        rank.compute_seconds + rank.exposed_seconds + rank.idle_seconds,
        1e-9 * rank.seconds);
    EXPECT_GE(rank.idle_seconds, -1e-12);
  }
}

TEST(Additive, MakespanIsTheSumOfItsFigures) {
  const TextShape m = random_groups_model();
  for (unsigned seed = 0; seed < (test::kSanitized ? 12 : 60); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const Plan plan =
        random_groups(random, m, {.ranks = 6, .domains = 1 + static_cast<int>(seed % 2)});
    ASSERT_THAT(problems(plan, {.model = m}), testing::IsEmpty());
    expect_sum(plan, m, small_cluster(plan.ranks));
  }
}

// Bytes, traffic, operations and memory do not depend on what overlaps.
TEST(Additive, CountsWhatTheEventsCount) {
  const TextShape m = random_groups_model();
  for (unsigned seed = 0; seed < (test::kSanitized ? 8 : 40); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const Plan plan = random_groups(random, m, {.ranks = 5, .domains = 1});
    const Simulation events = simulate(plan, m, small_cluster(plan.ranks));
    const Simulation sums = simulate(plan, m, small_cluster(plan.ranks), {.additive = true});
    EXPECT_EQ(sums.tokens, events.tokens);
    EXPECT_EQ(sums.gradient_seconds, events.gradient_seconds);
    EXPECT_EQ(sums.optimizer_seconds, events.optimizer_seconds);
    EXPECT_NEAR(sums.model_flops, events.model_flops, 1e-9 * events.model_flops);
    for (std::size_t r = 0; r < events.ranks.size(); ++r) {
      EXPECT_EQ(sums.ranks[r].as, events.ranks[r].as);
      EXPECT_EQ(sums.ranks[r].traffic, events.ranks[r].traffic);
      EXPECT_EQ(sums.ranks[r].bytes, events.ranks[r].bytes);
      EXPECT_EQ(sums.ranks[r].missing_bytes, events.ranks[r].missing_bytes);
      EXPECT_NEAR(
          sums.ranks[r].compute_seconds,
          events.ranks[r].compute_seconds,
          1e-9 * events.ranks[r].compute_seconds);
    }
  }
}

// Where ranks and groups are alike, nobody waits for another, and what overlaps is gained.
TEST(Additive, IsAnUpperBoundWhereAllAreAlike) {
  const TextShape m = even_model();
  const Cluster c = small_cluster(8, 4);
  int below = 0;
  for (const int p : {1, 2, 4, 8}) {
    for (const LayerChoice& choice : choices_for(p, 8)) {
      Plan plan = uniform_plan(m, std::vector<std::int64_t>(8, 64), 8, alike(choice));
      plan.micro_batches[0].groups.clear();
      for (int first = 0; first < 8; first += p) {
        PlanGroup group{.ranks = ranks_from(first, p), .documents = {}, .program = "all"};
        for (int d = first; d < first + p; ++d) {
          group.documents.push_back(d);
        }
        plan.micro_batches[0].groups.push_back(group);
      }
      plan.micro_batches.push_back(plan.micro_batches[0]);
      plan.lengths.insert(plan.lengths.end(), 8, 128);
      for (PlanGroup& group : plan.micro_batches[1].groups) {
        for (std::int64_t& document : group.documents) {
          document += 8;
        }
      }
      ASSERT_THAT(problems(plan), testing::IsEmpty()) << name(choice);
      const Simulation events = simulate(plan, m, c);
      const Simulation sums = simulate(plan, m, c, {.additive = true});
      EXPECT_LE(events.seconds, sums.seconds * (1 + 1e-12)) << name(choice) << " on " << p;
      below += events.seconds < 0.99 * sums.seconds ? 1 : 0;
      for (std::size_t b = 0; b < 2; ++b) {
        EXPECT_LE(events.micro_batches[b].seconds, sums.micro_batches[b].seconds * (1 + 1e-12));
      }
    }
  }
  EXPECT_GT(below, 20);  // gathers run beside compute
}

// One rank with nobody beside it has nothing to overlap.
TEST(Additive, IsExactOnOneRank) {
  const TextShape m = even_model();
  for (const LayerChoice& choice : choices_for(1, 1)) {
    const Plan plan = uniform_plan(m, {300, 17}, 1, alike(choice));
    const Simulation events = simulate(plan, m, small_cluster(1));
    EXPECT_NEAR(
        events.seconds,
        simulate(plan, m, small_cluster(1), {.additive = true}).seconds,
        1e-12 * events.seconds)
        << name(choice);
  }
}

// Groups that are slow in different parts wait for each other at every gather: then events take
// longer than the sum, which sees only the slowest group.  By how much is bounded: no longer than
// all groups one after the other.
TEST(Additive, IsPassedWhereGroupsAreSlowInTurn) {
  TextShape m = even_model();
  m.ffn = 640;
  Cluster c = small_cluster(2);
  c.inside_node = {.bytes_per_second = 1e300, .latency_seconds = 0};
  c.devices[0].memory_bytes_per_second = 1e300;
  c.devices[0].launch_seconds = 0;
  // One long document (attention is slow) beside many short ones (products are).
  Plan plan = uniform_plan(m, {}, 2, alike(text_layer("DataZ", "gather")));
  plan.lengths = {4096};
  plan.lengths.insert(plan.lengths.end(), 60, 128);
  plan.micro_batches[0].groups = {
      {.ranks = {0}, .documents = {0}, .program = "all"},
      {.ranks = {1}, .documents = {}, .program = "all"}};
  for (std::int64_t d = 1; d <= 60; ++d) {
    plan.micro_batches[0].groups[1].documents.push_back(d);
  }
  ASSERT_THAT(problems(plan), testing::IsEmpty());
  const Simulation events = simulate(plan, m, c);
  const Simulation sums = simulate(plan, m, c, {.additive = true});
  EXPECT_GT(working(events), 1.01 * working(sums));
  const std::vector<double>& groups = sums.micro_batches[0].group_seconds;
  EXPECT_LE(working(events), groups[0] + groups[1]);
  EXPECT_EQ(events.micro_batches[0].slowest(), sums.micro_batches[0].slowest());
}

TEST(Additive, RefusesRanksThatAreNone) {
  const Model model = text_model(even_model());
  const Cluster c = small_cluster(8);
  AdditiveCosts costs(c);
  const GroupTask task{
      .layers = runs_of(alike(text_layer("UlyssesZ", "gather"))),
      .lengths = {8},
      .ranks = 2,
      .shares = {},
      .weight_domain = 4};
  for (const std::vector<int>& ranks :
       std::vector<std::vector<int>>{{}, {0}, {1, 0}, {1, 1}, {-1, 0}, {3, 4}, {7, 8}, {0, 1, 2}}) {
    EXPECT_THROW(costs.seconds(task, ranks, model), std::invalid_argument);
  }
  EXPECT_GT(costs.seconds(task, {4, 7}, model).sum(), 0);
}

}  // namespace
}  // namespace paradyse
