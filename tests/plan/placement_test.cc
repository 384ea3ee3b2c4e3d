// Placements of streams, and the moves that a timeline puts between parts that want them otherwise.
#include "paradyse/plan/detail/placement.h"

#include <algorithm>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "paradyse/plan/cost.h"
#include "paradyse/plan/detail/op_traits.h"
#include "paradyse/plan/plan.h"
#include "src/plan/model/text/text_shape.h"
#include "tests/support/plans.h"
#include "tests/support/refusal.h"

namespace paradyse {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TextShape small() {
  return {
      .layers = 3, .hidden = 12, .heads = 6, .kv_heads = 2, .head_dim = 2, .ffn = 7, .vocab = 11};
}

std::vector<std::string> names(const Timeline& parts) {
  std::vector<std::string> all;
  for (const ScheduledPart& part : parts) {
    all.push_back(part.program().part);
  }
  return all;
}

// Frames of patches, as a video's.
const Stream kGrid{
    .name = "x", .rows = {"batch", "frames", "patches"}, .columns = 8, .home = "frames"};

Documents clips(int ranks, std::vector<int> mesh = {}) {
  Documents documents = packed({15, 15}, ranks, false);
  documents.dims = {{"frames", 5}, {"patches", 3}};
  documents.mesh = std::move(mesh);
  return documents;
}

TEST(Placement, HomeCutsOneDimOverAllRanks) {
  const Layout tokens = home(text_model(small()).stream("x"), packed({9, 4}, 3, true));
  EXPECT_EQ(to_string(tokens), "S(tokens)");
  EXPECT_EQ(tokens.dims.front().cuts, packed({9, 4}, 3, true).cuts);
  const Layout frames = home(kGrid, clips(3));
  EXPECT_EQ(to_string(frames), "S(frames)");
  EXPECT_EQ(frames.dims[0].size, 2);
  EXPECT_EQ(frames.dims[1].cuts, even_cuts(5, 3));
  EXPECT_EQ(frames.columns().size, 8);
}

TEST(Placement, AnAxisOfAMeshCutsADim) {
  EXPECT_TRUE(lie_alike(placed(kGrid, clips(3), {"S(frames)"}), home(kGrid, clips(3)), 3));
  EXPECT_EQ(placed(kGrid, clips(3), {"R"}), home(kGrid, clips(3)).whole());
  const Layout both = placed(kGrid, clips(6, {2, 3}), {"S(frames)", "S(columns)"});
  EXPECT_TRUE(is_partition(both, 6));
  for (int rank = 0; rank < 6; ++rank) {  // numbered row by row
    EXPECT_EQ(both.dims[1].piece(rank), even_cuts(5, 2)[static_cast<std::size_t>(rank / 3)]);
    EXPECT_EQ(both.dims[3].piece(rank), even_cuts(8, 3)[static_cast<std::size_t>(rank % 3)]);
  }
  const Layout copies = placed(kGrid, clips(6, {2, 3}), {"R", "S(patches)"});
  EXPECT_FALSE(is_partition(copies, 6));
  for (int rank = 0; rank < 6; ++rank) {
    EXPECT_EQ(copies.elements(rank), 2 * 5 * 1 * 8);
  }
}

TEST(Placement, RefusesWhatIsNone) {
  const auto of = [](const Placement& placement, std::vector<int> mesh = {}) {
    return test::refusal([&] { placed(kGrid, clips(6, mesh), placement); });
  };
  EXPECT_THAT(of({"frames"}), HasSubstr("'frames' is not a placement"));
  EXPECT_THAT(of({"S()"}), HasSubstr("not a placement"));
  EXPECT_THAT(of({"P"}), HasSubstr("not a placement"));
  EXPECT_THAT(of({"S(words)"}), HasSubstr("no dim 'words'; there are batch, frames, patches"));
  EXPECT_THAT(of({"R", "R"}), HasSubstr("2 placements of x for a mesh of 1 axis"));
  EXPECT_THAT(of({"R"}, {2, 3}), HasSubstr("1 placements of x for a mesh of 2 axes"));
  EXPECT_THAT(of({"S(frames)", "S(frames)"}, {2, 3}), HasSubstr("two axes shard dim 'frames'"));
  Documents unknown = clips(2);
  unknown.dims.erase("patches");
  EXPECT_THAT(test::refusal([&] { home(kGrid, unknown); }), HasSubstr("dim 'patches' has no size"));
}

// --- moves ---------------------------------------------------------------------------------------

LayerChoice placed_layer(const Placement& attention, const Placement& mlp) {
  LayerChoice layer = text_layer("UlyssesZ", "gather");
  if (!attention.empty()) {
    part_of(layer, "attention").in["x"] = attention;
  }
  if (!mlp.empty()) {
    part_of(layer, "mlp").in["x"] = mlp;
  }
  return layer;
}

TEST(Moves, StandWhereAStreamLiesOtherwise) {
  const Model model = text_model(small());
  const Documents documents = packed({9, 4, 1}, 3, true);
  const auto run = [&](const LayerChoice& layer) {
    return timeline(model, documents, 3, std::vector<LayerChoice>(3, layer));
  };
  EXPECT_THAT(
      names(run(placed_layer({}, {}))),
      ElementsAre("embedding", "attention", "mlp", "attention", "mlp", "attention", "mlp", "head"));
  // its own home is no reason to move
  EXPECT_EQ(names(run(placed_layer({"S(tokens)"}, {"S(tokens)"}))).size(), 8U);
  const Timeline parts = run(placed_layer({}, {"R"}));
  EXPECT_THAT(
      names(parts),
      ElementsAre(
          "embedding",
          "attention",
          "move x",
          "mlp",
          "move x",
          "attention",
          "move x",
          "mlp",
          "move x",
          "attention",
          "move x",
          "mlp",
          "move x",
          "head"));
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const bool moves = parts[i].program().part == "move x";
    EXPECT_EQ(parts[i].weights < 0, moves);
    if (!moves) {
      continue;
    }
    EXPECT_EQ(parts[i].layer, parts[i + 1].layer);
    EXPECT_THAT(parts[i].schedule().saved, IsEmpty());
    EXPECT_EQ(parts[i].program().strategy, i % 4 == 2 ? "all_gather" : "slice");
    if (i > 4 && i < 12) {  // each is made once; that to the head is another
      EXPECT_EQ(parts[i].body, parts[i - 4].body) << i;
    }
  }
  // All layers there: moved once, and back for the head.
  EXPECT_EQ(names(run(placed_layer({"R"}, {"R"}))).size(), 8U + 2U);
  // On one rank everything lies alike.
  EXPECT_EQ(
      timeline(
          model,
          packed({9, 4, 1}, 1, true),
          1,
          std::vector<LayerChoice>(3, placed_layer({}, {"R"})))
          .size(),
      8U);
}

