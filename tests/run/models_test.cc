// Every architecture, under every strategy and at every recompute level, on 1 to 4 ranks: the loss
// and every gradient of plain single-rank autograd; memory and traffic are what the folds say.
// PARADYSE_TEST_LONG=1 runs the whole table, else a part that covers every pair of its columns.
#include <algorithm>
#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include <gtest/gtest.h>

#include "paradyse/plan/detail/index.h"
#include "paradyse/plan/layout_planner.h"
#include "paradyse/plan/plan.h"
#include "paradyse/run/gradients.h"
#include "src/plan/model/text/text_shape.h"
#include "tests/support/equality.h"
#include "tests/support/odd_seconds.h"
#include "tests/support/plans.h"

namespace paradyse {
namespace {

using test::Case;
using test::expect_equal;

// Sizes that 2, 3 and 4 do not divide; documents of 1, 2 and 3 tokens.
std::vector<Case> cases() {
  const std::vector<std::int64_t> lengths = {1, 9, 2, 17, 3};
  std::vector<Case> all = {
      {"llama_bias_llama3",
       test::model_of(R"({"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 12,
         "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 4,
         "intermediate_size": 13, "vocab_size": 31, "attention_bias": true, "mlp_bias": true,
         "rope_theta": 100.0, "pad_token_id": 5, "rope_scaling": {"rope_type": "llama3",
         "factor": 4.0, "original_max_position_embeddings": 8, "low_freq_factor": 1.0,
         "high_freq_factor": 4.0}})"),
       lengths},
      {"qwen2_yarn",
       test::model_of(R"({"model_type": "qwen2", "num_hidden_layers": 2, "hidden_size": 20,
         "num_attention_heads": 5, "num_key_value_heads": 1, "intermediate_size": 11,
         "vocab_size": 29, "tie_word_embeddings": true, "rope_parameters": {"rope_type": "yarn",
         "rope_theta": 100.0, "factor": 4.0, "original_max_position_embeddings": 8}})"),
       lengths},
      {"qwen3",
       test::model_of(R"({"model_type": "qwen3", "num_hidden_layers": 2, "hidden_size": 12,
         "num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 6,
         "intermediate_size": 13, "vocab_size": 31, "attention_bias": true})"),
       lengths},
      {"gpt2",
       test::model_of(R"({"model_type": "gpt2", "n_layer": 2, "n_embd": 15, "n_head": 5,
         "n_inner": 13, "vocab_size": 31, "n_positions": 17})"),
       lengths},
      {"opt",
       test::model_of(R"({"model_type": "opt", "num_hidden_layers": 2, "hidden_size": 15,
         "num_attention_heads": 3, "ffn_dim": 13, "vocab_size": 31,
         "max_position_embeddings": 18})"),
       lengths},
      {"bert",
       test::model_of(R"({"model_type": "bert", "num_hidden_layers": 2, "hidden_size": 14,
         "num_attention_heads": 7, "intermediate_size": 13, "vocab_size": 31,
         "max_position_embeddings": 17})"),
       lengths},
      {"bert_untied",
       test::model_of(R"({"model_type": "bert", "num_hidden_layers": 1, "hidden_size": 8,
         "num_attention_heads": 2, "intermediate_size": 3, "vocab_size": 7,
         "max_position_embeddings": 30, "tie_word_embeddings": false, "hidden_act": "gelu_new"})"),
       {4, 1, 7}},
      {"olmo2",
       test::model_of(R"({"model_type": "olmo2", "num_hidden_layers": 2, "hidden_size": 12,
         "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 4,
         "intermediate_size": 13, "vocab_size": 31, "attention_bias": true})"),
       lengths},
      {"phi3",
       test::model_of(R"({"model_type": "phi3", "num_hidden_layers": 2, "hidden_size": 12,
         "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 4,
         "intermediate_size": 13, "vocab_size": 31, "partial_rotary_factor": 0.5,
         "resid_pdrop": 0.3})"),
       lengths},
      {"gpt_neox",
       test::model_of(R"({"model_type": "gpt_neox", "num_hidden_layers": 2, "hidden_size": 18,
         "num_attention_heads": 3, "intermediate_size": 13, "vocab_size": 31, "rotary_pct": 0.34})"),
       lengths},
      {"gpt_neox_sequential",
       test::model_of(R"({"model_type": "gpt_neox", "num_hidden_layers": 1, "hidden_size": 20,
         "num_attention_heads": 5, "intermediate_size": 3, "vocab_size": 7, "rotary_pct": 1,
         "attention_bias": false, "use_parallel_residual": false, "tie_word_embeddings": true})"),
       {4, 1, 7}},
      {"roberta",
       test::model_of(R"({"model_type": "roberta", "num_hidden_layers": 2, "hidden_size": 14,
         "num_attention_heads": 7, "intermediate_size": 13, "vocab_size": 31, "type_vocab_size": 1,
         "max_position_embeddings": 51, "pad_token_id": 30, "hidden_act": "gelu_new"})"),
       lengths},
      {"distilbert",
       test::model_of(R"({"model_type": "distilbert", "n_layers": 2, "dim": 14, "n_heads": 7,
         "hidden_dim": 13, "vocab_size": 31, "max_position_embeddings": 17})"),
       lengths},
      {"mistral_window",  // a window that crosses pieces of two ranks, and one that a piece crosses
       test::model_of(R"({"model_type": "mistral", "num_hidden_layers": 2, "hidden_size": 12,
         "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 4,
         "intermediate_size": 13, "vocab_size": 31, "sliding_window": 4})"),
       lengths},
      {"gemma2",
       test::model_of(R"({"model_type": "gemma2", "num_hidden_layers": 2, "hidden_size": 12,
         "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 4,
         "intermediate_size": 13, "vocab_size": 31, "max_position_embeddings": 64,
         "sliding_window": 3, "query_pre_attn_scalar": 7, "attn_logit_softcapping": 1.5,
         "final_logit_softcapping": 4.0, "rms_norm_eps": 0.001})"),
       lengths},
      {"gemma3",
       test::model_of(R"({"model_type": "gemma3_text", "num_hidden_layers": 3, "hidden_size": 20,
         "num_attention_heads": 5, "num_key_value_heads": 1, "head_dim": 6,
         "intermediate_size": 11, "vocab_size": 29, "max_position_embeddings": 64,
         "sliding_window": 2, "sliding_window_pattern": 2, "rope_theta": 500.0,
         "rope_local_base_freq": 100.0, "rope_scaling": {"rope_type": "linear", "factor": 3.0},
         "attention_bias": true, "tie_word_embeddings": false})"),
       lengths},
      {"modernbert",  // windows that end inside pieces of a rank, and beyond its neighbours'
       test::model_of(R"({"model_type": "modernbert", "num_hidden_layers": 3, "hidden_size": 20,
         "num_attention_heads": 5, "intermediate_size": 13, "vocab_size": 31,
         "max_position_embeddings": 64, "local_attention": 5, "global_attn_every_n_layers": 2,
         "global_rope_theta": 500.0, "local_rope_theta": 100.0, "pad_token_id": 3,
         "norm_eps": 0.001})"),
       lengths},
      {"modernbert_biases",
       test::model_of(R"({"model_type": "modernbert", "num_hidden_layers": 2, "hidden_size": 12,
         "num_attention_heads": 6, "intermediate_size": 11, "vocab_size": 29,
         "max_position_embeddings": 64, "local_attention": 13, "norm_eps": 0.001,
         "layer_types": ["sliding_attention", "full_attention"], "norm_bias": true,
         "attention_bias": true, "mlp_bias": true, "classifier_bias": true,
         "decoder_bias": false, "tie_word_embeddings": false, "hidden_activation": "silu",
         "classifier_activation": "gelu_new", "embedding_dropout": 0.1, "attention_dropout": 0.2})"),
       lengths}};
  for (Case& c : all) {
    c.model = without_dropout(c.model);
  }
  // The same masks whatever the plan, recomputed or not: the reference draws them token by token.
  for (const char* name : {"gpt2", "bert", "gpt_neox", "distilbert", "modernbert"}) {
    Case c = *std::find_if(
        all.begin(), all.end(), [&](const Case& other) { return other.name == name; });
    c.name += "_dropout";
    c.model.embedding_dropout = 0.15;
    c.model.residual_dropout = 0.3;
    c.model.attention_dropout = 0.25;
    if (c.name == "distilbert_dropout") {
      c.model.attention_output_dropout = 0;
    } else if (c.name == "modernbert_dropout") {  // after attention alone
      c.model.attention_output_dropout = std::exchange(c.model.residual_dropout, 0);
    }
    all.push_back(c);
  }
  // Of attention alone: grouped heads, windows and caps.
  for (const char* name : {"qwen2_yarn", "mistral_window", "gemma2"}) {
    Case c = *std::find_if(
        all.begin(), all.end(), [&](const Case& other) { return other.name == name; });
    c.name += "_dropout";
    c.model.attention_dropout = 0.4;
    all.push_back(c);
  }
  return all;
}

