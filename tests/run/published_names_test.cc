// Models in the names of those who published them: names, shapes and first numbers of weights as
// OpenFold's and Open-Sora's own modules have them (tests/golden/README.md), and their way from and
// to files.
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "paradyse/run/communicator.h"
#include "paradyse/run/weights.h"
#include "src/plan/model/evoformer/evoformer.h"
#include "src/plan/model/stdit/stdit.h"
#include "src/run/weights/safetensors.h"
#include "tests/support/folder.h"
#include "tests/support/grid_shapes.h"
#include "tests/support/models.h"
#include "tests/support/processes.h"
#include "tests/support/refusal.h"

namespace paradyse {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

struct Published {
  std::vector<std::int64_t> shape;
  double mean = 0;
  double deviation = 0;
};

std::map<std::string, Published> published(const std::string& file) {
  std::ifstream lines(fs::path(PARADYSE_SOURCE_DIR) / "tests" / "golden" / file);
  std::map<std::string, Published> all;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with('#')) {
      continue;
    }
    std::istringstream words(line);
    std::string name;
    std::string shape;
    Published one;
    words >> name >> shape >> one.mean >> one.deviation;
    std::istringstream sizes(shape);
    for (std::string size; std::getline(sizes, size, ',');) {
      one.shape.push_back(std::stoll(size));
    }
    all[name] = one;
  }
  return all;
}

using Weights = test::Weights;

Weights collected(
    const Model& model, int ranks, const std::function<void(Parameters& parameters)>& fill) {
  Weights all;
  run_local_ranks(ranks, {}, [&](Communicators& communicators) {
    Parameters parameters(
        model, ranks, communicators.rank(), parameter_types(Dtype::float32), false);
    fill(parameters);
    collect(
        parameters,
        Which::weights,
        communicators.world(),
        [&](const std::string& name, const at::Tensor& tensor) { all[name] = tensor.clone(); });
  });
  return all;
}

// Every name and shape, none besides but those that the model says it has no use for; and what the
// weights begin with: zero or one where theirs are, else numbers of the same spread.
void expect_as_published(const Model& model, const std::string& file) {
  std::map<std::string, Published> theirs = published(file);
  ASSERT_FALSE(theirs.empty());
  for (const std::string& begin : model.other_names.unused) {
    std::erase_if(theirs, [&](const auto& one) {
      return one.first.starts_with(begin) && !one.first.starts_with("aux_heads.masked_msa.");
    });
  }
  const Weights ours =
      collected(model, 1, [](Parameters& parameters) { parameters.initialize(1); });
  for (const auto& [name, tensor] : ours) {
    EXPECT_TRUE(theirs.contains(name)) << name;
  }
  for (const auto& [name, one] : theirs) {
    ASSERT_TRUE(ours.contains(name)) << name;
    const at::Tensor& tensor = ours.at(name);
    EXPECT_EQ(tensor.sizes(), at::IntArrayRef(one.shape)) << name;
    const at::Tensor numbers = tensor.to(at::kDouble);
    if (one.deviation == 0) {
      EXPECT_TRUE(numbers.eq(one.mean).all().item<bool>()) << name;
      continue;
    }
    // both are samples: six standard errors of a deviation, and of a mean
    const double error = 6 * std::sqrt(1.0 / static_cast<double>(numbers.numel()));
    const double deviation = numbers.std(/*unbiased=*/false).item<double>();
    EXPECT_NEAR(deviation / one.deviation, 1, error + 1e-3) << name;
    EXPECT_NEAR(numbers.mean().item<double>(), 0, error * one.deviation) << name;
    // uniform, truncated or not: the largest of many numbers, in deviations
    const double most = numbers.abs().max().item<double>() / deviation;
    const bool table = name.ends_with("scale_shift_table");
    const bool untruncated =
        table || name.ends_with("linear_z.weight") || name.ends_with("start.linear.weight") ||
        name.ends_with("end.linear.weight") || name == "fps_embedder.mlp.0.weight";
    EXPECT_EQ(most > 2.4, untruncated) << name << " " << most;
  }
}

TEST(PublishedNames, OfOpenFold) {
  expect_as_published(
      EvoformerShape{.blocks = 1, .openfold = true, .extra_blocks = 1}, "names_openfold.txt");
}

TEST(PublishedNames, OfOpenFoldsTrunkAlone) {
  expect_as_published(EvoformerShape{.blocks = 1, .openfold = true}, "names_openfold.txt");
}