TEST(Moves, StrategiesSayFromWhereTheyCannotRun) {
  const Model model = text_model(small());
  const auto why = [&](const LayerChoice& layer) {
    return test::refusal([&] {
      timeline(model, packed({9, 4, 1}, 3, true), 3, std::vector<LayerChoice>(3, layer));
    });
  };
  EXPECT_EQ(why(placed_layer({"R"}, {"R"})), "");
  EXPECT_THAT(
      why(placed_layer({"S(columns)"}, {})), HasSubstr("attention: a norm takes whole rows"));
  EXPECT_THAT(why(placed_layer({}, {"S(columns)"})), HasSubstr("mlp: a norm takes whole rows"));
  for (const char* ring : {"MegatronCZ", "ColossalZ", "METP"}) {
    LayerChoice layer = placed_layer({"R"}, {});
    part_of(layer, "attention").strategy = ring;
    EXPECT_THAT(why(layer), HasSubstr("every rank needs its own queries")) << ring;
  }
  LayerChoice held = placed_layer({}, {"R"});
  part_of(held, "mlp").strategy = "hold";
  EXPECT_EQ(why(held), "");  // terms are added up, then gathered
  LayerChoice other = placed_layer({}, {});
  part_of(other, "mlp").in["m"] = {"R"};
  EXPECT_THAT(why(other), HasSubstr("mlp: reads no tensor 'm'"));
}

// --- a model of several dims ---------------------------------------------------------------------

// Two MLPs a layer over a grid; which sees a whole line of frames, or of patches, is for plans to
// say.  `extra`: a stream that is written and never read.
Model grid_model(bool extra) {
  const Model text = text_model(small());
  const auto part = [&](const std::string& name, const std::string& along) {
    Part made = *text.part("mlp");
    made.name = name;
    made.along = along;
    return std::make_shared<const Part>(std::move(made));
  };
  Model model{
      .streams =
          {{.name = "x",
            .rows = {"batch", "frames", "patches"},
            .columns = small().hidden,
            .home = "frames"}},
      .parts = {},
      .layers = 3};
  if (extra) {
    model.streams.push_back(
        {.name = "z", .rows = {"batch", "patches"}, .columns = small().hidden, .home = "patches"});
  }
  model.parts.push_back({.part = text.part("embedding")});
  const auto spatial = part("spatial", "patches");
  const auto temporal = part("temporal", "frames");
  Part aside = *text.part("mlp");
  aside.name = "aside";
  aside.writes = {"z"};
  const auto unread = std::make_shared<const Part>(std::move(aside));
  for (std::int64_t layer = 0; layer < 3; ++layer) {
    model.parts.push_back({.layer = layer, .part = spatial});
    model.parts.push_back({.layer = layer, .part = temporal});
    if (extra) {
      model.parts.push_back({.layer = layer, .part = unread});
    }
  }
  model.parts.push_back({.part = text.part("head")});
  return model;
}

