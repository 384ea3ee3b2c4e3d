// Which sizes are counted: of the axis that is attended along, and of no other.
#include "src/plan/plan/size_limits.h"

#include <array>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "paradyse/plan/plan.h"
#include "src/plan/model/evoformer/evoformer.h"
#include "src/plan/model/stdit/stdit.h"
#include "src/plan/model/text/text_shape.h"

namespace paradyse {
namespace {

using testing::HasSubstr;

Model text() {
  return TextShape{
      .layers = 2, .hidden = 16, .heads = 4, .kv_heads = 2, .head_dim = 4, .ffn = 24, .vocab = 40};
}

Model video(std::int64_t captions = 0) {
  return stdit_model(
      {.depth = 2,
       .hidden = 8,
       .heads = 2,
       .kv_heads = 2,
       .mlp_hidden = 8,
       .caption_channels = captions});
}

TEST(SizeLimits, CountTheAttendedAxisAlone) {
  EXPECT_EQ(attended_pairs(video(), {{"frames", 3}, {"patches", 5}}), 3 * 5 * 5);
  EXPECT_EQ(attended_pairs(video(), {{"frames", 7}, {"patches", 5}}), 7 * 7 * 5);
  EXPECT_EQ(attended_pairs(video(4), {{"frames", 3}, {"patches", 5}, {"text", 9}}), 3 * 5 * 9);
  const Model protein = evoformer_model({.blocks = 1});
  EXPECT_EQ(
      attended_pairs(protein, {{"sequences", 9}, {"residues", 4}, {"i", 4}, {"j", 4}}), 9 * 9 * 4);
  EXPECT_EQ(  // pairs of residues attend along one of them
      attended_pairs(protein, {{"sequences", 2}, {"residues", 4}, {"i", 4}, {"j", 4}}),
      4 * 4 * 4);
  EXPECT_EQ(attended_pairs(text(), {{"tokens", 6}}), 36);
}

TEST(SizeLimits, AreThoseOfSixtyFourBits) {
  const DimSizes large = {{"frames", 600}, {"patches", 40000}};
  EXPECT_EQ(more_than_counted(video(), large, 8), "");
  EXPECT_THAT(more_than_counted(video(), large, 1 << 11), HasSubstr("pairs of rows"));
  const DimSizes absurd = {{"frames", 1 << 24}, {"patches", 1 << 24}};
  EXPECT_THAT(more_than_counted(video(), absurd, 1), HasSubstr("rows"));
  const std::array<std::int64_t, 2> documents = {1 << 24, 1 << 24};
  EXPECT_EQ(more_than_counted(text(), documents), "");
  EXPECT_THAT(
      more_than_counted(text(), std::array<std::int64_t, 1>{std::int64_t{1} << 25}),
      HasSubstr("pairs of rows"));
}

}  // namespace
}  // namespace paradyse