TEST(PublishedNames, OfOpenSora) {
  expect_as_published(
      StditShape{.depth = 1, .caption_channels = 4096, .stdit3 = true}, "names_stdit3.txt");
}

// The gates, shifts and scales of all blocks are zero, so each adds nothing but what text adds.
TEST(PublishedNames, AdaptiveNormsMayBeginAtZero) {
  StditShape shape = test::small_stdit3(1);
  shape.adaln_zero = true;
  const Weights ours =
      collected(shape, 1, [](Parameters& parameters) { parameters.initialize(1); });
  for (const char* name :
       {"t_block.1.weight",
        "t_block.1.bias",
        "spatial_blocks.0.scale_shift_table",
        "temporal_blocks.0.scale_shift_table",
        "final_layer.scale_shift_table"}) {
    EXPECT_TRUE(ours.at(name).eq(0).all().item<bool>()) << name;
  }
  EXPECT_FALSE(ours.at("spatial_blocks.0.attn.qkv.weight").eq(0).any().item<bool>());
}

class PublishedFiles : public testing::Test {
 protected:
  ModelWeights opened(const Model& model, const Weights& weights) const {
    std::ofstream(folder_ / "config.json") << model.config;
    test::write_tensors(folder_ / "model.safetensors", weights);
    return open_weights(open_model(folder_), false, 1);
  }

  test::Folder folder_;
};

// Weights come back from any ranks as they were read, tensors that parts share included.
TEST_F(PublishedFiles, ComeBackAsTheyWere) {
  for (const Model& model :
       {Model(test::small_stdit3(2)),
        Model(test::in_openfold(test::small_evoformer(2))),
        Model(test::with_extra_blocks(test::small_evoformer(2), 2))}) {
    Weights weights;
    for (const auto& [name, tensor] : test::random_weights(model, 3)) {
      weights[name] = tensor.to(at::kFloat);
    }
    const ModelWeights read = opened(model, weights);
    for (const int ranks : {1, 2, 3}) {
      const Weights back =
          collected(model, ranks, [&](Parameters& parameters) { read.fill(parameters); });
      ASSERT_EQ(back.size(), weights.size());
      for (const auto& [name, tensor] : weights) {
        EXPECT_TRUE(at::equal(back.at(name), tensor)) << name << " on " << ranks;
      }
    }
  }
}

// Numbers that weights begin with are a function of seed, name and place.
TEST_F(PublishedFiles, BeginAlikeOnAnyRanks) {
  for (const Model& model :
       {Model(test::small_stdit3(2)),
        Model(test::in_openfold(test::small_evoformer(2))),
        Model(test::with_extra_blocks(test::small_evoformer(2), 2))}) {
    const auto begun = [&](int ranks) {
      return collected(model, ranks, [](Parameters& parameters) { parameters.initialize(4); });
    };
    const Weights alone = begun(1);
    for (const auto& [name, tensor] : begun(3)) {
      EXPECT_TRUE(at::equal(tensor, alone.at(name))) << name;
    }
  }
}

// Random weights, and the same by the names of before.
std::pair<Weights, Weights> of_before(const Model& model) {
  std::pair<Weights, Weights> found;
  auto& [weights, older] = found;
  for (const auto& [name, tensor] : test::random_weights(model, 3)) {
    weights[name] = tensor.to(at::kFloat);
    std::string before = name;
    for (const auto& [now, then] : model.other_names.older) {
      if (const std::size_t at = before.find(now); at != std::string::npos) {
        before.replace(at, now.size(), then);
      }
    }
    older[before] = weights[name];
  }
  return found;
}

// As OpenFold's first checkpoints have them, with all the rest of the model, in a few words.
TEST_F(PublishedFiles, OfOlderOpenFoldAreRead) {
  // with the stack of extra sequences among the rest of the model
  const Model model = test::in_openfold(test::small_evoformer(1));
  const auto& [weights, drawn] = of_before(model);
  Weights older = drawn;
  EXPECT_TRUE(older.contains("evoformer.blocks.0.core.tri_mul_out.linear_g.weight"));
  EXPECT_TRUE(older.contains("evoformer.blocks.0.core.msa_transition.linear_1.weight"));
  for (const char* name :
       {"structure_module.ipa.linear_q.weight",
        "structure_module.ipa.linear_q.bias",
        "aux_heads.plddt.linear_1.weight",
        "recycling_embedder.linear.weight",
        "template_angle_embedder.linear_1.weight",
        "template_pair_stack.blocks.0.a",
        "extra_msa_embedder.linear.weight",
        "evoformer.linear.weight",
        "evoformer.linear.bias"}) {
    older[name] = at::ones({1});
  }
  const ModelWeights read = opened(model, older);
  ASSERT_EQ(read.notes.size(), 1U);
  EXPECT_THAT(
      read.notes.front(),
      AllOf(
          HasSubstr("structure_module.* (2)"),
          HasSubstr("evoformer.* (2)"),
          Not(HasSubstr("masked_msa"))));
  const Weights back = collected(model, 2, [&](Parameters& parameters) { read.fill(parameters); });
  for (const auto& [name, tensor] : weights) {
    EXPECT_TRUE(at::equal(back.at(name), tensor)) << name;
  }
}