LayerChoice switched() {
  LayerChoice layer;
  for (const char* part : {"spatial", "temporal", "aside"}) {
    layer.push_back({.part = part, .strategy = "gather"});
  }
  layer[1].in["x"] = {"S(patches)"};
  return layer;
}

// A layer switches its stream there and back, 2 M (p - 1) / p^2 elements of a rank, where p divides
// both dims (DSP, Zhao et al. 2024, section 3); going back as many.
TEST(Grid, ALayerSwitchesTwice) {
  const Model model = grid_model(false);
  for (const int p : {2, 4}) {
    Documents documents = packed({64, 64}, p, false);
    documents.dims = {{"frames", 8}, {"patches", 8}};
    LayerChoice layer = switched();
    layer.pop_back();
    const Timeline parts = timeline(model, documents, p, std::vector<LayerChoice>(3, layer));
    EXPECT_THAT(
        names(parts),
        ElementsAre(
            "embedding",
            "spatial",
            "move x",
            "temporal",
            "move x",
            "spatial",
            "move x",
            "temporal",
            "move x",
            "spatial",
            "move x",
            "temporal",
            "move x",
            "head"));
    const std::int64_t M = 2 * 8 * 8 * small().hidden;
    for (const ScheduledPart& part : parts) {
      if (part.weights >= 0) {
        continue;
      }
      EXPECT_EQ(part.program().strategy, "all_to_all");
      for (int r = 0; r < p; ++r) {
        for (const Phase phase : {Phase::forward, Phase::adjoint}) {
          constexpr Precision kElements{.activation = 1, .statistic = 1};
          const OpView view{part.program(), part.program().ops[0], {r, r}, phase, kElements};
          EXPECT_EQ(traffic(view).bytes, M * (p - 1) / p / p);
        }
      }
    }
    // Rows of a line are neighbours where a rank has all of it.
    const Layout& of_temporal = parts[3].program().values.front().layout;
    EXPECT_EQ(of_temporal.dims[2].name, "frames");
    EXPECT_EQ(parts[1].program().values.front().layout.dims[2].name, "patches");
  }
}

TEST(Grid, PartsThatNobodyNeedsAreLeftOut) {
  const Model model = grid_model(true);
  const std::vector<bool> needed = model.needed();
  for (std::size_t i = 0; i < model.parts.size(); ++i) {
    EXPECT_EQ(needed[i], model.parts[i].part->name != "aside");
  }
  Documents documents = packed({15}, 3, false);
  documents.dims = {{"frames", 5}, {"patches", 3}};
  const Timeline parts = timeline(model, documents, 3, std::vector<LayerChoice>(3, switched()));
  EXPECT_THAT(names(parts), testing::Not(testing::Contains("aside")));
  EXPECT_EQ(parts.size(), 8U + 6U);
  EXPECT_EQ(parts.back().weights, static_cast<int>(model.parts.size()) - 1);
}

// --- plan files ----------------------------------------------------------------------------------

Plan placed_plan(int ranks, const LayerChoice& layer) {
  return test::uniform_plan(small(), {9, 4, 1}, ranks, layer);
}

TEST(PlacementInPlans, IsReadAsWrittenAndHashed) {
  const Plan without = placed_plan(4, placed_layer({}, {}));
  EXPECT_THAT(canonical_json(without), testing::Not(HasSubstr("\"in\"")));
  EXPECT_THAT(canonical_json(without), testing::Not(HasSubstr("mesh")));
  Plan plan = placed_plan(4, placed_layer({}, {"R", "S(tokens)"}));
  plan.micro_batches[0].groups[0].mesh = {2, 2};
  EXPECT_EQ(plan_from_json(to_json(plan), "plan"), plan);
  EXPECT_NE(hash(plan), hash(without));
  PartChoice& mlp = part_of(plan.programs.begin()->second[0].choice, "mlp");
  const std::string before = hash(plan);
  mlp.out["x"] = {"R", "S(tokens)"};
  mlp.elements = {.forward = 3, .backward = 4};
  EXPECT_EQ(plan_from_json(to_json(plan), "plan"), plan);
  EXPECT_EQ(hash(plan), before);
  plan.dims["frames"] = 3;
  EXPECT_EQ(plan_from_json(to_json(plan), "plan"), plan);
  EXPECT_NE(hash(plan), before);
}

