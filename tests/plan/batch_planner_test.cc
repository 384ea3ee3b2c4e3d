// What is common to all planners of batches: the table, what the base class does for them, and
// costs, predictions and corrections of groups of any size.
#include "paradyse/plan/batch_planner.h"

#include <algorithm>
#include <array>
#include <memory>
#include <numeric>
#include <random>
#include <set>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "src/plan/model/text/text_shape.h"
#include "src/plan/plan/group_timeline.h"
#include "src/plan/search/batch/document_planner.h"
#include "tests/support/sanitized.h"

namespace paradyse {
namespace {

using testing::HasSubstr;

TextShape model() {
  TextShape m;
  m.layers = 3;
  m.hidden = 64;
  m.heads = 4;
  m.kv_heads = 2;
  m.head_dim = 16;
  m.ffn = 160;
  m.vocab = 256;
  return m;
}

PlanningTask task(int ranks, std::int64_t memory = 0) {
  PlanningTask t;
  t.model = model();
  t.ranks = ranks;
  t.machine.cores = 2;
  t.memory_per_rank = memory;
  return t;
}

TEST(BatchPlanners, HaveOneNameEach) {
  std::set<std::string> names;
  for (const BatchPlannerRow& row : batch_planners()) {
    EXPECT_TRUE(names.insert(row.name).second) << row.name;
    EXPECT_NE(row.summary, "");
    PlanningTask t = task(2);
    t.batch_planner = row.name;
    EXPECT_TRUE(batch_planner(t)->plan({40, 7}).plan) << row.name;
  }
  EXPECT_TRUE(names.contains("borders"));
  PlanningTask t = task(2);
  t.batch_planner = "border";
  try {
    batch_planner(t);
    FAIL();
  } catch (const std::invalid_argument& error) {
    EXPECT_THAT(error.what(), HasSubstr("did you mean 'borders'?"));
  }
}

TEST(BatchPlanners, OfOneSizeHaveGroupsOfNoOther) {
  for (const int size : {1, 2, 4, 8}) {
    SCOPED_TRACE(size);
    PlanningTask t = task(4);
    t.batch_planner = "groups-of-" + std::to_string(size);
    const std::unique_ptr<DocumentPlanner> planner = document_planner(t);
    const std::optional<Plan> plan = planner->plan({40, 7, 300, 7, 5000}).plan;
    ASSERT_TRUE(plan);
    EXPECT_TRUE(problems(*plan, {.model = t.model}).empty());
    for (const PlanMicroBatch& micro : plan->micro_batches) {
      for (const PlanGroup& group : micro.groups) {
        EXPECT_TRUE(group.documents.empty() || std::ssize(group.ranks) == std::min(size, 4));
      }
    }
    EXPECT_GT(*plan->predicted.seconds, 0);
  }
  // What only more ranks hold is refused, not split further.
  PlanningTask t = task(4, std::int64_t{6} << 20);
  t.batch_planner = "groups-of-4";
  const std::int64_t longest = *DocumentPlans(t).longest() * 3 / 4;  // capacities are estimates
  EXPECT_TRUE(batch_planner(t)->plan({longest}).plan);
  t.batch_planner = "groups-of-1";
  const BatchPlanner::Answer none = batch_planner(t)->plan({longest});
  EXPECT_FALSE(none.plan);
  EXPECT_THAT(none.why_not, HasSubstr("no plan fits in groups of 1 rank"));
  // Where nothing limits memory it is the strategy.
  PlanningTask of_all = task(4);
  of_all.attention = "MegatronTS";
  of_all.batch_planner = "groups-of-2";
  const BatchPlanner::Answer not_of_two = batch_planner(of_all)->plan({100});
  EXPECT_FALSE(not_of_two.plan);
  EXPECT_THAT(
      not_of_two.why_not, HasSubstr("leave nothing that groups of 2 ranks can run among 4"));
}

// In narrow types groups of a micro-batch have to agree in their tiles of tokens, which each would
// choose by itself.
TEST(BatchPlanners, FindWhatFitsThoughGroupsHaveToAgree) {
  std::mt19937 random(1);
  const auto number = [&](int least, int most) {
    return std::uniform_int_distribution<int>(least, most)(random);
  };
  int both = 0;
  for (int i = 0; i < (test::kSanitized ? 15 : 60); ++i) {
    PlanningTask t = task(number(3, 6), std::int64_t{number(2500, 9000)} << 10);
    t.precision = precision_of(Dtype::bfloat16);
    t.batch_planner = "groups-of-2";
    std::vector<std::int64_t> lengths;
    for (int n = number(3, 9); n > 0; --n) {
      lengths.push_back(number(0, 2) == 0 ? number(500, 6000) : number(10, 800));
    }
    PlanningTask untiled = t;
    untiled.options["token_tiles"] = 1;
    if (!batch_planner(untiled)->plan(lengths).plan) {
      continue;
    }
    const BatchPlanner::Answer answer = batch_planner(t)->plan(lengths);
    EXPECT_TRUE(answer.plan) << i << ": " << answer.why_not;
    ++both;
  }
  EXPECT_GT(
      both,
      test::kSanitized ? 2 : 10);  // fewer where the clock ends a search early, under sanitizers
}

TEST(LayerPlanners, HaveOneNameEach) {
  EXPECT_STREQ(layer_planner("exact").name, "exact");
  EXPECT_FALSE(layer_planner("exact").splits_all);
  EXPECT_TRUE(layer_planner("paradyse-heuristic").splits_all);
  EXPECT_STREQ(layer_planner("paper").name, "paradyse-heuristic");  // its old name
  EXPECT_THROW(layer_planner("papr"), std::invalid_argument);
}

// Asked for, an option is in all that is planned; it leaves out strategies that it does not suit,
// and one that is named with it is refused by it.
TEST(DocumentPlans, TakeOptionsThatAreAskedFor) {
  PlanningTask t = task(4);
  t.options = {{"ulysses_degree", 4}, {"token_tiles", 2}};
  DocumentPlans plans(t);
  bool seen = false;
  for (const LayerChoice& layer : plans.costs().of(4).uniform()) {
    const PartChoice& attention = part_of(layer, "attention");
    EXPECT_EQ(attention.options.contains("ulysses_degree"), attention.strategy == "USP");
    EXPECT_EQ(part_of(layer, "mlp").options.at("token_tiles"), 2);
    seen |= attention.strategy == "USP";
    EXPECT_GT(plans.costs().of(4).layer(layer, 100).wall, 0);
  }
  EXPECT_TRUE(seen);
  t.options = {{"ulysses_degree", 3}};
  DocumentPlans without(t);
  for (const LayerChoice& layer : without.costs().of(4).uniform()) {
    EXPECT_NE(part_of(layer, "attention").strategy, "USP");
  }
  t.attention = "USP";
  try {
    DocumentPlans{t};
    FAIL();
  } catch (const std::invalid_argument& error) {
    EXPECT_THAT(error.what(), HasSubstr("ulysses_degree 3 of 'USP'"));
  }
}

// Groups of two, whatever the documents; it counts how often it is asked.
class Pairs final : public DocumentPlanner {
 public:
  using DocumentPlanner::DocumentPlanner;
  int made = 0;
  int passed = 0;

