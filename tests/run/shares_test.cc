// Unlike ranks: groups whose documents are cut by shares give the loss and every gradient of plain
// single-rank autograd, and memory and traffic are what the folds say, under every strategy.
#include <algorithm>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "paradyse/plan/plan.h"
#include "paradyse/run/gradients.h"
#include "src/plan/plan/group_timeline.h"
#include "tests/support/equality.h"
#include "tests/support/models.h"

namespace paradyse {
namespace {

using test::Case;
using test::expect_equal;

// Documents shorter than the ranks are many.
std::vector<Case> cases() {
  std::vector<Case> all = test::cases();
  all.push_back(
      {"one_token", test::llama({.heads = 3, .kv_heads = 3, .ffn = 5, .vocab = 11}), {1, 0, 2}});
  return all;
}

// Whose tokens see what comes after them, too, and whose positions are learned.
Case bidirectional() {
  Case c{
      "bert",
      test::model_of(R"({"model_type": "bert", "num_hidden_layers": 2, "hidden_size": 14,
         "num_attention_heads": 7, "intermediate_size": 13, "vocab_size": 31,
         "max_position_embeddings": 17})"),
      {1, 9, 2, 17, 3}};
  c.model.embedding_dropout = 0.15;
  c.model.attention_dropout = 0.2;
  c.model.residual_dropout = 0.3;
  return c;
}

// Mild ones, a rank beside which others are slow, and some that leave a rank without a token.
std::vector<std::vector<double>> shares_of(int ranks) {
  switch (ranks) {
    case 2:
      return {{2, 1}, {1, 10}, {1e-9, 1}, {0.3, 0.3}};
    case 3:
      return {{3, 2, 1}, {1, 10, 1}, {1, 1e-9, 2}, {1e-9, 1e-9, 1}};
    default:
      return {{1, 2, 3, 4}, {10, 1, 1, 10}, {1, 1e-9, 1e-9, 3}};
  }
}

// The plan with these shares for all its groups; smaller ones have the first of them.
Plan cut(Plan plan, const std::vector<double>& shares) {
  for (PlanMicroBatch& micro : plan.micro_batches) {
    for (PlanGroup& group : micro.groups) {
      const auto count = static_cast<std::ptrdiff_t>(group.ranks.size());
      group.shares.assign(shares.begin(), shares.begin() + count);
    }
  }
  return plan;
}

std::vector<LayerChoice> alike(const Case& c, const LayerChoice& choice) {
  return std::vector<LayerChoice>(static_cast<std::size_t>(c.model.layers), choice);
}

class Shares : public testing::Test {};

TEST_F(Shares, LeaveRanksWithoutTokens) {
  const Case c = cases().front();
  const Plan plan =
      uniform_plan(c.model, c.lengths, 3, alike(c, text_layer("MegatronCZ", "gather")));
  const auto tokens = [&](const std::vector<double>& shares) {
    const Plan uneven = cut(plan, shares);
    std::vector<std::int64_t> held;
    for (const Piece& piece :
         packed(group_task(uneven, uneven.micro_batches[0].groups[0], true), true).cuts) {
      held.push_back(size(piece));
    }
    return held;
  };
  EXPECT_THAT(tokens({1, 1e-9, 1e-9}), testing::ElementsAre(32, 0, 0));
  EXPECT_THAT(tokens({1, 1e-9, 2})[1], 0);
}

TEST_F(Shares, GiveTheSameGradientUnderEveryStrategy) {
  for (const Case& c : cases()) {
    for (const int p : {2, 3, 4}) {
      for (const std::vector<double>& shares : shares_of(p)) {
        for (const auto& [attention, mlp] : test::pure_strategies()) {
          for (const Recompute level : kRecomputeLevels) {
            const Plan plan = uniform_plan(
                c.model, c.lengths, p, alike(c, text_layer(attention, mlp, level, level)));
            expect_equal(c, cut(plan, shares), Dtype::float64, 1e-10);
            if (HasFailure()) {
              return;
            }
          }
        }
      }
    }
  }
}

// MLPs of every verb, and dropout by the token, however it is cut.
TEST_F(Shares, GiveTheSameGradientWithoutCausality) {
  const Case c = bidirectional();
  for (const int p : {2, 3, 4}) {
    for (const std::vector<double>& shares : shares_of(p)) {
      for (const auto& [attention, own] : test::pure_strategies()) {
        for (const Verb mlp : kVerbs) {
          if (strategy("attention", attention).one_rank && mlp != Verb::gather) {
            continue;  // a group of one rank is no whole weight domain: refused
          }
          for (const Recompute level : {Recompute::none, Recompute::full}) {
            const Plan plan = uniform_plan(
                c.model,
                c.lengths,
                p,
                alike(c, text_layer(attention, to_string(mlp), level, level)));
            expect_equal(c, cut(plan, shares), Dtype::float64, 1e-10);
            if (HasFailure()) {
              return;
            }
          }
        }
      }
    }
  }
}

TEST_F(Shares, HoldInFloat32) {
  for (const Case& c : cases()) {
    for (const int p : {2, 3, 4}) {
      for (const std::vector<double>& shares : shares_of(p)) {
        for (const auto& [attention, mlp] : test::pure_strategies()) {
          const Recompute level = p == 3 ? Recompute::light : Recompute::none;
          const Plan plan = uniform_plan(
              c.model, c.lengths, p, alike(c, text_layer(attention, mlp, level, level)));
          // Over two keys the gradient of a query is a difference of nearly equal numbers.
          expect_equal(c, cut(plan, shares), Dtype::float32, c.name == "one_token" ? 5e-5 : 2e-5);
        }
      }
    }
  }
}

// Head groups, grids of Ulysses and ring, tiles of tokens, what is saved in host memory.
TEST_F(Shares, GoWithEveryOption) {
  const auto with =
      [](const char* attention, const std::string& mlp, const char* option, std::int64_t value) {
        LayerChoice layer = text_layer(attention, mlp);
        set_options(layer, {{option, value}});
        return layer;
      };
  const Case c = cases().front();
  std::vector<LayerChoice> choices;
  for (int groups = 1; groups <= 2; ++groups) {
    choices.push_back(with("METP", "pass", "head_groups", groups));
  }
  for (const int degree : {1, 2, 4}) {
    choices.push_back(with("USP", "gather", "ulysses_degree", degree));
  }
  for (const Verb verb : kVerbs) {
    for (const int tiles : {2, 3, 100}) {
      choices.push_back(with("MegatronCZ", to_string(verb), "token_tiles", tiles));
    }
  }
  for (const auto& [attention, mlp] : test::pure_strategies()) {
    LayerChoice offloaded = text_layer(attention, mlp);
    for (PartChoice& part : offloaded) {
      part.offload = true;
    }
    choices.push_back(offloaded);
  }
  for (LayerChoice choice : choices) {
    for (const std::vector<double>& shares : shares_of(4)) {
      for (const Recompute level : {Recompute::none, Recompute::full}) {
        for (PartChoice& part : choice) {
          part.recompute = level;
        }
        const Plan plan = uniform_plan(c.model, c.lengths, 4, alike(c, choice));
        expect_equal(c, cut(plan, shares), Dtype::float64, 1e-10);
      }
    }
  }
}

// Layers of all strategies under one set of shares.
TEST_F(Shares, StayTheSameFromLayerToLayer) {
  using enum Recompute;
  const std::vector<std::vector<LayerChoice>> mixtures = {
      {text_layer("MegatronTS", "gather", none, full), text_layer("UlyssesZ", "hold", light, none)},
      {text_layer("METP", "hold", none, light), text_layer("MegatronCZ", "pass", none, none)},
      {text_layer("AllGatherKV", "pass", none, light),
       text_layer("MegatronTS", "hold", light, none)},
      {text_layer("ColossalZ", "hold", full, none), text_layer("USP", "pass", none, none)},
      {text_layer("UlyssesZ", "gather", attention_output, none),
       text_layer("ColossalZ", "gather", none, light)},
  };
  for (const Case& c : cases()) {
    for (const int p : {2, 3, 4}) {
      for (const std::vector<double>& shares : shares_of(p)) {
        for (const auto& layers : mixtures) {
          expect_equal(
              c, cut(uniform_plan(c.model, c.lengths, p, layers), shares), Dtype::float64, 1e-10);
        }
      }
    }
  }
}

// Groups with shares beside groups without, idle ranks, several micro-batches and replicas.
TEST_F(Shares, DifferFromGroupToGroup) {
  const Case c = cases().front();
  for (const char* attention : {"UlyssesZ", "MegatronCZ", "AllGatherKV", "ColossalZ", "USP"}) {
    Plan plan = uniform_plan(c.model, c.lengths, 4, alike(c, text_layer(attention, "gather")));
    plan.micro_batches = {
        {.groups =
             {{.ranks = {0, 1, 3}, .documents = {3, 0}, .program = "all", .shares = {1, 5, 2}},
              {.ranks = {2}, .documents = {}, .program = "all"}},
         .predicted = {}},
        {.groups =
             {{.ranks = {0, 2}, .documents = {1}, .program = "all", .shares = {7, 1}},
              {.ranks = {1, 3}, .documents = {4, 2}, .program = "all"}},
         .predicted = {}}};
    expect_equal(c, plan, Dtype::float64, 1e-10);
    plan.weight_domain = 2;
    plan.micro_batches = {
        {.groups =
             {{.ranks = {0, 1}, .documents = {3, 0}, .program = "all", .shares = {3, 1}},
              {.ranks = {2, 3}, .documents = {1, 4, 2}, .program = "all", .shares = {1, 9}}},
         .predicted = {}}};
    expect_equal(c, plan, Dtype::float64, 1e-10);
  }
}

// Any shares at all.
TEST_F(Shares, MayBeAnything) {
  std::mt19937 random(3);
  const std::vector<Case> all = cases();
  const auto strategies = test::pure_strategies();
  for (int round = 0; round < 150; ++round) {
    const Case& c = all[random() % all.size()];
    const int p = 2 + static_cast<int>(random() % 4);
    std::vector<double> shares;
    for (int r = 0; r < p; ++r) {
      shares.push_back(std::exp(std::uniform_real_distribution<double>(-8, 8)(random)));
    }
    const auto& [attention, mlp] = strategies[random() % strategies.size()];
    const Recompute level = kRecomputeLevels[random() % std::size(kRecomputeLevels)];
    const Plan plan =
        uniform_plan(c.model, c.lengths, p, alike(c, text_layer(attention, mlp, level, level)));
    expect_equal(c, cut(plan, shares), Dtype::float64, 1e-10);
    if (HasFailure()) {
      return;
    }
  }
}

// The largest footprint of the uneven cuts is a budget that suffices, to the byte.
TEST_F(Shares, CountThePeakToTheByte) {
  const Case c = cases().front();
  const auto documents = test::random_documents(c.lengths, c.model.vocab, 7);
  const test::Weights weights = test::random_weights(c.model, 11);
  for (const std::vector<double>& shares : shares_of(3)) {
    for (const auto& [attention, mlp] : test::pure_strategies()) {
      for (const Recompute level : {Recompute::none, Recompute::full}) {
        const Plan plan = cut(
            uniform_plan(c.model, c.lengths, 3, alike(c, text_layer(attention, mlp, level, level))),
            shares);
        SCOPED_TRACE(to_json(plan));
        test::expect_peak_is_a_budget(c.model, plan, documents, weights);
      }
    }
  }
}

}  // namespace
}  // namespace paradyse
