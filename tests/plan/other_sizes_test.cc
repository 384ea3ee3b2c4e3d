// Models of other sizes: what each family changes, and what it refuses.
#include <stdexcept>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "paradyse/plan/lora.h"
#include "paradyse/plan/model.h"
#include "paradyse/plan/parts.h"
#include "src/plan/model/evoformer/evoformer.h"
#include "src/plan/model/stdit/stdit.h"
#include "src/plan/model/text/text_shape.h"

namespace paradyse {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

void expect_refused(const Model& model, const OtherSizes& sizes, const char* what) {
  EXPECT_THAT(
      [&] { (void)with_sizes(model, sizes); },
      ThrowsMessage<std::invalid_argument>(HasSubstr(what)));
}

TEST(OtherSizes, OfVideoModelsAreWidthHeadsAndLayers) {
  const StditShape shape{
      .depth = 3, .hidden = 16, .heads = 4, .kv_heads = 4, .mlp_hidden = 40, .channels = 3};
  StditShape wide = shape;
  wide.hidden = 24;
  wide.mlp_hidden = 60;
  EXPECT_EQ(with_sizes(shape, {.hidden = 24}).sha256, Model(wide).sha256);
  wide.kv_heads = 2;
  wide.depth = 5;
  const Model made = with_sizes(shape, {.layers = 5, .hidden = 24, .kv_heads = 2});
  EXPECT_EQ(made.sha256, Model(wide).sha256);
  EXPECT_EQ(made.config, Model(wide).config);
  EXPECT_EQ(made.layers, 5);
  EXPECT_EQ(with_sizes(shape, {}).sha256, Model(shape).sha256);
  expect_refused(shape, {.hidden = 18}, "stdit: hidden_size: 18 is not a multiple of num_heads 4");
  expect_refused(shape, {.kv_heads = 3}, "3 does not divide num_heads 4");
  expect_refused(shape, {.vocab = 9}, "no model 'stdit' of other vocabulary");

  StditShape third = shape;
  third.stdit3 = true;
  third.caption_channels = 8;
  StditShape narrow = third;
  narrow.hidden = 8;
  narrow.mlp_hidden = 20;
  EXPECT_EQ(with_sizes(third, {.hidden = 8}).config, Model(narrow).config);
  expect_refused(third, {.hidden = 12}, "not a multiple of twice num_heads");
  expect_refused(third, {.kv_heads = 2}, "num_key_value_heads");
}

TEST(OtherSizes, OfProteinModelsAreLayers) {
  const Model model = evoformer_model({.blocks = 4});
  EXPECT_EQ(with_sizes(model, {.layers = 2}).layers, 2);
  expect_refused(model, {.hidden = 64}, "no model 'evoformer' of other hidden width");
}

TEST(OtherSizes, OfLanguageModelsKeepDropoutAndAdapters) {
  TextShape shape;
  shape.architecture = "opt";
  shape.layers = 3;
  shape.hidden = 8;
  shape.heads = shape.kv_heads = 2;
  shape.head_dim = 4;
  shape.ffn = 12;
  shape.vocab = 40;
  shape.max_positions = 16;
  shape.position_offset = 2;
  shape.learned_positions = shape.layer_norm = true;
  shape.padding_id = 30;
  const Model model = with_attention_dropout(shape, 0.2);
  const Model made = with_sizes(model, {.layers = 1, .vocab = 20, .positions = 64});
  EXPECT_EQ(made.layers, 1);
  EXPECT_EQ(made.vocab(), 20);
  EXPECT_EQ(made.parts.front().part->shape.padding_id, -1);
  EXPECT_EQ(made.learned_positions(), 64);
  EXPECT_TRUE(made.limits.longest.allows(64));
  EXPECT_EQ(made.part("attention")->shape.attention_dropout, 0.2);
  EXPECT_EQ(with_sizes(model, {.vocab = 31}).parts.front().part->shape.padding_id, 30);
  EXPECT_FALSE(with_layers(model, 1).limits.longest.allows(17));
  expect_refused(model, {.kv_heads = 1}, "no model 'opt' of other key/value heads");

  shape = {};
  shape.layers = 4;
  shape.hidden = 8;
  shape.heads = shape.kv_heads = 2;
  shape.head_dim = 4;
  shape.ffn = 12;
  shape.vocab = 40;
  shape.window = 3;
  shape.windowed = {true, false};
  const Model windowed = with_lora(shape, {.rank = 2});
  EXPECT_EQ(windowed.period(), 2);
  const Model open = with_sizes(windowed, {.window = 0});
  EXPECT_EQ(open.period(), 1);
  EXPECT_TRUE(open.lora);
}

TEST(OtherSizes, OfModelsOfNoFamilyAreLayers) {
  const PartShape shape{
      .hidden = 8,
      .heads = 2,
      .kv_heads = 2,
      .head_dim = 4,
      .ffn = 16,
      .activation = Activation::gelu};
  Model model{
      .name = "own",
      .streams = {{"x", {"days", "places"}, shape.hidden, "days"}},
      .parts = {},
      .causal = false};
  add_end(model, projection_part("embedding", "x", "seen", 3, shape));
  add_layers(model, 2, {mlp_part("mixer", "x", shape)});
  add_end(model, prediction_part("head", "x", "next", 3, shape));
  EXPECT_EQ(with_sizes(model, {.layers = 3}).layers, 3);
  EXPECT_EQ(with_sizes(model, {}).layers, 2);
  expect_refused(model, {.layers = 3, .hidden = 4}, "no model 'own' of other hidden width");
}

}  // namespace
}  // namespace paradyse