bool whole_table() { return std::getenv("PARADYSE_TEST_LONG") != nullptr; }

Plan plan_of(const Case& c, int ranks, const Strategy& strategy, Verb mlp, Recompute level) {
  const LayerChoice choice = text_layer(strategy.name, to_string(mlp), level, level);
  return test::uniform_plan(c.model, c.lengths, ranks, choice);
}

// Calls body(ranks, strategy, mlp, level, number) for every choice.
template <typename Body>
void for_choices(Body body) {
  int number = 0;
  for (const int ranks : {1, 2, 3, 4}) {
    for (const Strategy& strategy : strategies("attention")) {
      for (const Verb mlp : {Verb::hold, Verb::gather, Verb::pass}) {
        if (strategy.one_rank && mlp != Verb::gather) {
          continue;  // the others need the whole domain in one group
        }
        for (const Recompute level : kRecomputeLevels) {
          body(ranks, strategy, mlp, level, number++);
        }
      }
    }
  }
}

class Models : public testing::TestWithParam<std::size_t> {
 protected:
  [[nodiscard]] static Case its_case() { return cases()[GetParam()]; }
};

TEST_P(Models, EqualTheReferenceUnderEveryStrategy) {
  const Case c = its_case();
  for_choices([&](int ranks, const Strategy& strategy, Verb mlp, Recompute level, int number) {
    if (!HasFatalFailure() && (whole_table() || number % 5 == static_cast<int>(GetParam()) % 5)) {
      expect_equal(c, plan_of(c, ranks, strategy, mlp, level), Dtype::float64, 1e-10);
    }
  });
}