// With the stack of extra sequences, of which the second block is the model's third layer.
TEST_F(PublishedFiles, OfOlderOpenFoldAreReadWithExtraBlocks) {
  const Model model = test::with_extra_blocks(test::small_evoformer(1), 2);
  const auto& [weights, older] = of_before(model);
  EXPECT_TRUE(older.contains("extra_msa_embedder.linear.weight"));
  EXPECT_TRUE(older.contains("extra_msa_stack.blocks.1.core.tri_mul_out.linear_g.weight"));
  EXPECT_TRUE(
      older.contains("extra_msa_stack.blocks.1.msa_att_col.global_attention.linear_k.weight"));
  EXPECT_TRUE(older.contains("evoformer.blocks.0.core.outer_product_mean.linear_1.weight"));
  EXPECT_FALSE(older.contains("evoformer.blocks.1.core.outer_product_mean.linear_1.weight"));
  const ModelWeights read = opened(model, older);
  const Weights back = collected(model, 3, [&](Parameters& parameters) { read.fill(parameters); });
  ASSERT_EQ(back.size(), weights.size());
  for (const auto& [name, tensor] : weights) {
    EXPECT_TRUE(at::equal(back.at(name), tensor)) << name;
  }
}

// A configuration that does not speak of extra blocks is what it was before there were any.
TEST(OpenFoldModels, HaveExtraBlocksWhereTheyAreAskedFor) {
  const auto shape_of = [](const std::string& more) {
    return evoformer_shape(
        model_from_config(R"({"model_type": "openfold")" + more + "}", "a test"));
  };
  const EvoformerShape plain = shape_of("");
  EXPECT_EQ(plain.extra_blocks, 0);
  EXPECT_EQ(fingerprint(plain), fingerprint(shape_of(R"(, "no_extra_blocks": 0)")));
  EXPECT_FALSE(config_of(plain).contains("no_extra_blocks"));
  EXPECT_EQ(architecture(plain), "evoformer");
  const EvoformerShape extra = shape_of(R"(, "no_extra_blocks": 4)");
  EXPECT_EQ(architecture(extra), "evoformer-extra");
  EXPECT_NE(fingerprint(plain), fingerprint(extra));
  EXPECT_NE(fingerprint(extra), fingerprint(shape_of(R"(, "no_extra_blocks": 4, "c_e": 32)")));
  EXPECT_EQ(evoformer_shape(model_from_config(config_of(extra).dump(), "a test")), extra);
  const Model model = extra;
  EXPECT_EQ(model.layers, 52);
  ASSERT_EQ(model.stacks().size(), 2U);
  EXPECT_EQ(model.stacks()[1].first, 4);
  EXPECT_EQ(with_layers(model, 52).sha256, model.sha256);
  EXPECT_EQ(with_layers(model, 2).stacks().size(), 2U);
  EXPECT_EQ(with_layers(model, 1).layers, 2);
  for (const auto& [config, what] : std::vector<std::pair<std::string, std::string>>{
           {R"({"model_type": "openfold", "c_e": 32})", "no_extra_blocks"},
           {R"({"model_type": "evoformer", "no_extra_blocks": 4})", "no_extra_blocks"},
           {R"({"model_type": "openfold", "no_extra_blocks": 1, "global_column_attention": true})",
            "global_column_attention"}}) {
    EXPECT_THAT(test::refusal([&] { (void)model_from_config(config, "a test"); }), HasSubstr(what));
  }
}