TEST(PlacementInPlans, IsChecked) {
  const TextShape model = small();
  const auto wrong = [&](const Plan& plan) { return problems(plan, {.model = model}); };
  Plan plan = placed_plan(4, placed_layer({"R"}, {"R"}));
  EXPECT_THAT(wrong(plan), IsEmpty());
  PlanGroup& group = plan.micro_batches[0].groups[0];
  LayerChoice& layer = plan.programs.begin()->second[0].choice;
  PartChoice& mlp = part_of(layer, "mlp");

  group.mesh = {2, 2};
  EXPECT_THAT(wrong(plan), testing::Contains(HasSubstr("parts[1].in.x: 1 placements for a mesh")));
  EXPECT_THAT(problems(plan), testing::Contains(HasSubstr("parts[1].in.x: 1 placements")));
  part_of(layer, "attention").in["x"] = {"R", "S(tokens)"};
  mlp.in["x"] = {"S(tokens)", "R"};
  EXPECT_THAT(wrong(plan), IsEmpty());
  group.mesh = {3, 2};
  EXPECT_THAT(wrong(plan), ElementsAre(HasSubstr("groups[0].mesh: the product of its axes")));
  group.mesh = {0, 4};
  EXPECT_THAT(wrong(plan), ElementsAre(HasSubstr("mesh[0]: 0: an axis has at least 1 rank")));
  group.mesh = {2, 2};
  mlp.in["x"] = {"S(frames)", "R"};
  EXPECT_THAT(wrong(plan), ElementsAre(HasSubstr("parts[1].in.x: layout: no dim 'frames'")));
  mlp.in["x"] = {"S(columns)", "R"};
  EXPECT_THAT(wrong(plan), ElementsAre(HasSubstr("mlp: a norm takes whole rows")));
  mlp.in = {{"m", {"R", "R"}}};
  EXPECT_THAT(wrong(plan), ElementsAre(HasSubstr("parts[1].in.m: the part reads no tensor 'm'")));
  mlp.in = {};

  mlp.out["x"] = {"R", "R"};
  EXPECT_THAT(
      wrong(plan),
      ElementsAre(HasSubstr("parts[1].out.x: expected R, R, but in micro_batches[0].groups[0]")));
  mlp.out = {{"m", {"R", "R"}}};
  EXPECT_THAT(wrong(plan), ElementsAre(HasSubstr("the part writes no tensor 'm'")));
  mlp.out = {};
  plan.dims["frames"] = 3;
  EXPECT_THAT(
      wrong(plan), ElementsAre(HasSubstr("dims.frames: the model's documents have tokens")));
  plan.dims = {{"frames", 0}};
  EXPECT_THAT(problems(plan), ElementsAre(HasSubstr("dims.frames: 0: a dim has 1 to")));
}

// The gather of x in front of every MLP, and the slice behind it, which sends nothing.
TEST(PlacementInPlans, ElementsAreThoseOfTheProgramsAndTheirMoves) {
  const TextShape model = small();
  Plan plan = placed_plan(2, placed_layer({}, {"R"}));
  PartChoice& mlp = part_of(plan.programs.begin()->second[0].choice, "mlp");
  const std::int64_t mine = 7 * 12 * 3;  // of 14 tokens and 3 layers
  mlp.elements = {.forward = mine, .backward = mine};
  EXPECT_THAT(problems(plan, {.model = model}), IsEmpty());
  mlp.elements->backward += 1;
  EXPECT_THAT(
      problems(plan, {.model = model}),
      ElementsAre(HasSubstr("parts[1].elements.backward: expected 253, but the rank of "
                            "micro_batches[0].groups[0] that sends most sends 252")));
}

TEST(PlacementInPlans, FilesSayWhereTheyAreWrong) {
  std::string text = to_json(placed_plan(2, placed_layer({}, {"R"})));
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string other = text;
    const std::size_t at = other.find(from);
    EXPECT_NE(at, std::string::npos);
    other.replace(at, from.size(), to);
    return test::refusal([&] { plan_from_json(other, "file"); });
  };
  EXPECT_THAT(with("\"R\"", "\"all\""), HasSubstr("parts[1].in.x"));
  EXPECT_THAT(with("\"R\"", "\"all\""), HasSubstr("'all' is not a placement"));
  EXPECT_THAT(with("\"in\"", "\"inn\""), HasSubstr("did you mean 'in'"));
  EXPECT_THAT(with("\"program\"", "\"mesh\": [], \"program\""), HasSubstr("mesh: no axes"));
}

}  // namespace
}  // namespace paradyse