TEST_P(Models, HoldInFloat32) {
  const Case c = its_case();
  for_choices([&](int ranks, const Strategy& strategy, Verb mlp, Recompute level, int number) {
    if (!HasFatalFailure() && (whole_table() || number % 13 == static_cast<int>(GetParam()) % 13)) {
      expect_equal(c, plan_of(c, ranks, strategy, mlp, level), Dtype::float32, 2e-5);
    }
  });
}

// Biases, dropout and norms after the sum, with MLPs in tiles and a square grid.
TEST_P(Models, EqualTheReferenceInTilesAndOnAGrid) {
  const Case c = its_case();
  for (const int ranks : {1, 3, 4}) {
    for (const Verb mlp : kVerbs) {
      for (const Recompute level : {Recompute::none, Recompute::full}) {
        LayerChoice choice = text_layer("USP", to_string(mlp), level, level);
        part_of(choice, "mlp").options["token_tiles"] = 3;
        const std::vector<LayerChoice> layers(static_cast<std::size_t>(c.model.layers), choice);
        expect_equal(c, uniform_plan(c.model, c.lengths, ranks, layers), Dtype::float64, 1e-10);
      }
    }
  }
}

TEST_P(Models, StayWithinTheirRoundingInNarrowTypes) {
  const Case c = its_case();
  for (const Dtype dtype : {Dtype::bfloat16, Dtype::float16}) {
    for (const int ranks : {1, 2, 3, 4}) {
      for (const auto& [attention, mlp] : test::pure_strategies()) {
        LayerChoice choice = text_layer(attention, mlp, Recompute::light, Recompute::light);
        if (attention == "USP") {
          part_of(choice, "mlp").options["token_tiles"] = 2;
        }
        const std::vector<LayerChoice> layers(static_cast<std::size_t>(c.model.layers), choice);
        test::expect_within_rounding(c, uniform_plan(c.model, c.lengths, ranks, layers), dtype);
      }
    }
  }
}

