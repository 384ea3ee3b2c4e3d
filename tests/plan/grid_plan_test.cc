// Plans of video and protein models as files: what the planner writes is sound, sends what it said,
// and is refused by name where somebody edited it.
#include <functional>
#include <map>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "paradyse/plan/grid_models.h"
#include "paradyse/plan/group_timeline.h"
#include "paradyse/plan/index.h"
#include "paradyse/plan/layout_planner.h"
#include "paradyse/plan/plan.h"
#include "tests/support/grid_shapes.h"

namespace paradyse {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;

struct Subject {
  GridShape shape;
  std::int64_t samples = 1;
  std::map<std::string, std::int64_t> dims;
};

// 5 frames and 6 patches, or 5 sequences of 7 residues.
Subject video(std::int64_t depth = 3) {
  return {.shape = test::small_stdit(depth), .samples = 2, .dims = {{"frames", 5}, {"patches", 6}}};
}

Subject protein(bool multimer = false) {
  EvoformerShape shape = test::small_evoformer(2);
  shape.multimer = multimer;
  return {.shape = shape, .dims = {{"sequences", 5}, {"residues", 7}, {"i", 7}, {"j", 7}}};
}

LayoutTask task_of(const Subject& subject, const Model& model, int ranks) {
  LayoutTask task{.model = &model, .documents = {}, .seconds = {}};
  const std::int64_t rows = subject.dims.contains("frames") ? 30 : 35;
  task.documents = packed(std::vector<std::int64_t>(idx(subject.samples), rows), ranks, false);
  task.documents.dims = subject.dims;
  return task;
}

Plan plan_of(const Subject& subject, int ranks) {
  const Model model = grid_model(subject.shape);
  const LayoutTask task = task_of(subject, model, ranks);
  return plan_of(task, plan_layouts(task, model.layers), subject.shape, 0.5);
}

TEST(GridPlan, IsSoundAndSendsWhatItSaid) {
  for (const Subject& subject : {video(), protein(), protein(true)}) {
    const Model model = grid_model(subject.shape);
    for (const int ranks : {1, 2, 3, 4, 8}) {
      const LayoutTask task = task_of(subject, model, ranks);
      const LayoutPlan layouts = plan_layouts(task, model.layers);
      const Plan plan = plan_of(task, layouts, subject.shape, 0.5);
      EXPECT_THAT(problems(plan, {.grid = &subject.shape}), IsEmpty());
      EXPECT_THAT(problems(plan), IsEmpty());
      EXPECT_EQ(plan_from_json(to_json(plan), "plan"), plan);
      const GroupTimeline built =
          group_timeline(plan, plan.micro_batches[0].groups[0], model, true);
      GroupElements sum;
      for (const ScheduledPart& part : built.parts) {
        for (const Seat seat : built.seats) {
          sum += sent_in_group(part, seat);  // ends send nothing
        }
      }
      EXPECT_NEAR(layouts.elements_forward, static_cast<double>(sum.forward) / ranks, 1e-9);
      EXPECT_NEAR(layouts.elements_backward, static_cast<double>(sum.backward) / ranks, 1e-9);
      // Where streams are made where they are wanted it costs no more than in a circle.
      EXPECT_LE(
          layouts.elements(),
          plan_layouts(task).elements() * static_cast<double>(model.layers) + 1e-9);
    }
  }
}

TEST(GridPlan, IsRefusedByNameWhereItContradictsAPart) {
  const Subject subject = video(1);
  const auto found = [&](const std::function<void(Plan & plan, LayerChoice & layer)>& edit) {
    Plan plan = plan_of(subject, 2);
    edit(plan, plan.programs.at("layout").front().choice);
    return problems(plan, {.grid = &subject.shape});
  };
  EXPECT_THAT(found([](Plan&, LayerChoice&) {}), IsEmpty());
  EXPECT_THAT(
      found([](Plan&, LayerChoice& layer) { part_of(layer, "spatial_mlp").out["x"] = {"R"}; }),
      Contains(AllOf(HasSubstr("parts[1].out.x"), HasSubstr("R expected"))));
  EXPECT_THAT(
      found([](Plan&, LayerChoice& layer) {
        part_of(layer, "spatial_attention").in["x"] = {"S(patches)"};
        part_of(layer, "spatial_attention").strategy = "Local";
      }),
      Contains(HasSubstr("spatial_attention")));
  EXPECT_THAT(
      found([](Plan&, LayerChoice& layer) {
        part_of(layer, "temporal_mlp").in["x"] = {"S(sequences)"};
      }),
      Contains(AllOf(HasSubstr("parts[3].in.x"), HasSubstr("sequences"))));
  EXPECT_THAT(
      found([](Plan&, LayerChoice& layer) { part_of(layer, "temporal_mlp").strategy = "Local"; }),
      Contains(AllOf(HasSubstr("parts[3].strategy"), HasSubstr("Local"))));
  EXPECT_THAT(
      found([](Plan& plan, LayerChoice&) { plan.dims["residues"] = 3; }),
      Contains(AllOf(HasSubstr("dims.residues"), HasSubstr("frames, patches"))));
  EXPECT_THAT(
      found([](Plan& plan, LayerChoice&) { plan.dims.erase("patches"); }),
      Contains(HasSubstr("'patches' has no size")));
  EXPECT_THAT(
      found([](Plan& plan, LayerChoice&) { plan.model_sha256 = "1"; }),
      Contains(HasSubstr("model.sha256")));
  EXPECT_THAT(
      found([](Plan&, LayerChoice& layer) { layer.pop_back(); }),
      Contains(HasSubstr("spatial_attention, then spatial_mlp, then temporal_attention")));
}

TEST(GridPlan, IsRefusedForAModelOfAnotherFamily) {
  const Plan plan = plan_of(protein(), 2);
  const Subject other = video(2);
  EXPECT_THAT(
      problems(plan, {.grid = &other.shape}),
      Contains(AllOf(HasSubstr("model.name"), HasSubstr("evoformer"), HasSubstr("stdit"))));
  const ModelShape text{
      .layers = 2, .hidden = 8, .heads = 2, .kv_heads = 2, .head_dim = 4, .ffn = 8, .vocab = 8};
  EXPECT_THAT(
      problems(plan, {.model = &text}),
      Contains(AllOf(HasSubstr("model.name"), HasSubstr("evoformer"))));
  std::string json = to_json(plan);
  json.replace(json.find("row_attention"), 13, "col_attention");
  EXPECT_THAT(
      [&] { plan_from_json(json, "plan"); },
      testing::ThrowsMessage<std::invalid_argument>(AllOf(
          HasSubstr("parts[0].part"), HasSubstr("\"row_attention\", found \"col_attention\""))));
}

}  // namespace
}  // namespace paradyse