// Rates of dropout are no part of what a model computes, and files need not say that there is none.
TEST(OpenFoldModels, ReadRatesOfDropout) {
  const auto shape_of = [](const std::string& more) {
    return evoformer_shape(
        model_from_config(R"({"model_type": "openfold")" + more + "}", "a test"));
  };
  const EvoformerShape plain = shape_of("");
  const EvoformerShape other = shape_of(R"(, "msa_dropout": 0.15, "pair_dropout": 0.25)");
  EXPECT_EQ(plain.msa_dropout, 0);
  EXPECT_EQ(other.msa_dropout, 0.15);
  EXPECT_EQ(other.pair_dropout, 0.25);
  EXPECT_EQ(fingerprint(plain), fingerprint(other));
  EXPECT_FALSE(config_of(plain).contains("msa_dropout"));
  EXPECT_EQ(evoformer_shape(model_from_config(config_of(other).dump(), "a test")), other);
  for (const char* wrong : {"1", "-0.1", "\"a\""}) {
    EXPECT_THAT(
        test::refusal([&] { shape_of(std::string(R"(, "pair_dropout": )") + wrong); }),
        HasSubstr("pair_dropout"))
        << wrong;
  }
}

// A model with masks is another one, and files need not say that there are none.
TEST(OpenFoldModels, TakeMasksWhereTheyAreAsked) {
  const EvoformerShape plain = test::with_extra_blocks(test::small_evoformer(1), 1);
  const EvoformerShape masked = test::with_masks(plain);
  EXPECT_NE(fingerprint(plain), fingerprint(masked));
  EXPECT_FALSE(config_of(plain).contains("msa_mask"));
  EXPECT_EQ(evoformer_shape(model_from_config(config_of(masked).dump(), "a test")), masked);
  EXPECT_EQ(evoformer_shape(model_from_config(config_of(plain).dump(), "a test")), plain);
  std::vector<std::string> inputs;
  for (const Stream& input : Model(masked).inputs()) {
    inputs.push_back(input.name);
  }
  EXPECT_EQ(
      inputs, (std::vector<std::string>{"msa", "pair", "extra_msa", "msa_mask", "extra_msa_mask"}));
  EXPECT_EQ(Model(plain).inputs().size(), 3U);
}

// Keys of programs are passed over, and what is not done here is refused or said.
TEST(StditThree, ReadsItsOwnConfiguration) {
  const auto shape_of = [](const std::string& more, std::vector<std::string>* notes = nullptr) {
    return stdit_shape(model_from_config(
        R"({"model_type": "STDiT3", "depth": 2, "hidden_size": 16, "num_heads": 4)" + more + "}",
        "a test",
        notes));
  };
  const StditShape plain = shape_of("");
  EXPECT_TRUE(plain.stdit3 && plain.qk_norm && plain.pred_sigma && !plain.adaln_zero);
  EXPECT_EQ(plain.mlp_hidden, 64);
  EXPECT_EQ(plain.caption_channels, 4096);
  EXPECT_EQ(plain.kv_heads, 4);
  const StditShape other = shape_of(
      R"(, "patch_size": [1, 4, 4], "mlp_ratio": 1.5, "qk_norm": false, "pred_sigma": false,
          "architectures": ["STDiT3"], "enable_flash_attn": true, "torch_dtype": "bfloat16")");
  EXPECT_EQ(other.patch, 4);
  EXPECT_EQ(other.mlp_hidden, 24);
  EXPECT_FALSE(other.qk_norm || other.pred_sigma);
  for (const StditShape& shape : {plain, other}) {
    EXPECT_EQ(stdit_shape(model_from_config(config_of(shape).dump(), "a test")), shape);
  }
  EXPECT_NE(fingerprint(plain), fingerprint(other));
  std::vector<std::string> notes;
  shape_of(R"(, "class_dropout_prob": 0.1)", &notes);
  ASSERT_EQ(notes.size(), 1U);
  EXPECT_THAT(notes.front(), HasSubstr("class_dropout_prob"));
  for (const auto& [more, what] : std::vector<std::pair<std::string, std::string>>{
           {R"(, "drop_path": 0.1)", "drop_path"},
           {R"(, "skip_y_embedder": true)", "skip_y_embedder"},
           {R"(, "patch_size": [2, 2, 2])", "patch_size"},
           {R"(, "caption_channel": 3)", "caption_channels"},
           {R"(, "mlp_ratio": 0)", "mlp_ratio"}}) {
    EXPECT_THAT(test::refusal([&] { shape_of(more); }), HasSubstr(what));
  }
}

}  // namespace
}  // namespace paradyse