// Streams that lie otherwise: copies, and meshes that cut them over one axis alone, from part to
// part; every family, with biases, norms after the sums and dropout.
TEST_P(Models, StreamsLieAsPlansSay) {
  const Case c = its_case();
  struct Way {
    int ranks;
    std::vector<int> mesh;
    Placement attention;
    Placement mlp;
  };
  const std::vector<Way> ways = {
      {1, {}, {"R"}, {"R"}},
      {2, {}, {}, {"R"}},
      {3, {}, {"R"}, {}},
      {3, {}, {"R"}, {"R"}},
      {4, {}, {}, {"R"}},
      {4, {2, 2}, {"S(tokens)", "R"}, {"R", "S(tokens)"}},
      {4, {2, 2}, {"R", "R"}, {"S(tokens)", "R"}},
  };
  int number = 0;
  for (const Way& way : ways) {
    for (const char* attention : {"UlyssesZ", "AllGatherKV", "USP"}) {
      const Recompute level = kRecomputeLevels[number % 4];
      LayerChoice layer = text_layer(attention, number % 3 == 0 ? "pass" : "gather", level, level);
      if (!way.attention.empty()) {
        part_of(layer, "attention").in["x"] = way.attention;
      }
      if (!way.mlp.empty()) {
        part_of(layer, "mlp").in["x"] = way.mlp;
      }
      if (part_of(layer, "attention").strategy == "USP") {
        part_of(layer, "attention").options["ulysses_degree"] = way.ranks;
      }
      part_of(layer, "mlp").options["token_tiles"] = 1 + number % 2;
      part_of(layer, "mlp").offload = number % 5 == 0;
      Plan plan = test::uniform_plan(c.model, c.lengths, way.ranks, layer);
      plan.micro_batches[0].groups[0].mesh = way.mesh;
      expect_equal(c, plan, Dtype::float64, 1e-10);
      expect_equal(c, plan, Dtype::float32, 2e-5);
      ++number;
    }
  }
}

// What `plan layout` plans: by elements, and by seconds that make it mix whatever can be built.
TEST_P(Models, LayoutsArePlanned) {
  const Case c = its_case();
  const Model model = text_model(c.model);
  for (const int ranks : {1, 2, 3, 4, 6}) {
    for (std::uint64_t seed = 0; seed < 3; ++seed) {
      LayoutTask task{
          .model = &model,
          .documents = packed(c.lengths, ranks, c.model.causal),
          .recompute = {.parts = kRecomputeLevels[(seed + idx(ranks)) % 4], .layer = seed == 2},
          .tiles = 1 + static_cast<std::int64_t>(seed),
          .seconds = {}};
      if (seed > 0) {
        task.objective = LayoutTask::Objective::seconds;
        task.seconds = test::odd_seconds(seed);
      }
      const Plan plan = checked_plan(task, plan_layouts(task, model.layers), 0);
      expect_equal(c, plan, Dtype::float64, 1e-10);
    }
  }
}

