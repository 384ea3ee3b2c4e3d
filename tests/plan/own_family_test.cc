// A family of models that nobody here knows: added, read, planned, checked, written and simulated.
#include <functional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "paradyse/plan/model_folder.h"
#include "paradyse/plan/parts.h"
#include "paradyse/plan/plan.h"
#include "paradyse/plan/sample_planner.h"
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
    const Plan plan = planner_for(task)->plan(batch).plan.value();
    EXPECT_EQ(ranks > 1, plan.micro_batches.front().groups.size() > 1);
    EXPECT_THAT(problems(plan, {.model = model}), IsEmpty());
    EXPECT_EQ(plan_from_json(to_json(plan), "again"), plan);
    EXPECT_GT(simulate(plan, model, small_cluster(ranks, 1)).seconds, 0);
    Plan wrong = plan;
    wrong.programs.begin()->second.front().choice.pop_back();
    EXPECT_THAT(problems(wrong), Contains(HasSubstr("along_days, then along_places, then mixer")));
  }
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
