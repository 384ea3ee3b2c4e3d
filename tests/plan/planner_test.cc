// The planner of borders: sound plans, memory respected, costs followed, honest refusals.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <memory>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "paradyse/plan/batch_planner.h"
#include "src/plan/model/text/text_shape.h"
#include "src/plan/plan/group_timeline.h"
#include "src/plan/search/batch/document_planner.h"
#include "tests/plan/part_seconds.h"
#include "tests/plan/pretend_machine.h"
#include "tests/support/plans.h"
#include "tests/support/sanitized.h"

namespace paradyse {
namespace {

TextShape model() {
  TextShape m;
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
  t.batch_planner = "borders";
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

// The planner that the task names, for short.
class Planner {
 public:
  explicit Planner(const PlanningTask& task) : planner_(document_planner(task)) {}

  BatchPlanner::Answer plan(const std::vector<std::int64_t>& lengths) {
    return planner_->plan(lengths);
  }
  [[nodiscard]] bool was_cached() const { return planner_->was_cached(); }
  std::optional<Plan> leaner(const Plan& plan) { return planner_->leaner(plan); }
  // That a plan took so many times as long as the time model says, all of it or its attention.
  std::optional<std::string> observe(const Plan& plan, double times, bool attention_alone = false) {
    return planner_->observe(
        plan, test::part_seconds(documents().prediction(), plan, [&](const CostedPart& part) {
          return attention_alone && part.part != "attention" ? 1 : times;
        }));
  }
  [[nodiscard]] BatchPlanner::Learned learned() const { return planner_->learned(); }
  void learn(const BatchPlanner::Learned& learned) { planner_->learn(learned); }
  DocumentPlans& documents() { return planner_->documents(); }
  // On all ranks together.
  std::optional<DocumentPlan> document(std::int64_t length) {
    return documents().best(length, planner_->task().ranks);
  }

 private:
  std::unique_ptr<DocumentPlanner> planner_;
};

// Whatever the lengths, ranks and budget: each document once, the checker content, every rank
// within its budget.
TEST(Planner, GivesSoundPlansThatFit) {
  for (const int ranks : test::kSanitized ? std::vector{1, 3} : std::vector{1, 2, 3, 4, 8}) {
    for (const std::int64_t memory :
         {std::int64_t{0}, std::int64_t{64} << 20, std::int64_t{256} << 20}) {
      Planner planner(task(ranks, memory));
      for (std::uint64_t seed = 0; seed < (test::kSanitized ? 1 : 5); ++seed) {
        const std::vector<std::int64_t> lengths = long_tailed(seed, 12);
        const BatchPlanner::Answer answer = planner.plan(lengths);
        SCOPED_TRACE(
            std::to_string(ranks) + " ranks, " + std::to_string(memory) + " bytes, seed " +
            std::to_string(seed) + ": " + answer.why_not);
        if (!answer.plan) {
          EXPECT_GT(memory, 0);
          continue;
        }
        const TextShape m = model();
        CheckContext context{.model = m};
        if (memory > 0) {
          context.memory_per_rank = memory;
        }
        EXPECT_THAT(problems(*answer.plan, context), testing::IsEmpty());
        EXPECT_EQ(answer.plan->lengths, lengths);
      }
    }
  }
}

// Each way of messages is taken where it fits to the byte, and not where a byte is missing.
TEST(Messages, TravelAsThereIsRoom) {
  const Model m = text_model(model());
  const Precision precision = precision_of(Dtype::float32);
  Plan plan = test::uniform_plan(model(), {300}, 2, text_layer("UlyssesZ", "gather"));
  const auto peak = [&](Messages messages) {
    Plan one = plan;
    one.messages = messages;
    const GroupTimeline built = group_timeline(one, one.micro_batches[0].groups[0], m, true);
    return fullest_rank(built.parts, built.seats, m, 2, precision, Keeps::optimizer).total();
  };
  const auto found = [&](std::int64_t memory) {
    let_messages_travel(plan, m, precision, Keeps::optimizer, memory);
    return plan.messages;
  };
  const Messages kept{.overlap = true, .reshard_after_forward = false};
  const Messages beside{.overlap = true};
  EXPECT_EQ(found(peak(kept)), kept);
  EXPECT_EQ(found(peak(kept) - 1), beside);
  EXPECT_EQ(found(peak(beside)), beside);
  EXPECT_EQ(found(peak(beside) - 1), Messages{});
  EXPECT_EQ(found(1), Messages{});
  EXPECT_EQ(found(0), beside);  // no limit is known: weights may need more than there is
  plan.programs.begin()->second.front().choice.front().offload = true;
  EXPECT_EQ(found(std::int64_t{1} << 40), beside);  // what is kept would go to the host, too
}

TEST(Planner, KeepsWeightsWhereItsMemoryIsKnownToSuffice) {
  EXPECT_TRUE(Planner(task(2, 0)).plan({300}).plan->messages.reshard_after_forward);
  PlanningTask roomy = task(2, std::int64_t{1} << 32);
  EXPECT_FALSE(Planner(roomy).plan({300}).plan->messages.reshard_after_forward);
  roomy.training = false;
  EXPECT_TRUE(Planner(roomy).plan({300}).plan->messages.reshard_after_forward);
}

// Over slow links weights are gathered once a step, where there is room for them; what is predicted
// is no slower, and the plan is sound.
TEST(Planner, GathersWeightsOnceAStepWhereThatIsFaster) {
  const std::vector<std::int64_t> lengths = long_tailed(1, 30);
  PlanningTask slow = task(4, std::int64_t{80} << 20);
  slow.machine.cores = 4;
  slow.machine.sent_bytes_per_second = 1e7;
  const Plan plan = Planner(slow).plan(lengths).plan.value();
  ASSERT_GT(plan.micro_batches.size(), 1U);
  EXPECT_TRUE(whole_weights(plan));
  EXPECT_THAT(
      problems(plan, {.model = slow.model, .memory_per_rank = slow.memory_per_rank}),
      testing::IsEmpty());
  Plan each_time = plan;
  each_time.messages = {.overlap = true, .reshard_after_forward = false};
  DocumentPlans documents(slow);
  documents.prediction().expect(each_time);
  EXPECT_LT(*plan.predicted.seconds, *each_time.predicted.seconds);

  // Without so many bytes, or a limit that is known, no plan leaves weights whole.
  slow.memory_per_rank = 0;
  EXPECT_FALSE(whole_weights(Planner(slow).plan(lengths).plan.value()));
  const std::int64_t most = most_static_bytes(
      slow.model,
      4,
      slow.precision,
      Keeps::optimizer,
      {.reshard_after_forward = false, .reshard_after_backward = false});
  slow.memory_per_rank = most;
  if (const auto tight = Planner(slow).plan({40, 30, 20, 10}).plan) {
    EXPECT_FALSE(whole_weights(*tight));
  }
  // Ranks without a limit of their own, and evaluation, gather as before.
  slow.memory_per_rank = std::int64_t{80} << 20;
  slow.training = false;
  EXPECT_FALSE(whole_weights(Planner(slow).plan(lengths).plan.value()));
}

// Goes by lengths, as the hybrid model does, and is wrong by a factor.
class WrongByLength final : public TimeModel {
 public:
  WrongByLength(const MachineNumbers& machine, double times)
      : exact_(closed_form(machine)), times_(times) {}
  [[nodiscard]] std::string name() const override { return "wrong by length"; }
  [[nodiscard]] bool by_work() const override { return false; }
  [[nodiscard]] PartSeconds seconds(const PartQuestion& question) const override {
    PartSeconds seconds = exact_->seconds(question);
    for (double& phase : seconds.phases) {
      phase *= times_;
    }
    return seconds;
  }

 private:
  std::shared_ptr<const TimeModel> exact_;
  double times_;
};

// A model that does not know plans with whole weights says nothing of whether they are faster.
TEST(Planner, ComparesBothKindsByOneModel) {
  const std::vector<std::int64_t> lengths = long_tailed(1, 30);
  PlanningTask exact = task(4, std::int64_t{80} << 20);
  exact.machine.cores = 4;
  exact.machine.sent_bytes_per_second = 1e7;
  for (const char* planner :
       test::kSanitized ? std::vector{"borders"} : std::vector{"groups", "borders"}) {
    exact.batch_planner = planner;
    ASSERT_TRUE(whole_weights(Planner(exact).plan(lengths).plan.value()));
    for (const double times :
         test::kSanitized ? std::vector{0.01} : std::vector{0.01, 1.0, 100.0}) {
      PlanningTask wrong = exact;
      wrong.by_work = closed_form(exact.machine);
      wrong.seconds = std::make_shared<WrongByLength>(exact.machine, times);
      EXPECT_TRUE(whole_weights(Planner(wrong).plan(lengths).plan.value()))
          << planner << ", " << times;
    }
  }
}

// What is asked for is planned, whatever memory is known.
TEST(Planner, GathersWeightsAsOftenAsAskedFor) {
  const std::vector<std::int64_t> lengths = long_tailed(2, test::kSanitized ? 3 : 8);
  for (const std::string often : {"micro-batch", "step"}) {
    for (const std::int64_t memory : {std::int64_t{0}, std::int64_t{80} << 20}) {
      for (const char* planner : {"groups", "groups-of-1", "groups-of-all"}) {
        PlanningTask asked = task(4, memory);
        asked.batch_planner = planner;
        asked.gather_weights = often;
        const Plan plan = Planner(asked).plan(lengths).plan.value();
        EXPECT_EQ(whole_weights(plan), often == "step") << planner << ", " << memory;
        CheckContext context{.model = asked.model};
        if (memory > 0) {
          context.memory_per_rank = memory;
        }
        EXPECT_THAT(problems(plan, context), testing::IsEmpty());
      }
    }
  }
}

// Sharding groups of some ranks: weights are whole while a step lasts, with or without a limit of
// memory, and documents may be split over more ranks than share a copy.
TEST(Planner, PlansForShardingGroupsOfSomeRanks) {
  const std::vector<std::int64_t> lengths = long_tailed(3, 14);
  const std::vector<std::pair<int, int>> all = {{4, 2}, {6, 2}, {6, 3}};
  for (const auto& [ranks, domain] : std::span(all).first(test::kSanitized ? 1 : all.size())) {
    for (const std::int64_t memory : {std::int64_t{0}, std::int64_t{96} << 20}) {
      for (const char* planner : {"borders", "groups", "groups-of-all"}) {
        for (const bool training : {true, false}) {
          PlanningTask of_node = task(ranks, memory);
          of_node.weight_domain = domain;
          of_node.batch_planner = planner;
          of_node.training = training;
          const BatchPlanner::Answer answer = Planner(of_node).plan(lengths);
          SCOPED_TRACE(
              std::string(planner) + " of " + std::to_string(ranks) + ": " + answer.why_not);
          ASSERT_TRUE(answer.plan);
          EXPECT_EQ(answer.plan->weight_domain, domain);
          EXPECT_TRUE(whole_weights(*answer.plan));
          CheckContext context{.model = of_node.model};
          if (memory > 0 && training) {
            context.memory_per_rank = memory;
          }
          EXPECT_THAT(problems(*answer.plan, context), testing::IsEmpty());
        }
      }
    }
  }
}

// What crosses a slow link once a step is half as much where nodes hold copies.
TEST(Planner, PricesTheLinksOfNodes) {
  PlanningTask far = task(4, std::int64_t{1} << 30);
  far.ranks_per_node = 2;
  far.links = NodeLinks{
      .inside_node = {.bytes_per_second = 1e9, .latency_seconds = 0},
      .between_nodes = {.bytes_per_second = 1e5, .latency_seconds = 0}};
  const auto seconds = [&](int domain) {
    far.weight_domain = domain;
    Plan plan = test::uniform_plan(model(), {300, 200}, 4, text_layer("DataZ", "gather"));
    plan.weight_domain = domain;
    plan.messages = {.reshard_after_forward = false, .reshard_after_backward = false};
    DocumentPlans(far).prediction().expect(plan);
    return plan.predicted.seconds.value_or(0);
  };
  const double world = seconds(4);
  const double node = seconds(2);
  const auto bytes = static_cast<double>(matrix_elements(far.model) * 4);
  EXPECT_NEAR(node, bytes / 2 / 1e5, 0.1 * node);  // half a copy is each rank's to exchange
  EXPECT_NEAR(world / node, 2, 0.1);
}

// What a group sends takes longer where its ranks are on several nodes, as those of more ranks than
// a node has always are.
TEST(Planner, PricesGroupsByTheNodesOfTheirRanks) {
  PlanningTask far = task(4, 0);
  far.ranks_per_node = 2;
  PretendMachine machine;
  machine.rates.values[Amounts::bytes_across_nodes] *= 1000;
  far.seconds = std::make_shared<PretendTruth>(machine);
  DocumentPlans plans(far);
  const auto seconds = [&](const std::vector<int>& first, const std::vector<int>& second) {
    Plan plan = test::uniform_plan(model(), {300, 200}, 4, text_layer("UlyssesZ", "gather"));
    PlanMicroBatch& micro = plan.micro_batches.front();
    micro.groups.front().documents = {0};
    micro.groups.front().ranks = first;
    micro.groups.push_back(micro.groups.front());
    micro.groups.back().documents = {1};
    micro.groups.back().ranks = second;
    plans.prediction().expect(plan);
    return plan.predicted.seconds.value_or(0);
  };
  EXPECT_GT(seconds({0, 2}, {1, 3}), 2 * seconds({0, 1}, {2, 3}));
  const LayerChoice layer = text_layer("UlyssesZ", "gather");
  const Correction none;
  GroupCosts sizes(far, none);
  EXPECT_GT(sizes.of(4).layer(layer, 512).wall, 2 * sizes.of(2).layer(layer, 512).wall);
  far.ranks_per_node = 4;
  GroupCosts on_one(far, none);
  EXPECT_LT(on_one.of(4).layer(layer, 512).wall, 2 * on_one.of(2).layer(layer, 512).wall);
}

// A rank waits for nobody but the ranks of its groups.
TEST(Planner, AddsUpRanksThatDoNotMeet) {
  PlanningTask t = task(2, std::int64_t{1} << 30);
  t.machine.cores = 2;
  Plan plan = test::uniform_plan(model(), {300, 20, 20, 300}, 2, text_layer("DataZ", "gather"));
  const PlanMicroBatch one = plan.micro_batches.front();
  ASSERT_EQ(one.groups.size(), 2U);
  plan.micro_batches = {one, one};
  for (int m = 0; m < 2; ++m) {
    for (std::size_t rank = 0; rank < 2; ++rank) {
      plan.micro_batches[static_cast<std::size_t>(m)].groups[rank].documents = {
          m + 2 * static_cast<std::int64_t>(rank)};
    }
  }
  plan.weight_domain = 2;
  DocumentPlans documents(t);
  documents.prediction().expect(plan);  // each micro-batch waits for its long document
  const double meeting = *plan.predicted.seconds;
  plan.messages = {.reshard_after_forward = false, .reshard_after_backward = false};
  documents.prediction().expect(plan);
  double each = 0;
  for (const PlanMicroBatch& micro : plan.micro_batches) {
    each += *micro.groups.front().predicted.seconds;
  }
  EXPECT_LT(*plan.predicted.seconds, 0.75 * meeting);
  EXPECT_GT(*plan.predicted.seconds, each);  // weights are gathered, too
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
// longest document it names is indeed the longest that fits, also where nothing may be split and
// only options make room.
TEST(Planner, SaysWhatDoesNotFitAndWhatWould) {
  for (const std::string attention : {"", "DataZ"}) {
    SCOPED_TRACE(attention);
    PlanningTask wanted = task(4, std::int64_t{24} << 20);
    wanted.attention = attention;
    Planner planner(wanted);
    const BatchPlanner::Answer answer = planner.plan({100, 16384});
    ASSERT_FALSE(answer.plan);
    EXPECT_THAT(answer.why_not, testing::HasSubstr("16384 tokens needs"));
    EXPECT_THAT(answer.why_not, testing::HasSubstr("24.0 MiB"));
    const auto number_after = [&](const std::string& marker) {
      return std::stoll(answer.why_not.substr(answer.why_not.find(marker) + marker.size()));
    };
    EXPECT_GT(number_after("while it computes), "), 0);  // bytes more
    const std::int64_t longest = number_after("longest document that fits has ");
    EXPECT_TRUE(planner.plan({longest}).plan);
    EXPECT_TRUE(planner.plan({100, longest, longest / 2, longest}).plan);
    const BatchPlanner::Answer one_more = planner.plan({longest + 1});
    ASSERT_FALSE(one_more.plan);
    EXPECT_THAT(one_more.why_not, testing::Not(testing::HasSubstr("), -")));
  }
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

// One document: whole on one rank (the others only gather weights) or split, whatever is predicted
// to be faster.  Costs are read off between rungs of a ladder, so a tie may be decided wrongly.
TEST(Planner, TakesTheCheaperForOneDocument) {
  Planner free(task(4, 0));
  for (const std::int64_t length : {1, 5, 46, 100, 300, 1000, 5000}) {
    const double best = *free.plan({length}).plan->predicted.seconds;
    for (const Strategy& strategy : strategies("attention")) {
      PlanningTask fixed = task(4, 0);
      fixed.attention = strategy.name;
      Planner planner(fixed);
      EXPECT_GE(*planner.plan({length}).plan->predicted.seconds, best * 0.98)
          << strategy.name << ", " << length << " tokens";
    }
  }
}

// Between "all layers as fast as they go" and "none fits" lie mixtures: never slower than the best
// uniform plan that fits, and somewhere faster; and no longer document fits a uniform plan.
TEST(Planner, MixesLayersWhereMemoryIsShort) {
  PlanningTask t = task(4, 0);
  t.model = with_layers(t.model, 8);
  Planner free(t);
  const std::int64_t most = free.document(8000)->bytes.total();
  int mixed = 0;
  for (int percent = 100; percent > 10; percent -= 10) {
    t.memory_per_rank = most * percent / 100;
    Planner planner(t);
    const std::optional<DocumentPlan> plan = planner.document(8000);
    double uniform = std::numeric_limits<double>::infinity();
    for (const OptionRow& row : planner.documents().table({8000})) {
      if (row.fits && row.option.find("DataZ") == std::string::npos) {
        uniform = std::min(uniform, row.seconds);
      }
    }
    if (!plan) {
      EXPECT_TRUE(std::isinf(uniform)) << percent;
      continue;
    }
    EXPECT_LE(plan->bytes.total(), t.memory_per_rank);
    EXPECT_LE(plan->seconds, uniform * (1 + 1e-9)) << percent;
    mixed += plan->program.size() > 1 && plan->seconds < (1 - 1e-4) * uniform ? 1 : 0;
  }
  EXPECT_GT(mixed, 3);
}

// What fits alone fits together: for any budget there is a plan exactly when the longest document
// has one, and more memory never takes a plan away.  PARADYSE_TEST_LONG=1 tries more documents.
TEST(Planner, PlansWhateverItsLongestDocumentFits) {
  const std::uint64_t seeds = std::getenv("PARADYSE_TEST_LONG") != nullptr ? 6 : 1;
  for (std::uint64_t seed = 0; seed < seeds; ++seed) {
    const std::vector<std::int64_t> lengths = long_tailed(seed, 8);
    const std::vector<std::int64_t> longest = {*std::max_element(lengths.begin(), lengths.end())};
    bool before = false;
    for (std::int64_t memory = std::int64_t{4} << 20; memory < std::int64_t{512} << 20;
         memory += memory / (test::kSanitized ? 1 : 7)) {
      Planner planner(task(3, memory));
      const bool all = planner.plan(lengths).plan.has_value();
      EXPECT_EQ(all, planner.plan(longest).plan.has_value()) << seed << " " << memory;
      EXPECT_GE(all, before) << seed << " " << memory;
      before = all;
    }
    EXPECT_TRUE(before);
  }
}

// Each leaner plan is for the same documents and counts on less, until there is none.
TEST(Planner, FindsLeanerPlansUntilThereAreNone) {
  Planner planner(task(4, std::int64_t{128} << 20));
  const std::vector<std::int64_t> lengths = {9000, 300, 200, 4000};
  const auto peak = [](const Plan& plan) {
    std::int64_t most = 0;
    for (const PlanMicroBatch& micro : plan.micro_batches) {
      for (const PlanGroup& group : micro.groups) {
        const PredictedBytes& b = *group.predicted.bytes;
        most = std::max(most, b.static_bytes + b.saved + b.transient);
      }
    }
    return most;
  };
  std::optional<Plan> plan = planner.plan(lengths).plan;
  ASSERT_TRUE(plan);
  const std::int64_t first = peak(*plan);
  int found = 0;
  std::int64_t least = first;
  while (plan && found < 200) {
    EXPECT_EQ(plan->lengths, lengths);
    EXPECT_THAT(problems(*plan), testing::IsEmpty());
    least = std::min(least, peak(*plan));
    plan = planner.leaner(*plan);
    ++found;
  }
  EXPECT_FALSE(plan);
  EXPECT_GT(found, 3);
  EXPECT_LT(least, first / 2);
}

// It learns: plans for other documents of about that length are held to the same.
TEST(Planner, HoldsSuchLengthsToLeanerPlans) {
  Planner planner(task(4, std::int64_t{128} << 20));
  const auto bytes = [&](std::int64_t length) {
    const std::optional<Plan> plan = planner.plan({length}).plan;
    return plan ? plan->micro_batches.front().groups.front().predicted.bytes->total() : -1;
  };
  const std::int64_t before = bytes(9000);
  const std::int64_t other = bytes(2000);
  ASSERT_GT(bytes(8900), before - before / 20);
  ASSERT_TRUE(planner.leaner(*planner.plan({9000}).plan));
  for (const std::int64_t length : {8500, 8900, 9000, 9100}) {
    EXPECT_LE(bytes(length), before - before / 20) << length;
    EXPECT_GT(bytes(length), 0);
  }
  EXPECT_EQ(bytes(2000), other);
  // Held to less than any plan for such documents takes, they are planned for as before.
  std::int64_t least = 0;
  for (std::optional<Plan> plan = planner.plan({9000}).plan; plan; plan = planner.leaner(*plan)) {
    least = plan->micro_batches.front().groups.front().predicted.bytes->total();
  }
  EXPECT_LT(least, before);
  EXPECT_EQ(bytes(9000), before);
}

TEST(Planner, RemembersPlansUntilItLearns) {
  Planner planner(task(4, 0));
  const std::vector<std::int64_t> lengths = long_tailed(5, 20);
  const Plan first = *planner.plan(lengths).plan;
  EXPECT_FALSE(planner.was_cached());
  EXPECT_EQ(*planner.plan(lengths).plan, first);
  EXPECT_TRUE(planner.was_cached());
  for (int i = 0; i < 3; ++i) {
    EXPECT_FALSE(planner.observe(first, 2));
  }
  const Plan later = *planner.plan(lengths).plan;
  EXPECT_FALSE(planner.was_cached());
  EXPECT_GT(*later.predicted.seconds, *first.predicted.seconds);
}

// What a run learned goes into the next: the same plans.
TEST(Planner, GoesOnWithWhatAnotherLearned) {
  const PlanningTask t = task(4, std::int64_t{128} << 20);
  Planner planner(t);
  const std::vector<std::int64_t> lengths = {9000, 300, 200, 4000};
  const Plan fresh = *planner.plan(lengths).plan;
  for (int i = 0; i < 4; ++i) {
    planner.observe(fresh, 3);
  }
  ASSERT_TRUE(planner.leaner(fresh));
  planner.learn(planner.learned());  // small changes of factors, too, which were not worth planning
  const Plan learned = *planner.plan(lengths).plan;
  ASSERT_NE(learned, fresh);

  Planner next(t);
  EXPECT_EQ(*next.plan(lengths).plan, fresh);  // to the bit of its predicted seconds
  next.learn(planner.learned());
  EXPECT_EQ(next.learned(), planner.learned());
  EXPECT_EQ(*next.plan(lengths).plan, learned);
}

// What was measured to be slow is used less.
TEST(Planner, AvoidsWhatStepsFoundSlow) {
  PlanningTask t = task(4, 0);
  Planner planner(t);
  const std::vector<std::int64_t> lengths = {12000};
  const Plan first = *planner.plan(lengths).plan;
  const std::string used =
      part_of(first.programs.at(first.micro_batches[0].groups[0].program)[0].choice, "attention")
          .strategy;
  for (int i = 0; i < 3; ++i) {
    planner.observe(first, 4, /*attention_alone=*/true);
  }
  const Plan later = *planner.plan(lengths).plan;
  EXPECT_NE(
      part_of(later.programs.at(later.micro_batches[0].groups[0].program)[0].choice, "attention")
          .strategy,
      used);
}

// A strategy that another beats in everything that is predicted comes back once steps find that
// other one slow.
TEST(Planner, ComesBackToWhatOnlyAPredictionBeat) {
  const std::vector<std::int64_t> lengths = {12000};
  const auto planner_of = [](const std::vector<std::string>& names) {
    PlanningTask t = task(4, 0);
    t.recompute = "none";
    t.mlp = "gather";
    t.try_options = false;
    for (const Strategy& s : strategies("attention")) {
      if (std::find(names.begin(), names.end(), s.name) == names.end()) {
        t.without.push_back(s.name);
      }
    }
    return std::make_unique<Planner>(t);
  };
  const auto used = [](const Plan& plan) {
    return part_of(plan.programs.at(plan.micro_batches[0].groups[0].program)[0].choice, "attention")
        .strategy;
  };
  int pairs = 0;
  for (const Strategy& a : strategies("attention")) {
    for (const Strategy& b : strategies("attention")) {
      if (a.one_rank || b.one_rank || a.name == b.name) {
        continue;
      }
      const auto planner = planner_of({a.name, b.name});
      const Plan first = *planner->plan(lengths).plan;
      const double seconds = *first.predicted.seconds;
      const Plan other = *planner_of({b.name})->plan(lengths).plan;
      const bool beaten = planner->documents().choices(lengths[0], 4).ways.costs.size() == 1;
      if (used(first) != a.name || !beaten || *other.predicted.seconds > 1.7 * seconds) {
        continue;
      }
      SCOPED_TRACE(a.name + " beats " + b.name);
      ++pairs;
      for (int i = 0; i < 3; ++i) {
        planner->observe(first, 3, /*attention_alone=*/true);
      }
      const Plan later = *planner->plan(lengths).plan;
      EXPECT_EQ(used(later), b.name);
      for (int i = 0; i < 3; ++i) {
        planner->observe(later, 1);
      }
      const Plan known = *planner->plan(lengths).plan;
      EXPECT_EQ(used(known), b.name);
      EXPECT_NEAR(*known.predicted.seconds / *other.predicted.seconds, 1, 0.05);
    }
  }
  EXPECT_GE(pairs, 3);
}

TEST(Planner, AsPublishedSplitsEveryDocument) {
  PlanningTask t = task(4, std::int64_t{64} << 20);
  t.planner = "paradyse-heuristic";
  t.recompute = "none";
  Planner planner(t);
  const Plan plan = *planner.plan({100, 5000, 40}).plan;
  EXPECT_EQ(plan.planner_name, "paradyse-heuristic");
  EXPECT_THAT(problems(plan), testing::IsEmpty());
  for (const PlanMicroBatch& micro : plan.micro_batches) {
    ASSERT_EQ(micro.groups.size(), 1U);
    EXPECT_EQ(micro.groups[0].ranks.size(), 4U);
  }
}

// Smoothed, a document keeps the program of the one before while that is within 5 % of its own.
TEST(Planner, AsPublishedKeepsThePlanOfBefore) {
  PlanningTask t = task(4, std::int64_t{64} << 20);
  t.planner = "paradyse-heuristic";
  t.recompute = "none";
  Planner smoothed(t);
  t.smoothing = false;
  Planner plain(t);
  int kept = 0;
  LayerRuns before;
  for (std::int64_t length = 200; length < 20000; length += 97) {
    const std::optional<DocumentPlan> own = plain.document(length);
    const std::optional<DocumentPlan> found = smoothed.document(length);
    ASSERT_EQ(own.has_value(), found.has_value());
    if (!own) {
      break;
    }
    EXPECT_LE(found->seconds, 1.05 * own->seconds);
    if (found->program != own->program) {
      EXPECT_EQ(found->program, before) << length;
      ++kept;
    }
    before = found->program;
  }
  EXPECT_GT(kept, 0);
}

TEST(Planner, RefusesWhatCannotBe) {
  PlanningTask t = task(4, 0);
  t.attention = "MegatronT";
  EXPECT_THROW(Planner{t}, std::invalid_argument);
  t.attention = "";
  t.planner = "papr";
  EXPECT_THROW(Planner{t}, std::invalid_argument);
  t.planner = "exact";
  t.attention = "DataZ";
  t.mlp = "hold";
  EXPECT_THROW(Planner{t}, std::invalid_argument);
}

}  // namespace
}  // namespace paradyse