// A weight domain smaller than the world, groups of different sizes, an idle rank.
TEST_P(Models, EqualTheReferenceInGroupsAndReplicas) {
  const Case c = its_case();
  const auto run = [&](const char* attention, const char* mlp) {
    return runs_of(std::vector<LayerChoice>(
        static_cast<std::size_t>(c.model.layers), text_layer(attention, mlp)));
  };
  Plan plan = uniform_plan(c.model, c.lengths, 4, {});
  plan.programs = {
      {"data", run("DataZ", "gather")},
      {"ulysses", run("UlyssesZ", "gather")},
      {"megatron", run("MegatronTS", "hold")}};
  std::vector<std::int64_t> rest;
  for (std::size_t d = 2; d < c.lengths.size(); ++d) {
    rest.push_back(static_cast<std::int64_t>(d));
  }
  plan.micro_batches = {
      {{{{0, 1}, {1, 0}, "ulysses", {}}, {{2}, rest, "data", {}}, {{3}, {}, "data", {}}}, {}}};
  expect_equal(c, plan, Dtype::float64, 1e-10);
  plan.weight_domain = 2;
  plan.micro_batches = {{{{{0, 1}, {0, 1}, "megatron", {}}, {{2, 3}, rest, "ulysses", {}}}, {}}};
  expect_equal(c, plan, Dtype::float64, 1e-10);
}

INSTANTIATE_TEST_SUITE_P(
    Architectures, Models, testing::Range<std::size_t>(0, cases().size()), [](const auto& test) {
      return cases()[test.param].name;
    });

// What is in `part` of a layer, or elsewhere, by what its name ends in.
bool is_of(const Part& part, const std::string& name) {
  const PartWeights weights = part.weights(1);
  const auto ends = [&](const std::string& stored) { return name.ends_with("." + stored); };
  return std::any_of(
             weights.matrices.begin(),
             weights.matrices.end(),
             [&](const Matrix& matrix) { return ends(matrix.stored_as); }) ||
         std::any_of(weights.vectors.begin(), weights.vectors.end(), [&](const Vector& vector) {
           return ends(vector.name);
         });
}

// A model that no family makes: layers of an attention and two MLPs.
Model with_second_mlp(const TextShape& text) {
  Model model = text_model(text);
  std::vector<ModelPart> parts;
  for (const ModelPart& one : model.parts) {
    parts.push_back(one);
    if (one.part->name == "mlp") {
      Part second = *one.part;
      second.name = "second_mlp";
      second.weights = [first = one.part](int domain) {
        PartWeights weights = first->weights(domain);
        weights.prefix = "second." + weights.prefix;
        return weights;
      };
      parts.push_back({.layer = one.layer, .part = std::make_shared<const Part>(second)});
    }
  }
  model.parts = parts;
  return model;
}

// The judge is a text model of twice the layers, in every second of which attention adds nothing.
class AnyModel : public testing::TestWithParam<const char*> {
 protected:
  AnyModel() {
    test::Weights weights = test::random_weights(twice_, 11);
    for (auto& [name, weight] : weights) {
      if (const auto ours = name_of(name)) {
        weights_[*ours] = weight;
      } else if (!is_norm(name)) {
        weight.zero_();
      }
    }
    reference_ = reference::text_answer(twice_, weights, items_of(documents_));
    for (const auto& [name, gradient] : reference_.gradients) {
      if (const auto ours = name_of(name)) {
        expected_[*ours] = gradient;
      }
    }
  }

