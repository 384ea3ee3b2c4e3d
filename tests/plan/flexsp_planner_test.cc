// The planner of batches over groups of any size, for a model whose costs are known; and the
// planner of borders, which it begins from, against enumeration.
#include <algorithm>
#include <cstdlib>
#include <functional>
#include <limits>
#include <memory>
#include <numeric>
#include <random>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "paradyse/plan/batch_planner.h"
#include "paradyse/plan/detail/index.h"
#include "src/plan/model/text/text_shape.h"
#include "src/plan/search/batch/document_planner.h"
#include "src/plan/search/batch/table.h"
#include "tests/support/sanitized.h"

namespace paradyse {
namespace {

TextShape model() {
  TextShape m;
  m.layers = 3;
  m.hidden = 128;
  m.heads = 4;
  m.kv_heads = 2;
  m.head_dim = 32;
  m.ffn = 352;
  m.vocab = 256;
  m.tied = true;
  return m;
}

PlanningTask task(const std::string& planner, int ranks, std::int64_t memory = 0) {
  PlanningTask t;
  t.model = model();
  t.ranks = ranks;
  t.machine.cores = ranks;
  t.memory_per_rank = memory;
  t.batch_planner = planner;
  return t;
}

std::vector<std::int64_t> long_tailed(unsigned seed, int count) {
  std::mt19937_64 random(seed);
  std::lognormal_distribution<double> length(5.5, 1.5);
  std::vector<std::int64_t> lengths;
  for (int i = 0; i < count; ++i) {
    lengths.push_back(
        std::clamp<std::int64_t>(static_cast<std::int64_t>(length(random)), 1, 16384));
  }
  return lengths;
}

std::set<std::size_t> group_sizes(const Plan& plan) {
  std::set<std::size_t> sizes;
  for (const PlanMicroBatch& micro : plan.micro_batches) {
    for (const PlanGroup& group : micro.groups) {
      sizes.insert(group.ranks.size());
    }
  }
  return sizes;
}

std::int64_t fullest(const Plan& plan, const PlanningTask& task) {
  std::int64_t most = 0;
  for (const PredictedBytes& one : bytes_of_ranks(plan, task.model, task.precision, true)) {
    most = std::max(most, one.total());
  }
  return most;
}

// Sound, within memory, each document once, and never predicted to be slower than borders.
TEST(FlexspPlanner, PlansAreSoundAndNoSlowerThanBorders) {
  int grouped = 0;
  const unsigned seeds =
      std::getenv("PARADYSE_TEST_LONG") != nullptr ? 100 : (test::kSanitized ? 5 : 15);
  for (unsigned seed = 1; seed <= seeds; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    const int ranks = 1 + static_cast<int>(random() % 6);
    const std::int64_t memory = seed % 3 == 0 ? std::int64_t{40} << 20 : 0;
    PlanningTask ours = task("groups", ranks, memory);
    PlanningTask borders = task("borders", ranks, memory);
    ours.machine.cores = borders.machine.cores = seed % 2 == 0 ? ranks : 2;
    if (seed % 5 == 0) {
      ours.precision = borders.precision = precision_of(Dtype::bfloat16);
    }
    const std::vector<std::int64_t> lengths =
        long_tailed(seed, 3 + static_cast<int>(random() % 10));
    const BatchPlanner::Answer answer = batch_planner(ours)->plan(lengths);
    const BatchPlanner::Answer other = batch_planner(borders)->plan(lengths);
    ASSERT_EQ(answer.plan.has_value(), other.plan.has_value()) << answer.why_not;
    if (!answer.plan) {
      EXPECT_EQ(answer.why_not, other.why_not);
      continue;
    }
    const TextShape shape = model();
    CheckContext context{.model = shape, .precision = ours.precision};
    if (memory > 0) {
      context.memory_per_rank = memory;
    }
    EXPECT_EQ(problems(*answer.plan, context), std::vector<std::string>{});
    EXPECT_LE(*answer.plan->predicted.seconds, *other.plan->predicted.seconds);
    for (const std::size_t size : group_sizes(*answer.plan)) {
      grouped += size > 1 && size < idx(ranks) ? 1 : 0;
    }
  }
  EXPECT_GT(grouped, 0);  // groups between one rank and all are chosen somewhere
}

// A document that is too much for one rank and little for all goes to two, beside another.
TEST(FlexspPlanner, PutsTwoMiddlingDocumentsSideBySide) {
  PlanningTask t = task("groups", 4);
  t.attention = "UlyssesZ";
  t.machine.collective_seconds = 2e-3;  // messages are dear, and more so among four
  t.machine.sent_bytes_per_second = 2e8;
  const BatchPlanner::Answer answer = batch_planner(t)->plan({6000, 6000});
  ASSERT_TRUE(answer.plan);
  EXPECT_TRUE(group_sizes(*answer.plan).contains(2)) << to_json(*answer.plan);
  EXPECT_EQ(answer.plan->micro_batches.size(), 1U);
}

// Long documents share a micro-batch where that is faster than one after the other.
TEST(FlexspPlanner, LetsLongDocumentsShareAMicroBatch) {
  PlanningTask t = task("groups", 2);
  t.machine.collective_seconds = 5e-3;
  t.machine.sent_bytes_per_second = 1e8;
  const BatchPlanner::Answer answer = batch_planner(t)->plan({5000, 5000, 4800, 4900});
  ASSERT_TRUE(answer.plan);
  EXPECT_EQ(answer.plan->micro_batches.size(), 1U) << to_json(*answer.plan);
}

// Groups of a weight domain agree on layers made again as a whole, so each that takes what fits it
// best leaves them alone: where plans of before fitted, there still is one.
TEST(FlexspPlanner, GroupsSideBySideAgreeOnWholeLayers) {
  const std::vector<std::int64_t> lengths = {9000, 200, 7000, 4000, 300, 5000};
  PlanningTask part_by_part = task("groups-of-2", 4);
  part_by_part.recompute = "full";
  for (std::int64_t memory = std::int64_t{64} << 20; memory > std::int64_t{8} << 20;
       memory -= memory / (test::kSanitized ? 3 : 8)) {
    part_by_part.memory_per_rank = memory;
    const bool fits = batch_planner(part_by_part)->plan(lengths).plan.has_value();
    const auto any = batch_planner(task("groups-of-2", 4, memory))->plan(lengths);
    EXPECT_GE(any.plan.has_value(), fits) << memory << ": " << any.why_not;
    PlanningTask whole = task("groups-of-2", 4, memory);
    whole.recompute = "layer+full";
    const auto least = batch_planner(whole)->plan(lengths);
    EXPECT_GE(least.plan.has_value(), fits) << memory << ": " << least.why_not;
    if (least.plan) {
      EXPECT_TRUE(problems(*least.plan).empty());
    }
  }
}

// Of very many documents short ones are planned in bundles: each is in one group all the same.
TEST(FlexspPlanner, PlansVeryManyDocuments) {
  std::vector<std::int64_t> lengths = long_tailed(11, 3);
  std::mt19937 random(11);
  for (int i = 0; i < 700; ++i) {
    lengths.push_back(1 + static_cast<std::int64_t>(random() % 40));
  }
  const TextShape shape = model();
  for (const auto& [planner, space] :
       {std::pair("groups", "groups"), std::pair("groups-of-all", "groups of 3 ranks")}) {
    const PlanningTask t = task(planner, 3, std::int64_t{64} << 20);
    const BatchPlanner::Answer answer = batch_planner(t)->plan(lengths);
    ASSERT_TRUE(answer.plan) << answer.why_not;
    EXPECT_EQ(answer.plan->lengths, lengths);
    EXPECT_THAT(answer.plan->planner_space, testing::StartsWith(space));
    EXPECT_EQ(
        problems(*answer.plan, {.model = shape, .memory_per_rank = t.memory_per_rank}),
        std::vector<std::string>{});
  }
}

// Bundles of very many documents leave a group's room to be filled.
TEST(FlexspPlanner, PlansVeryManyDocumentsThatFillTheirGroups) {
  PlanningTask t = task("groups-of-1", 2, 0);
  const std::int64_t few = fullest(*batch_planner(t)->plan({30, 30}).plan, t);
  t.memory_per_rank = few + few / 4;
  const std::vector<std::int64_t> lengths(test::kSanitized ? 600 : 1500, 10);
  const BatchPlanner::Answer answer = batch_planner(t)->plan(lengths);
  ASSERT_TRUE(answer.plan) << answer.why_not;
  EXPECT_EQ(
      problems(*answer.plan, {.model = t.model, .memory_per_rank = t.memory_per_rank}),
      std::vector<std::string>{});
}

// Of very many documents the longest are still told apart.
TEST(FlexspPlanner, SplitsTheOneLongDocumentOfVeryMany) {
  PlanningTask t = task("borders", 2, 0);
  std::vector<std::int64_t> lengths(1200, 8);
  lengths[700] = 900;
  t.memory_per_rank = fullest(*batch_planner(task("groups-of-all", 2))->plan({900}).plan, t);
  const Plan plan = batch_planner(t)->plan(lengths).plan.value();
  std::int64_t split = 0;
  for (const PlanMicroBatch& micro : plan.micro_batches) {
    for (const PlanGroup& group : micro.groups) {
      split += group.ranks.size() > 1 ? std::ssize(group.documents) : 0;
    }
  }
  EXPECT_EQ(split, 1);
}

TEST(FlexspPlanner, HasGroupsThatFillANode) {
  EXPECT_EQ(any_size(6), (std::vector{1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(any_size(9), (std::vector{1, 2, 3, 4, 8, 9}));
  EXPECT_EQ(any_size(12), (std::vector{1, 2, 3, 4, 6, 8, 12}));
  EXPECT_EQ(any_size(64), (std::vector{1, 2, 4, 8, 16, 32, 64}));
  EXPECT_EQ(sizes_over_nodes(9, 3), (std::vector{1, 2, 3, 4, 8, 9}));
  EXPECT_EQ(sizes_over_nodes(12, 4), (std::vector{1, 2, 4, 8, 12}));
  EXPECT_EQ(sizes_over_nodes(12, 6), (std::vector{1, 2, 3, 4, 6, 8, 12}));
}

TEST(FlexspPlanner, IsDeterministic) {
  const std::vector<std::int64_t> lengths = long_tailed(9, test::kSanitized ? 12 : 40);
  const auto plan = [&] { return *batch_planner(task("groups", 4))->plan(lengths).plan; };
  EXPECT_EQ(hash(plan()), hash(plan()));
}

// The slow twin of borders: every set of documents as the long ones, every deal of the others to
// ranks in one micro-batch, every layer, predicted exactly.
double enumerated(DocumentPlanner& planner, const std::vector<std::int64_t>& lengths) {
  DocumentPlans& documents = planner.documents();
  const int ranks = planner.task().ranks;
  std::vector<int> everyone(idx(ranks));
  std::iota(everyone.begin(), everyone.end(), 0);
  double best = std::numeric_limits<double>::infinity();
  const auto consider = [&](Plan plan) {
    documents.prediction().predict(plan);
    best = std::min(best, *plan.predicted.seconds);
  };
  for (unsigned split = 0; split < 1U << lengths.size(); ++split) {
    Plan plan;
    plan.ranks = plan.weight_domain = ranks;
    plan.layers = planner.task().model.layers;
    plan.lengths = lengths;
    std::vector<std::int64_t> whole;
    for (std::size_t d = 0; d < lengths.size(); ++d) {
      if ((split >> d & 1U) == 0) {
        whole.push_back(static_cast<std::int64_t>(d));
        continue;
      }
      const std::string key = "split " + std::to_string(d);
      plan.programs[key] = documents.best(lengths[d], ranks)->program;
      plan.micro_batches.push_back(
          {.groups =
               {{.ranks = everyone, .documents = {static_cast<std::int64_t>(d)}, .program = key}},
           .predicted = {}});
    }
    if (whole.empty()) {
      consider(plan);
      continue;
    }
    for (const LayerChoice& layer : documents.whole()) {
      plan.programs["whole"] = {{.layers = plan.layers, .choice = layer}};
      std::vector<std::vector<std::int64_t>> dealt(idx(ranks));
      const std::function<void(std::size_t)> deal = [&](std::size_t i) {
        if (i == whole.size()) {
          Plan full = plan;
          PlanMicroBatch& micro = full.micro_batches.emplace_back();
          for (int rank = 0; rank < ranks; ++rank) {
            micro.groups.push_back(
                {.ranks = {rank}, .documents = dealt[idx(rank)], .program = "whole"});
          }
          consider(std::move(full));
          return;
        }
        for (auto& of_rank : dealt) {
          of_rank.push_back(whole[i]);
          deal(i + 1);
          of_rank.pop_back();
        }
      };
      deal(0);
    }
  }
  return best;
}

// Dealing longest first is within a third of the best deal (Graham 1969), so borders are, too; and
// groups of any size are no slower than borders.
TEST(Borders, AreNearWhatEnumerationFinds) {
  for (unsigned seed = 1; seed <= (test::kSanitized ? 2U : 6U); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const int ranks = 1 + static_cast<int>(seed % 3);
    PlanningTask t = task("borders", ranks);
    t.recompute = "none";
    t.try_options = false;
    t.mix = false;
    const auto planner = document_planner(t);
    const std::vector<std::int64_t> lengths = long_tailed(seed, 2 + static_cast<int>(seed % 3));
    const double best = enumerated(*planner, lengths);
    const double found = *planner->plan(lengths).plan->predicted.seconds;
    EXPECT_GE(found, best * (1 - 1e-9));
    EXPECT_LE(found, best * 4 / 3);
    if (std::ssize(lengths) <= 2 || ranks == 1) {
      EXPECT_LE(found, best * 1.02);  // nothing to deal
    }
  }
}

}  // namespace
}  // namespace paradyse
