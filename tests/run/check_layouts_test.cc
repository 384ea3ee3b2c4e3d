// `paradyse check` of models of several dims: its weights let every gradient be judged, whatever a
// model begins with, and a wrong gradient is found.
#include "src/run/check/check_layouts.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <string>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/grid_shapes.h"

namespace paradyse {
namespace {

LayoutCheckRequest request(const Model& model) {
  return {.name = "model", .model = model, .ranks = {1, 2}, .dtypes = {Dtype::float64}};
}

// As configs/models/evoformer_tiny.toml: norms of fewer columns make float32's rounding larger.
EvoformerShape openfold(bool global_column) {
  return {
      .blocks = 2,
      .msa_hidden = 16,
      .pair_hidden = 12,
      .msa_heads = 4,
      .pair_heads = 2,
      .head_dim = 4,
      .outer_channels = 4,
      .triangle_channels = 6,
      .transition = 2,
      .global_column = global_column,
      .openfold = true};
}

// Begin with zeros, and with numbers that are not of one width.
std::vector<Model> published() {
  StditShape zero = test::small_stdit3(2);
  zero.adaln_zero = true;
  EvoformerShape extra = openfold(false);
  extra.extra_blocks = 1;
  extra.extra_hidden = 16;
  extra.extra_heads = 4;
  extra.extra_head_dim = extra.extra_outer_channels = 4;
  return {test::small_stdit3(2), zero, openfold(false), openfold(true), extra};
}

TEST(CheckLayouts, PublishedBeginningsAreWithinTheTolerance) {
  for (const Model& model : published()) {
    LayoutCheckRequest of = request(model);
    of.dtypes = {Dtype::float64, Dtype::float32};
    for (const CheckRow& row : check_layouts(of)) {
      SCOPED_TRACE(
          fmt::format("{} {} {} {}", model.config, row.way, row.recompute, to_string(row.dtype)));
      EXPECT_TRUE(row.right()) << row.worst(1).error << " in " << row.worst(1).place;
    }
  }
}

// Gradients below a thousandth of all are judged by that (gradients.h): of such a size a part
// in 1e8 is found in float64.  Of the first layer, since not all of a last layer reaches the loss;
// but for what adds the same to all scores of a row, whose gradient is zero in exact arithmetic.
TEST(CheckLayouts, NoGradientVanishes) {
  for (const Model& model : published()) {
    LayoutCheckRequest of = request(model);
    of.ranks = {1};
    of.expected =
        [&](const Model& m, const reference::Weights& weights, const std::vector<Item>& samples) {
          reference::Answer answer = expected_of_samples(m, weights, samples);
          double all = 0;
          for (const auto& [name, gradient] : answer.gradients) {
            all += gradient.square().sum().item<double>();
          }
          for (const auto& [name, gradient] : answer.gradients) {
            // a trunk's are those of a model without extra blocks, where nothing is before it
            const std::string first =
                model.stacks().size() > 1 ? "extra_msa_stack.blocks.0." : "blocks.0.";
            if (name.find(first) != std::string::npos && !name.ends_with("layer_norm_z.bias")) {
              EXPECT_GT(gradient.norm().item<double>(), 1e-5 * std::sqrt(all)) << name;
            }
          }
          return answer;
        };
    check_layouts(of);
  }
}

TEST(CheckLayouts, AWrongGradientIsTooFar) {
  const Model model = test::small_stdit3(2);
  for (const std::string name :
       {"spatial_blocks.0.cross_attn.q_linear.weight",
        "temporal_blocks.1.cross_attn.q_linear.weight",
        "temporal_blocks.0.cross_attn.kv_linear.weight"}) {
    LayoutCheckRequest of = request(model);
    of.ranks = {1};
    of.expected =
        [&](const Model& m, const reference::Weights& weights, const std::vector<Item>& samples) {
          reference::Answer answer = expected_of_samples(m, weights, samples);
          answer.gradients.at(name).mul_(1 + 1e-9);
          return answer;
        };
    for (const CheckRow& row : check_layouts(of)) {
      EXPECT_FALSE(row.near()) << row.way;
      EXPECT_THAT(row.gradients[0].place, testing::HasSubstr(name));
    }
  }
}

// By less than what a gradient may be off whatever its condition.
TEST(CheckLayouts, ALongGradientIsWithinItsCondition) {
  for (const Model& model : {Model(test::small_stdit3(2)), Model(openfold(false))}) {
    LayoutCheckRequest of = request(model);
    of.ranks = {1};
    of.dtypes = {Dtype::bfloat16};
    std::string longest;
    of.expected =
        [&](const Model& m, const reference::Weights& weights, const std::vector<Item>& samples) {
          reference::Answer answer = expected_of_samples(m, weights, samples);
          const auto found = std::ranges::max_element(answer.gradients, {}, [](const auto& one) {
            return one.second.norm().template item<double>();
          });
          longest = found->first;
          found->second.mul_(1.1);
          return answer;
        };
    for (const CheckRow& row : check_layouts(of)) {
      SCOPED_TRACE(fmt::format("{} {} {}", model.config, row.way, row.recompute));
      EXPECT_FALSE(row.near()) << row.gradients[0].error << ", " << row.gradients[0].tolerance;
      EXPECT_THAT(row.gradients[0].place, testing::HasSubstr(longest));
    }
  }
}

}  // namespace
}  // namespace paradyse