  static TextShape text(int layers) {
    TextShape shape =
        GetParam() == std::string("llama")
            ? test::llama({.heads = 6, .kv_heads = 3, .ffn = 13, .vocab = 31})
            : test::model_of(R"({"model_type": "gpt2", "n_layer": 2, "n_embd": 12, "n_head": 6,
                "n_inner": 13, "vocab_size": 31, "n_positions": 20, "resid_pdrop": 0,
                "embd_pdrop": 0, "attn_pdrop": 0})");
    shape.layers = layers;
    return shape;
  }
  [[nodiscard]] bool is_norm(const std::string& name) const {
    const PartWeights attention = model_.part("attention")->weights(1);
    const Interval norms = attention.vectors_of(Role::norm);
    return name.ends_with(attention.vectors[idx(norms.begin)].name);
  }
  // That of the judge's weight; nothing of the attention that adds nothing.
  [[nodiscard]] std::optional<std::string> name_of(const std::string& name) const {
    const std::string layers = model_.part("mlp")->weights(1).prefix;
    if (!name.starts_with(layers)) {
      return name;
    }
    const std::size_t end = name.find('.', layers.size());
    const int layer = std::stoi(name.substr(layers.size(), end - layers.size()));
    const std::string ours = layers + std::to_string(layer / 2) + name.substr(end);
    if (layer % 2 == 0) {
      return ours;
    }
    if (is_of(*model_.part("attention"), name)) {
      return std::nullopt;
    }
    return "second." + ours;
  }

  const TextShape text_ = text(2);
  const TextShape twice_ = text(4);
  const Model model_ = with_second_mlp(text_);
  const std::vector<std::int64_t> lengths_ = {1, 9, 2, 17, 3};
  const std::vector<std::vector<std::int32_t>> documents_ =
      test::random_documents(lengths_, text_.vocab, 7);
  test::Weights weights_;
  reference::Answer reference_;
  std::map<std::string, at::Tensor> expected_;
};

TEST_P(AnyModel, RunsTheLayersThatItsPartsSay) {
  EXPECT_LT(expected_.size(), reference_.gradients.size());
  int number = 0;
  for (const int ranks : {1, 2, 3, 4}) {
    for (const auto& [strategy, verb] : test::pure_strategies()) {
      SCOPED_TRACE(strategy + " on " + std::to_string(ranks));
      const Recompute level = kRecomputeLevels[number++ % 4];
      LayerChoice layer = text_layer(strategy, verb, level, level);
      const auto layers = [&] { return std::vector<LayerChoice>(idx(text_.layers), layer); };
      Plan plan = uniform_plan(text_, lengths_, ranks, layers());
      PartChoice second = part_of(layer, "mlp");
      second.part = "second_mlp";
      second.options["token_tiles"] = 2;
      layer.push_back(second);
      plan.programs["all"] = runs_of(layers());
      const GradientAnswer answer = gradients(
          {.model = model_,
           .fill = [&](Parameters& parameters) { test::fill(parameters, weights_); },
           .plan = &plan,
           .items = items_of(documents_)});
      EXPECT_NEAR(answer.batch.loss, reference_.loss, 1e-12);
      const GradientError error = compare_gradients(answer.gradients, expected_);
      EXPECT_LE(error.worst, 1e-10) << error.worst_name;
      for (int r = 0; r < ranks; ++r) {
        const RankReport counted = predicted_report(plan, model_, r, precision_of(Dtype::float64));
        const RankReport& measured = answer.ranks[idx(r)];
        EXPECT_EQ(measured.bytes_sent, counted.bytes_sent) << "rank " << r;
        EXPECT_EQ(measured.messages, counted.messages) << "rank " << r;
        EXPECT_EQ(measured.saved_bytes, counted.saved_bytes) << "rank " << r;
        EXPECT_NEAR(
            static_cast<double>(measured.peak_bytes),
            static_cast<double>(counted.peak_bytes),
            0.02 * static_cast<double>(counted.peak_bytes))
            << "rank " << r;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Architectures, AnyModel, testing::Values("llama", "gpt2"), [](const auto& test) {
      return std::string(test.param);
    });

}  // namespace
}  // namespace paradyse
