// A family of models that nobody here knows: added, read, planned, checked, written and simulated;
// and a batch planner.
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "paradyse/plan/batch_planner.h"
#include "paradyse/plan/detail/index.h"
#include "paradyse/plan/model_folder.h"
#include "paradyse/plan/parts.h"
#include "paradyse/plan/plan.h"
#include "paradyse/plan/simulate.h"
#include "tests/plan/small_cluster.h"
#include "tests/support/refusal.h"

namespace paradyse {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;

// Weather on a map over days: attention along days, then along places.
Model weather(std::int64_t layers) {
  const PartShape shape{
      .hidden = 8,
      .heads = 2,
      .kv_heads = 2,
      .head_dim = 4,
      .ffn = 16,
      .activation = Activation::gelu};
  Model model{
      .name = "weather",
      .family = "weather",
      .sha256 = "of the shape",
      .streams = {{"x", {"days", "places"}, shape.hidden, "days"}},
      .parts = {},
      .causal = false};
  add_end(model, projection_part("embedding", "x", "seen", 3, shape));
  add_layers(
      model,
      layers,
      {attention_part("along_days", "x", "days", shape),
       attention_part("along_places", "x", "places", shape),
       mlp_part("mixer", "x", shape)});
  add_end(model, prediction_part("head", "x", "next", 3, shape));
  return model;
}

void add_weather_once() {
  static const bool added = [] {
    add_model_family(
        {.name = "weather",
         .types = {"weather"},
         .read =
             [](const std::string& json, const std::string& source) {
               if (json.find("\"layers\":2") == std::string::npos) {
                 throw std::invalid_argument(source + ": layers: only 2 are accepted");
               }
               return weather(2);
             },
         .variants = {weather(1)}});
    return true;
  }();
  ASSERT_TRUE(added);
}

TEST(OwnFamily, IsReadByItsType) {
  EXPECT_THROW(model_from_config(R"({"model_type": "weather"})", "a"), std::invalid_argument);
  add_weather_once();
  const Model model = model_from_config(R"({"model_type": "weather", "layers": 2})", "a folder");
  EXPECT_EQ(model.family, "weather");
  EXPECT_EQ(model.config, R"({"layers":2,"model_type":"weather"})");  // which runs save
  EXPECT_EQ(model.layers, 2);
  EXPECT_THAT(
      test::refusal(
          [] { model_from_config(R"({"model_type": "weather", "layers": 3})", "a folder"); }),
      HasSubstr("a folder: layers"));
}

TEST(OwnFamily, IsPlannedCheckedAndSimulatedInGroups) {
  add_weather_once();
  const Model model = weather(2);
  BatchSizes batch;
  for (const std::int64_t days : {2, 9, 2, 3}) {
    batch.dims.push_back({{"days", days}, {"places", 5}});
    batch.lengths.push_back(model.rows(batch.dims.back()));
  }
  for (const int ranks : {1, 2, 3, 4}) {
    PlanningTask task{.model = model, .ranks = ranks, .machine = {}, .batch_planner = "groups"};
    task.machine.cores = ranks;
    const Plan plan = batch_planner(task)->plan(batch).plan.value();
    EXPECT_EQ(ranks > 1, plan.micro_batches.front().groups.size() > 1);
    EXPECT_THAT(problems(plan, {.model = model}), IsEmpty());
    EXPECT_EQ(plan_from_json(to_json(plan), "again"), plan);
    EXPECT_GT(simulate(plan, model, small_cluster(ranks, 1)).seconds, 0);
    Plan wrong = plan;
    wrong.programs.begin()->second.front().choice.pop_back();
    EXPECT_THAT(problems(wrong), Contains(HasSubstr("along_days, then along_places, then mixer")));
  }
}

// The rows that count are those of its first stream, whichever the loss is of.
TEST(OwnFamily, MayScoreAnotherStreamThanItsFirst) {
  Model model = weather(2);
  const PartShape shape = model.typical_part();
  model.streams.insert(model.streams.begin(), {"clock", {"hours"}, shape.hidden, "hours"});
  const Part ticks = projection_part("ticks", "clock", "heard", 1, shape);
  model.parts.insert(model.parts.begin(), {.layer = -1, .part = std::make_shared<Part>(ticks)});
  BatchSizes batch;
  for (const std::int64_t days : {2, 9, 2, 3}) {
    batch.dims.push_back({{"days", days}, {"places", 5}, {"hours", 4}});
    batch.lengths.push_back(model.rows(batch.dims.back()));
  }
  EXPECT_EQ(batch.lengths.front(), 4);
  PlanningTask task{.model = model, .ranks = 2, .machine = {}, .batch_planner = "groups"};
  task.machine.cores = 2;
  Plan plan = batch_planner(task)->plan(batch).plan.value();
  EXPECT_GT(plan.micro_batches.front().groups.size(), 1);
  EXPECT_THAT(problems(plan, {.model = model}), IsEmpty());
  plan.lengths.front() = 10;  // those of the stream that is scored
  EXPECT_THAT(problems(plan, {.model = model}), Contains(HasSubstr("the sample has 4")));
}

// A planner of one's own, by promised headers alone: whatever comes, one after the other, on all
// ranks.
class InTurn final : public BatchPlanner {
 public:
  explicit InTurn(const PlanningTask& task) : BatchPlanner(task), one_(alone(task)) {}

 private:
  static std::unique_ptr<BatchPlanner> alone(PlanningTask task) {
    task.batch_planner = "groups-of-all";
    return batch_planner(std::move(task));
  }