 private:
  Answer make(const std::vector<std::int64_t>& lengths, Caps caps) override {
    ++made;
    passed += caps == Caps::passed ? 1 : 0;
    Plan plan = uniform_plan(
        task().model, lengths, task().ranks, std::vector<LayerChoice>(3, text_layer("UlyssesZ")));
    plan.micro_batches.clear();
    std::int64_t longest = 0;
    for (std::size_t d = 0; d < lengths.size(); d += 2) {
      PlanMicroBatch& micro = plan.micro_batches.emplace_back();
      for (const std::size_t one : {d, d + 1}) {
        longest = std::max(longest, lengths.at(one));
        const int first = one == d ? 0 : 2;
        micro.groups.push_back(
            {.ranks = {first, first + 1},
             .documents = {static_cast<std::int64_t>(one)},
             .program = "all",
             .predicted = {}});
      }
    }
    documents().prediction().predict(plan);
    for (const PlanMicroBatch& micro : plan.micro_batches) {
      for (const PlanGroup& group : micro.groups) {
        if (!documents().fits(group.predicted.bytes->total(), longest, caps)) {
          return {.why_not = documents().refusal(longest)};
        }
      }
    }
    return {.plan = std::move(plan), .why_not = {}};
  }
};

// What ranks take that are so many times as slow as the time model says of each part of the only
// micro-batch.
BatchPlanner::PartSeconds slower(
    Pairs& planner, const Plan& plan, const std::vector<double>& times) {
  PlanPrediction& prediction = planner.documents().prediction();
  const PlanMicroBatch& micro = plan.micro_batches.at(0);
  BatchPlanner::PartSeconds seconds(1);
  const std::vector<std::vector<double>> predicted = prediction.uncorrected_parts(plan, micro);
  for (std::size_t g = 0; g < micro.groups.size(); ++g) {
    for (const int rank : micro.groups[g].ranks) {
      std::vector<double>& parts = seconds[0].emplace_back(predicted[g]);
      for (double& part : parts) {
        part *= times.at(static_cast<std::size_t>(rank));
      }
    }
  }
  return seconds;
}

CostedPart attention(const char* strategy) { return {.part = "attention", .strategy = strategy}; }

TEST(BatchPlanner, RemembersLearnsAndLeansForAnyPlanner) {
  Pairs planner(task(4));
  const std::vector<std::int64_t> lengths = {900, 800};
  const Plan first = *planner.plan(lengths).plan;
  EXPECT_THAT(problems(first), testing::IsEmpty());
  EXPECT_EQ(*planner.plan(lengths).plan, first);
  EXPECT_EQ(planner.made, 1);
  EXPECT_TRUE(planner.was_cached());

  for (int i = 0; i < 3; ++i) {
    planner.observe(first, slower(planner, first, {3, 3, 3, 3}));
  }
  const Plan later = *planner.plan(lengths).plan;
  EXPECT_EQ(planner.made, 2);  // what it had was out of date
  EXPECT_GT(*later.predicted.seconds, 2 * *first.predicted.seconds);

  // held to less than its only plan takes, it has none; then caps are passed
  EXPECT_FALSE(planner.leaner(later));
  EXPECT_EQ(planner.documents().held_to().size(), 1U);
  EXPECT_TRUE(planner.plan(lengths).plan);
  EXPECT_EQ(planner.passed, 1);

  Pairs next(task(4));
  next.learn(planner.learned());
  EXPECT_EQ(next.learned(), planner.learned());
  EXPECT_EQ(*next.plan(lengths).plan, *planner.plan(lengths).plan);
}

// Of measured costs; a person may write any above -1.
TEST(BatchPlanner, ABudgetMayBeAsGoodAsNone) {
  PlanningTask t = task(4, std::int64_t{1} << 30);
  t.memory_overhead = -1 + 1e-12;
  const BatchPlanner::Answer answer = batch_planner(t)->plan({900, 800});
  EXPECT_TRUE(answer.plan) << answer.why_not;
}

// By group: the ranks of the group that sets the time count, those that wait for it do not; and
// what groups of two took is theirs, and says of groups of four what it says of all.
TEST(BatchPlanner, LearnsFromTheGroupThatSetsTheTime) {
  Pairs planner(task(4));
  const Plan plan = *planner.plan({2000, 20}).plan;
  const PlanMicroBatch& micro = plan.micro_batches[0];
  ASSERT_LT(*micro.groups[1].predicted.seconds, 0.5 * *micro.groups[0].predicted.seconds);
  for (int i = 0; i < 3; ++i) {
    planner.observe(plan, slower(planner, plan, {2, 2, 99, 99}));
  }
  const Correction& correction = planner.documents().correction();
  EXPECT_NEAR(correction.factor(attention("UlyssesZ"), 2, 2000), 2, 0.05);
  EXPECT_LT(correction.factor(attention("UlyssesZ"), 4, 2000), 1.3);
  EXPECT_EQ(
      correction.factor(attention("UlyssesZ"), 4, 2000),
      correction.factor(attention("METP"), 2, 2000));
  const Correction::Ratios ratios = planner.learned().ratios;
  std::vector<CostedPart> parts;
  for (const auto& [key, its] : ratios) {
    EXPECT_EQ(key.ranks, 2);
    EXPECT_EQ(key.log2_length, log2_bucket(2000));
    EXPECT_THAT(its, testing::Each(testing::DoubleEq(2)));
    parts.push_back(key.what);
  }
  EXPECT_THAT(
      parts,
      testing::ElementsAre(
          attention("UlyssesZ"),
          CostedPart{.part = "mlp", .strategy = "gather"},
          CostedPart{.part = "rest", .strategy = ""}));
}

// A group goes by its own longest document, wherever the longest of the micro-batch lies; groups of
// one strategy, size and bucket are one observation.
TEST(BatchPlanner, ObservesAGroupUnderItsLongestDocument) {
  Pairs planner(task(4));
  const Plan unlike = *planner.plan({1000, 1100}).plan;
  ASSERT_GT(
      *unlike.micro_batches[0].groups[0].predicted.seconds,
      0.8 * *unlike.micro_batches[0].groups[1].predicted.seconds);
  planner.observe(unlike, slower(planner, unlike, {3, 3, 1, 1}));
  Correction::Ratios ratios = planner.learned().ratios;
  ASSERT_EQ(ratios.size(), 6U);
  EXPECT_DOUBLE_EQ(ratios.at({attention("UlyssesZ"), 2, log2_bucket(1000)}).back(), 3);
  EXPECT_DOUBLE_EQ(ratios.at({attention("UlyssesZ"), 2, log2_bucket(1100)}).back(), 1);

  Pairs alike(task(4));
  const Plan same = *alike.plan({1000, 1000}).plan;
  alike.observe(same, slower(alike, same, {3, 3, 1, 1}));
  ratios = alike.learned().ratios;
  ASSERT_EQ(ratios.size(), 3U);
  EXPECT_THAT(ratios.begin()->second, testing::ElementsAre(testing::DoubleEq(2)));
}

// A plan of before factors changed is held against the time model, not against what it predicted.
TEST(BatchPlanner, ObservesPlansThatOtherFactorsMade) {
  Pairs planner(task(4));
  const Plan plan = *planner.plan({1000, 1000}).plan;
  const double predicted = *plan.micro_batches[0].predicted.seconds;
  for (int i = 0; i < 9; ++i) {
    planner.observe(plan, slower(planner, plan, {3, 3, 3, 3}));
  }
  EXPECT_THAT(planner.learned().ratios.begin()->second, testing::Each(testing::DoubleEq(3)));
  PlanPrediction& prediction = planner.documents().prediction();
  for (const std::vector<double>& parts :
       prediction.uncorrected_parts(plan, plan.micro_batches[0])) {
    EXPECT_DOUBLE_EQ(std::accumulate(parts.begin(), parts.end(), 0.0), predicted);
  }
}

// A group that is about as long as the longest waits for it wherever weights are gathered: that is
// none of its own time.
TEST(BatchPlanner, DoesNotTakeWaitingForWork) {
  Pairs planner(task(4));
  const Plan plan = *planner.plan({1000, 1100}).plan;
  const PlanMicroBatch& micro = plan.micro_batches[0];
  ASSERT_FALSE(whole_weights(plan));
  PlanPrediction& prediction = planner.documents().prediction();
  BatchPlanner::PartSeconds seconds(1);
  const std::vector<std::vector<double>> predicted = prediction.uncorrected_parts(plan, micro);
  for (std::size_t g = 0; g < micro.groups.size(); ++g) {
    const PlanGroup& group = micro.groups[g];
    std::vector<double> parts = predicted[g];
    const double own = std::accumulate(parts.begin(), parts.end(), 0.0);
    for (double& part : parts) {
      part *= *micro.predicted.seconds / own;  // until all are done
    }
    seconds[0].resize(seconds[0].size() + group.ranks.size(), parts);
  }
  planner.observe(plan, seconds);
  const Correction::Ratios ratios = planner.learned().ratios;
  EXPECT_EQ(ratios.size(), 6U);
  for (const auto& [key, its] : ratios) {
    EXPECT_THAT(its, testing::ElementsAre(testing::DoubleNear(1, 1e-9)))
        << key.what.part << " " << key.log2_length;
  }
}

// Where one part is slower than predicted, predictions of later plans are as true of it as of the
// others, and plans with less of it are not taken for slower.
TEST(BatchPlanner, LearnsOfEachPart) {
  Pairs planner(task(4));
  const Plan plan = *planner.plan({1000, 1000}).plan;
  BatchPlanner::PartSeconds seconds = slower(planner, plan, {1, 1, 1, 1});
  const std::vector<CostedPart> parts = costed_parts(plan.programs.begin()->second);
  const auto mlp = static_cast<std::size_t>(
      std::ranges::find(parts, std::string("mlp"), &CostedPart::part) - parts.begin());
  double sum = 0;
  for (std::vector<double>& rank : seconds[0]) {
    rank.at(mlp) *= 4;
    sum = std::accumulate(rank.begin(), rank.end(), 0.0);
  }
  for (int i = 0; i < 9; ++i) {
    planner.observe(plan, seconds);
  }
  const Correction& correction = planner.documents().correction();
  EXPECT_NEAR(correction.factor(attention("UlyssesZ"), 2, 1000), 1, 0.02);
  EXPECT_NEAR(correction.factor(parts[mlp], 2, 1000), 4, 0.1);
  EXPECT_NEAR(
      *planner.plan({1000, 1000}).plan->micro_batches[0].predicted.seconds, sum, 0.03 * sum);
}

// Between one rank and all: the fullest rank of such a group, as a plan with such groups folds it.
TEST(GroupCosts, OfASizeAreThoseOfAPlanWithSuchGroups) {
  const PlanningTask t = task(4);
  const Correction correction;
  GroupCosts costs(t, correction);
  constexpr std::int64_t kLength = 256;  // a rung of the ladder
  for (const Recompute level : {Recompute::none, Recompute::full}) {
    const LayerChoice layer = text_layer("UlyssesZ", "gather", level, level);
    LayerCosts& of_two = costs.of(2);
    ASSERT_NE(std::ranges::find(of_two.uniform(), layer), of_two.uniform().end());
    for (const LayerChoice& choice : of_two.uniform()) {
      for (const PartChoice& part : choice) {
        EXPECT_EQ(strategy(part.part, part.strategy).verb, Verb::gather);  // not the whole domain
      }
    }
    Plan plan = uniform_plan(t.model, {kLength, kLength}, 4, std::vector<LayerChoice>(3, layer));
    plan.micro_batches = {
        {.groups =
             {{.ranks = {0, 1}, .documents = {0}, .program = "all", .predicted = {}},
              {.ranks = {2, 3}, .documents = {1}, .program = "all", .predicted = {}}},
         .predicted = {}}};
    std::int64_t saved = 0;
    for (const PlanGroup& group : plan.micro_batches[0].groups) {
      const GroupTimeline built = group_timeline(plan, group, t.model, true);
      for (const Seat& seat : built.seats) {
        std::int64_t of_layer = 0;
        for (const ScheduledPart& part : built.parts) {
          of_layer += part.layer == 0 ? part_footprint(part, seat, t.precision).saved_bytes : 0;
        }
        saved = std::max(saved, of_layer);
      }
    }
    EXPECT_EQ(of_two.layer(layer, kLength).saved_bytes, saved);
  }
  EXPECT_EQ(&costs.of(2), &costs.of(2));
  EXPECT_THROW(costs.of(0), std::invalid_argument);
  EXPECT_THROW(costs.of(5), std::invalid_argument);
}

// A micro-batch is as slow as its slowest group, and no faster than the cores are busy.
TEST(PlanPrediction, TakesTheSlowestGroupOrTheCores) {
  const PlanningTask t = task(4);
  const Correction correction;
  const RankSpeeds speeds;
  GroupCosts costs(t, correction);
  const PlanPrediction prediction(t, correction, speeds, costs);
  // groups of so many ranks and so many seconds, one after the other
  const auto wall = [](const PlanPrediction& of,
                       const std::vector<std::pair<int, double>>& groups) {
    static constexpr std::array kRanks = {0, 1, 2, 3};
    std::vector<GroupSeconds> all;
    std::size_t first = 0;
    for (const auto& [ranks, seconds] : groups) {
      all.push_back({std::span(kRanks).subspan(first, static_cast<std::size_t>(ranks)), seconds});
      first += static_cast<std::size_t>(ranks);
    }
    return of.wall_seconds(all);
  };
  EXPECT_DOUBLE_EQ(wall(prediction, {{4, 3.0}}), 3.0);
  EXPECT_DOUBLE_EQ(wall(prediction, {{1, 3.0}, {1, 1.0}}), 3.0);
  EXPECT_DOUBLE_EQ(wall(prediction, {{1, 3.0}, {1, 3.0}, {1, 3.0}, {1, 1.0}}), 5.0);
  EXPECT_DOUBLE_EQ(wall(prediction, {{2, 3.0}, {1, 1.0}, {1, 1.0}}), 4.0);
  EXPECT_DOUBLE_EQ(wall(prediction, {{3, 2.0}, {1, 1.0}}), 2.5);
  // On two nodes with a core each, one has no part of the other's: a group of two waited for its
  // own ranks already.
  PlanningTask nodes = t;
  nodes.ranks_per_node = 2;
  GroupCosts of_nodes(nodes, correction);
  const PlanPrediction there(nodes, correction, speeds, of_nodes);
  EXPECT_DOUBLE_EQ(wall(there, {{4, 3.0}}), 3.0);
  EXPECT_DOUBLE_EQ(wall(there, {{1, 3.0}, {1, 3.0}, {1, 1.0}, {1, 1.0}}), 6.0);
  EXPECT_DOUBLE_EQ(wall(there, {{1, 3.0}, {1, 1.0}, {1, 3.0}, {1, 1.0}}), 4.0);
  EXPECT_DOUBLE_EQ(wall(there, {{2, 3.0}, {1, 1.0}, {1, 1.0}}), 3.0);
  EXPECT_DOUBLE_EQ(wall(there, {{1, 1.0}, {2, 3.0}, {1, 1.0}}), 4.0);  // on both nodes

  Plan plan = uniform_plan(
      t.model, {600, 40, 30}, 4, std::vector<LayerChoice>(3, text_layer("AllGatherKV")));
  plan.programs["one"] = runs_of(std::vector<LayerChoice>(3, text_layer("DataZ")));
  plan.micro_batches = {
      {.groups =
           {{.ranks = {0, 1}, .documents = {0}, .program = "all", .predicted = {}},
            {.ranks = {2}, .documents = {1}, .program = "one", .predicted = {}},
            {.ranks = {3}, .documents = {2}, .program = "one", .predicted = {}}},
       .predicted = {}}};
  const TextShape m = model();
  ASSERT_THAT(problems(plan, {.model = m}), testing::IsEmpty());
  PlanPrediction(t, correction, speeds, costs).predict(plan);
  std::vector<GroupSeconds> groups;
  for (const PlanGroup& group : plan.micro_batches[0].groups) {
    EXPECT_GT(*group.predicted.seconds, 0);
    EXPECT_GT(group.predicted.bytes->total(), 0);
    groups.push_back({group.ranks, *group.predicted.seconds});
  }
  EXPECT_DOUBLE_EQ(*plan.micro_batches[0].predicted.seconds, prediction.wall_seconds(groups));
}

// Programs are chosen by the memory of the tiles that the plan will have.
TEST(PlanPrediction, CountsTheTilesOfTheModel) {
  PlanningTask t = task(2);
  TextShape shape = model();
  shape.vocab = 3 * Tiles().vocabulary;
  t.model = shape;
  const Correction correction;
  const RankSpeeds speeds;
  std::vector<std::int64_t> totals;
  for (const Tiles tiles : {Tiles{}, gpu_tiles(t.model, 4)}) {
    t.model = with_tiles(t.model, tiles);
    GroupCosts costs(t, correction);
    PlanPrediction prediction(t, correction, speeds, costs);
    const std::vector<LayerChoice> layers(3, text_layer("UlyssesZ"));
    Plan plan = uniform_plan(t.model, {600}, 2, layers);
    plan.messages = {};
    prediction.predict(plan);
    totals.push_back(prediction.bytes_of(runs_of(layers), {{600}}, 2).total());
    EXPECT_EQ(totals.back(), plan.micro_batches[0].groups[0].predicted.bytes->total());
  }
  EXPECT_GT(totals[1], totals[0]);
}

}  // namespace
}  // namespace paradyse
