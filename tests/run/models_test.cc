// Every architecture, under every strategy and at every recompute level, on 1 to 4 ranks: the loss
// and every gradient of plain single-rank autograd; memory and traffic are what the folds say.
// PARADYSE_TEST_LONG=1 runs the whole table, else a part that covers every pair of its columns.
#include <algorithm>
#include <cstdlib>

#include <gtest/gtest.h>

#include "paradyse/plan/plan.h"
#include "tests/support/equality.h"

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
       {4, 1, 7}}};
  for (Case& c : all) {
    c.model = without_dropout(c.model);
  }
  // The same masks whatever the plan, recomputed or not: the reference draws them token by token.
  for (const char* name : {"gpt2", "bert"}) {
    Case c = *std::find_if(
        all.begin(), all.end(), [&](const Case& other) { return other.name == name; });
    c.name += "_dropout";
    c.model.embedding_dropout = 0.15;
    c.model.residual_dropout = 0.3;
    all.push_back(c);
  }
  return all;
}

bool whole_table() { return std::getenv("PARADYSE_TEST_LONG") != nullptr; }

Plan plan_of(const Case& c, int ranks, const Strategy& strategy, Verb mlp, Recompute level) {
  const LayerChoice choice = text_layer(strategy.name, to_string(mlp), level, level);
  return uniform_plan(
      c.model,
      c.lengths,
      ranks,
      std::vector<LayerChoice>(static_cast<std::size_t>(c.model.layers), choice));
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
      Plan plan = uniform_plan(
          c.model,
          c.lengths,
          way.ranks,
          std::vector<LayerChoice>(static_cast<std::size_t>(c.model.layers), layer));
      plan.micro_batches[0].groups[0].mesh = way.mesh;
      expect_equal(c, plan, Dtype::float64, 1e-10);
      expect_equal(c, plan, Dtype::float32, 2e-5);
      ++number;
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

}  // namespace
}  // namespace paradyse