  Answer make(const BatchSizes& batch, Caps caps) override {
    Plan all;
    for (std::size_t i = 0; i < batch.lengths.size(); ++i) {
      BatchSizes of_one{.lengths = {batch.lengths[i]}};
      if (!batch.dims.empty()) {
        of_one.dims = {batch.dims[i]};
      }
      const Answer one = one_->plan(of_one);
      if (!one.plan) {
        return one;
      }
      if (i == 0) {
        all = *one.plan;
        all.programs.clear();
        all.micro_batches.clear();
        all.dims.clear();
      }
      PlanMicroBatch micro = one.plan->micro_batches.front();
      PlanGroup& group = micro.groups.front();
      const std::string name = "of " + std::to_string(i);
      all.programs[name] = one.plan->programs.at(group.program);
      group.program = name;
      group.documents = {static_cast<std::int64_t>(i)};
      group.dims = of_one.dims.empty() ? DimSizes() : of_one.dims.front();
      all.micro_batches.push_back(std::move(micro));
    }
    all.lengths = batch.lengths;
    Answer answer;
    if (predicted_to_fit(all, caps)) {
      answer.plan = std::move(all);
    } else {
      answer.why_not = "one after the other they do not fit";
    }
    return answer;
  }

  std::unique_ptr<BatchPlanner> one_;
};

TEST(OwnPlanner, PlansDocumentsAndSamplesAndLearns) {
  const auto make = [](const PlanningTask& task) { return std::make_unique<InTurn>(task); };
  add_batch_planners(
      {{.name = "in-turn",
        .summary = "one after the other",
        .make = make,
        .sizes = [](int ranks) { return std::vector{ranks}; },
        .samples = true}});
  BatchSizes maps;
  const Model of_maps = weather(2);
  for (const std::int64_t days : {2, 9, 3}) {
    maps.dims.push_back({{"days", days}, {"places", 5}});
    maps.lengths.push_back(of_maps.rows(maps.dims.back()));
  }
  const Model of_text = model_from_config(
      R"({"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 32, "vocab_size": 97,
          "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 48,
          "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "rope_theta": 10000,
          "hidden_act": "silu", "tie_word_embeddings": false})",
      "a test");
  for (const int ranks : {1, 2, 3}) {
    for (const bool text : {true, false}) {
      PlanningTask task{
          .model = text ? of_text : of_maps,
          .ranks = ranks,
          .machine = {},
          .memory_per_rank = std::int64_t{1} << 30,
          .batch_planner = "in-turn"};
      const std::unique_ptr<BatchPlanner> planner = batch_planner(task);
      const BatchSizes batch = text ? BatchSizes{.lengths = {40, 7, 300}} : maps;
      const Plan plan = planner->plan(batch).plan.value();
      EXPECT_EQ(plan.micro_batches.size(), 3U);
      EXPECT_THAT(problems(plan, {.model = task.model}), IsEmpty());
      EXPECT_EQ(sizes_of(plan), batch);
      // four times as slow as predicted: the plan is expected to be so, too
      BatchPlanner::PartSeconds seconds;
      for (const PlanMicroBatch& micro : plan.micro_batches) {
        const PlanGroup& group = micro.groups.front();
        const auto parts = costed_parts(plan.programs.at(group.program)).size();
        const double one = 4 * group.predicted.seconds.value() / static_cast<double>(parts);
        seconds.emplace_back(idx(ranks), std::vector<double>(parts, one));
      }
      for (int step = 0; step < 20; ++step) {
        planner->observe(plan, seconds);
      }
      const Plan slower = planner->plan(batch).plan.value();
      EXPECT_GT(slower.predicted.seconds.value(), 2 * plan.predicted.seconds.value());
      EXPECT_LT(
          planner->leaner(slower).value_or(slower).predicted.seconds.value(),
          10 * slower.predicted.seconds.value());
    }
  }
  remove_batch_planner("in-turn");
}

TEST(OwnFamily, IsRefusedWhereANameIsTaken) {
  add_weather_once();
  const auto refused = [](OwnFamily family) {
    return test::refusal([&] { add_model_family(std::move(family)); });
  };
  EXPECT_THAT(refused({.name = "stdit", .variants = {}}), HasSubstr("family of this name"));
  EXPECT_THAT(
      refused({.name = "sea", .types = {"evoformer"}, .variants = {}}), HasSubstr("'evoformer'"));
  EXPECT_THAT(refused({.name = "sea", .variants = {weather(1)}}), HasSubstr("called 'weather'"));
  Model sea = weather(1);
  sea.name = "";
  EXPECT_THAT(refused({.name = "sea", .variants = {sea}}), HasSubstr("no name"));
  sea = Model{.name = "sea", .streams = weather(1).streams, .parts = {}, .causal = false};
  PartShape shape = weather(1).typical_part();
  add_layers(sea, 1, {mlp_part("along_days", "x", shape)});
  EXPECT_THAT(refused({.name = "sea", .variants = {sea}}), HasSubstr("of kind mlp"));
}

TEST(OwnFamily, IsTakenAway) {
  add_weather_once();
  EXPECT_THROW(remove_model_family("stdit"), std::invalid_argument);
  EXPECT_EQ(layer_kinds("weather").front().size(), 3U);
  add_model_family({.name = "sea", .types = {"sea"}, .variants = {}});
  remove_model_family("sea");
  EXPECT_THROW(remove_model_family("sea"), std::invalid_argument);
  EXPECT_EQ(layer_kinds("weather").front().size(), 3U);
}

}  // namespace
}  // namespace paradyse
