// The main proof: every strategy, mixed and pure, at every recompute level, on 1 to 4 ranks, gives
// the loss and every gradient of plain single-rank autograd; and memory and traffic are what the
// folds say.
#include "tests/support/equality.h"

#include <numeric>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "paradyse/plan/plan.h"
#include "paradyse/run/gradients.h"
#include "src/plan/model/text/text_shape.h"
#include "tests/support/models.h"
#include "tests/support/plans.h"

namespace paradyse {
namespace {

using test::Weights;

using test::Case;
using test::cases;
using test::expect_equal;

class Equality : public testing::Test {};

LayerChoice layer(const std::string& attention, const std::string& mlp, LayerRecompute level) {
  LayerChoice layer = text_layer(attention, mlp);
  set_recompute(layer, level);
  return layer;
}
LayerChoice layer(const std::string& attention, const std::string& mlp, Recompute level) {
  return layer(attention, mlp, LayerRecompute{.parts = level});
}

TEST_F(Equality, PureStrategiesAtEveryRecomputeLevel) {
  for (const Case& c : cases()) {
    for (const int p : {1, 2, 3, 4}) {
      for (const auto& [attention, mlp] : test::pure_strategies()) {
        for (const LayerRecompute level : test::recompute_levels()) {
          const std::vector<LayerChoice> layers(
              static_cast<std::size_t>(c.model.layers), layer(attention, mlp, level));
          const Plan plan = uniform_plan(c.model, c.lengths, p, layers);
          expect_equal(c, plan, Dtype::float64, 1e-10);
          if (HasFatalFailure()) {
            return;
          }
        }
      }
    }
  }
}

// Messages beside work change no bit, nor do weights and tokens that are kept, and bytes are what
// the folds say.
TEST_F(Equality, MessagesChangeNoBit) {
  const auto ways = [] {
    std::vector<LayerChoice> layers;
    for (const auto& [attention, mlp] : test::pure_strategies()) {
      layers.push_back(text_layer(attention, mlp));
    }
    for (const char* const mlp : {"hold", "gather"}) {
      layers.push_back(text_layer("MegatronTS", mlp));
      set_options(layers.back(), {{"keep_gathered", 1}});
    }
    return layers;
  }();
  const std::vector<Messages> beside = {
      {.overlap = true}, {.overlap = true, .reshard_after_forward = false}};
  const std::vector<Messages> at_once = {{.reshard_after_forward = false}};
  for (const Case& c : cases()) {
    const test::Weights weights = test::random_weights(c.model, 11);
    const auto documents = test::random_documents(c.lengths, c.model.vocab, 7);
    for (const int p : {1, 2, 3, 4}) {
      for (LayerChoice layer : ways) {
        for (const LayerRecompute level : test::recompute_levels()) {
          set_recompute(layer, level);
          SCOPED_TRACE(c.name + " on " + std::to_string(p) + ": " + name(layer));
          Plan plan = test::uniform_plan(c.model, c.lengths, p, layer);
          for (const Dtype dtype : {Dtype::float32, Dtype::bfloat16}) {
            GradientRequest request{
                .model = text_model(c.model),
                .fill = [&](Parameters& parameters) { test::fill(parameters, weights); },
                .plan = &plan,
                .items = items_of(documents),
                .dtype = dtype};
            plan.messages = {};
            const GradientAnswer without = gradients(request);
            for (const Messages& messages : dtype == Dtype::float32 ? beside : at_once) {
              const bool keeps = !messages.reshard_after_forward;
              plan.messages = messages;
              const GradientAnswer with = gradients(request);
              ASSERT_EQ(with.batch.loss, without.batch.loss);
              for (const auto& [tensor, gradient] : without.gradients) {
                ASSERT_TRUE(at::equal(gradient, with.gradients.at(tensor))) << tensor;
              }
              for (int r = 0; r < p; ++r) {
                const Precision precision = precision_of(dtype);
                const RankReport counted = predicted_report(plan, request.model, r, precision);
                const RankReport& measured = with.ranks[static_cast<std::size_t>(r)];
                EXPECT_EQ(measured.bytes_sent, counted.bytes_sent);
                const std::int64_t before = without.ranks[static_cast<std::size_t>(r)].bytes_sent;
                if (keeps && p > 1 && part_of(layer, "mlp").strategy != "hold") {
                  EXPECT_LT(measured.bytes_sent, before);
                } else if (keeps) {
                  EXPECT_LE(measured.bytes_sent, before);
                } else {
                  EXPECT_EQ(measured.bytes_sent, before);
                }
                EXPECT_EQ(measured.saved_bytes, counted.saved_bytes);
                EXPECT_NEAR(
                    static_cast<double>(measured.peak_bytes),
                    static_cast<double>(counted.peak_bytes),
                    0.02 * static_cast<double>(counted.peak_bytes));
              }
            }
          }
        }
      }
    }
  }
}

// Labels that are no next tokens: they move to the token before before tokens are cut over ranks.
TEST_F(Equality, LabelsOfACausalModel) {
  const Case c{
      "labels",
      test::llama({.heads = 6, .kv_heads = 2, .ffn = 13, .vocab = 31}),
      {1, 9, 2, 17, 3},
      /*labels=*/true};
  for (const int p : {1, 2, 3, 4}) {
    for (const auto& [attention, mlp] : test::pure_strategies()) {
      for (const Recompute level : {Recompute::none, Recompute::full}) {
        const std::vector<LayerChoice> layers(
            static_cast<std::size_t>(c.model.layers), layer(attention, mlp, level));
        const Plan plan = uniform_plan(c.model, c.lengths, p, layers);
        expect_equal(c, plan, Dtype::float64, 1e-10);
        expect_equal(c, plan, Dtype::float32, 2e-5);
      }
    }
  }
}

// Every strategy with all that it saves in host memory.
TEST_F(Equality, OffloadedTensorsComeBack) {
  const Case c = cases()[0];
  for (const int p : {1, 3}) {
    for (const auto& [attention, mlp] : test::pure_strategies()) {
      for (const Recompute level : {Recompute::none, Recompute::attention_output}) {
        std::vector<LayerChoice> layers(
            static_cast<std::size_t>(c.model.layers), layer(attention, mlp, level));
        part_of(layers[0], "attention").offload = true;
        for (PartChoice& part : layers[1]) {
          part.offload = true;
        }
        const Plan plan = uniform_plan(c.model, c.lengths, p, layers);
        expect_equal(c, plan, Dtype::float64, 1e-10);
        expect_equal(c, plan, Dtype::float32, 2e-5);
      }
    }
  }
}

// METP from ring attention with everything passed at once to a group a key/value head.
TEST_F(Equality, AnyNumberOfHeadGroups) {
  Case c{
      "many_heads", test::llama({.heads = 10, .kv_heads = 5, .ffn = 9, .vocab = 23}), {7, 1, 12}};
  for (const int p : {1, 2, 3, 4}) {
    for (int groups = 1; groups <= 5; ++groups) {
      LayerChoice choice =
          layer("METP", "pass", groups % 2 == 0 ? Recompute::full : Recompute::none);
      part_of(choice, "attention").options["head_groups"] = groups;
      const std::vector<LayerChoice> layers(static_cast<std::size_t>(c.model.layers), choice);
      expect_equal(c, uniform_plan(c.model, c.lengths, p, layers), Dtype::float64, 1e-10);
    }
  }
}

// Every grid of Ulysses and ring, with fewer heads than ranks of a row, too.
TEST_F(Equality, AnyGridOfUlyssesAndRing) {
  const Case many{"grids", test::llama({.heads = 6, .kv_heads = 3, .ffn = 9}), {7, 1, 29}};
  const Case few{"few_heads_on_grids", test::llama({.heads = 2, .kv_heads = 1}), {2, 13}};
  for (const int p : {1, 2, 4, 6, 8}) {
    for (int degree = 1; degree <= p; ++degree) {
      LayerChoice choice =
          layer("USP", "gather", degree % 2 == 0 ? Recompute::full : Recompute::none);
      part_of(choice, "attention").options["ulysses_degree"] = degree;
      const std::vector<LayerChoice> layers(static_cast<std::size_t>(many.model.layers), choice);
      if (p % degree != 0) {
        continue;  // plan.plan_file, plan.program: refused
      }
      expect_equal(many, uniform_plan(many.model, many.lengths, p, layers), Dtype::float64, 1e-10);
      expect_equal(few, uniform_plan(few.model, few.lengths, p, layers), Dtype::float64, 1e-10);
      expect_equal(many, uniform_plan(many.model, many.lengths, p, layers), Dtype::float32, 2e-5);
    }
  }
}

// MLPs in tiles of tokens, more of them than some ranks or than there are tokens, too.
TEST_F(Equality, AnyNumberOfTokenTiles) {
  for (const Case& c : cases()) {
    for (const int p : {1, 2, 3, 4}) {
      for (const int tiles : {1, 2, 3, 7, 100}) {
        for (const Verb verb : kVerbs) {
          const Recompute level = tiles % 2 == 0 ? Recompute::full : Recompute::none;
          LayerChoice choice = layer("MegatronCZ", to_string(verb), level);
          part_of(choice, "mlp").options["token_tiles"] = tiles;
          const std::vector<LayerChoice> layers(static_cast<std::size_t>(c.model.layers), choice);
          expect_equal(c, uniform_plan(c.model, c.lengths, p, layers), Dtype::float64, 1e-10);
          if (HasFatalFailure()) {
            return;
          }
        }
      }
    }
  }
}

// Groups of six and eight ranks: more than heads, than tokens of most documents.
TEST_F(Equality, OnSixAndEightRanks) {
  const Case c = cases()[0];
  for (const int p : {6, 8}) {
    for (const auto& [attention, mlp] : test::pure_strategies()) {
      for (const Recompute level : {Recompute::none, Recompute::full}) {
        const std::vector<LayerChoice> layers(
            static_cast<std::size_t>(c.model.layers), layer(attention, mlp, level));
        expect_equal(c, uniform_plan(c.model, c.lengths, p, layers), Dtype::float64, 1e-10);
      }
    }
  }
}

// Layers differ, and attention differs from the MLP.
TEST_F(Equality, MixedOverLayersAndBetweenAttentionAndMlp) {
  using enum Recompute;
  const std::vector<std::vector<LayerChoice>> mixtures = {
      {text_layer("MegatronTS", "gather", none, full), text_layer("UlyssesZ", "hold", light, none)},
      {text_layer("UlyssesZ", "hold", full, light),
       text_layer("MegatronTS", "hold", attention_output, full)},
      {text_layer("MegatronTS", "hold", none, none),
       text_layer("UlyssesZ", "gather", attention_output, none)},
      {text_layer("UlyssesZ", "gather", none, attention_output),
       text_layer("MegatronTS", "gather", full, light)},
      {text_layer("METP", "hold", none, light), text_layer("MegatronCZ", "pass", none, none)},
      {text_layer("MegatronCZ", "gather", full, none), text_layer("METP", "pass", light, full)},
      {text_layer("AllGatherKV", "pass", none, light),
       text_layer("MegatronTS", "hold", light, none)},
      {text_layer("METP", "pass", attention_output, none),
       text_layer("AllGatherKV", "hold", full, full)},
      {text_layer("USP", "hold", light, none), text_layer("MegatronTS", "pass", none, full)},
      {text_layer("UlyssesZ", "pass", none, none),
       text_layer("USP", "gather", attention_output, light)},
      {text_layer("ColossalZ", "hold", full, none), text_layer("USP", "pass", none, none)},
  };
  for (const Case& c : cases()) {
    for (const int p : {1, 2, 3, 4}) {
      for (const auto& layers : mixtures) {
        const Plan plan = uniform_plan(c.model, c.lengths, p, layers);
        expect_equal(c, plan, Dtype::float64, 1e-10);
        expect_equal(c, plan, Dtype::float32, 2e-5);
        if (HasFatalFailure()) {
          return;
        }
      }
    }
  }
}

TEST_F(Equality, HoldsInFloat32) {
  for (const Case& c : cases()) {
    for (const int p : {1, 2, 3, 4}) {
      for (const auto& [attention, mlp] : test::pure_strategies()) {
        for (const Recompute level : {Recompute::none, Recompute::full}) {
          const std::vector<LayerChoice> layers(
              static_cast<std::size_t>(c.model.layers), layer(attention, mlp, level));
          expect_equal(c, uniform_plan(c.model, c.lengths, p, layers), Dtype::float32, 2e-5);
        }
      }
    }
  }
}

// A plan of `micro` with programs for groups of every size.
Plan plan_of(
    const Case& c,
    int ranks,
    int weight_domain,
    std::vector<PlanMicroBatch> micro,
    Recompute level = Recompute::none) {
  Plan plan = uniform_plan(c.model, c.lengths, ranks, {});
  const auto layers = static_cast<std::size_t>(c.model.layers);
  plan.weight_domain = weight_domain;
  plan.programs = {
      {"data", runs_of(std::vector<LayerChoice>(layers, layer("DataZ", "gather", level)))},
      {"ulysses", runs_of(std::vector<LayerChoice>(layers, layer("UlyssesZ", "gather", level)))},
      {"megatron", runs_of(std::vector<LayerChoice>(layers, layer("MegatronTS", "hold", level)))}};
  plan.micro_batches = std::move(micro);
  return plan;
}

PlanGroup group(std::vector<int> ranks, std::vector<std::int64_t> documents, std::string program) {
  return {std::move(ranks), std::move(documents), std::move(program), {}};
}

// Groups of one run whole documents while others split theirs; idle ranks join the weights'
// gathers.
TEST_F(Equality, GroupsOfDifferentSizesSideBySide) {
  for (const Case& c : cases()) {
    for (const Recompute level : {Recompute::none, Recompute::attention_output}) {
      std::vector<std::int64_t> rest;
      for (std::size_t d = 3; d < c.lengths.size(); ++d) {
        rest.push_back(static_cast<std::int64_t>(d));
      }
      expect_equal(
          c,
          plan_of(
              c,
              4,
              4,
              {{{group({0, 1}, {1, 0}, "ulysses"),
                 group({2}, {2}, "data"),
                 group({3}, rest, "data")},
                {}}},
              level),
          Dtype::float64,
          1e-10);
      expect_equal(
          c,
          plan_of(
              c,
              3,
              3,
              {{{group({0, 2}, {0, 1, 2}, "ulysses"), group({1}, {}, "data")}, {}},
               {{group({0}, {}, "data"), group({1}, rest, "data"), group({2}, {}, "ulysses")}, {}}},
              level),
          Dtype::float64,
          1e-10);
    }
  }
}

// Any split of a batch over micro-batches, groups and strategies gives the same gradient.
TEST_F(Equality, AnySplitGivesTheSameGradient) {
  std::mt19937 random(5);
  for (const Case& c : cases()) {
    for (int round = 0; round < 25; ++round) {
      const int ranks = 1 + static_cast<int>(random() % 4);
      std::vector<std::int64_t> documents(c.lengths.size());
      std::iota(documents.begin(), documents.end(), 0);
      std::shuffle(documents.begin(), documents.end(), random);
      std::vector<PlanMicroBatch> micro_batches;
      for (std::size_t next = 0; next < documents.size() || micro_batches.empty();) {
        PlanMicroBatch& micro = micro_batches.emplace_back();
        const auto take = [&] {
          std::vector<std::int64_t> taken;
          while (next < documents.size() && random() % 3 != 0) {
            taken.push_back(documents[next++]);
          }
          return taken;
        };
        if (random() % 3 == 0) {
          std::vector<int> all(static_cast<std::size_t>(ranks));
          std::iota(all.begin(), all.end(), 0);
          micro.groups.push_back(group(all, take(), "megatron"));
          if (micro.groups.back().documents.empty()) {  // an idle group has one rank
            micro_batches.pop_back();
          }
          continue;
        }
        for (int first = 0; first < ranks;) {
          std::vector<std::int64_t> mine = take();
          const int size =
              mine.empty() ? 1
                           : 1 + static_cast<int>(random() % static_cast<unsigned>(ranks - first));
          std::vector<int> members;
          for (int i = 0; i < size; ++i) {
            members.push_back(first++);
          }
          micro.groups.push_back(
              group(members, std::move(mine), size == 1 && random() % 2 == 0 ? "data" : "ulysses"));
        }
      }
      expect_equal(
          c,
          plan_of(
              c,
              ranks,
              ranks,
              std::move(micro_batches),
              kRecomputeLevels[random() % std::size(kRecomputeLevels)]),
          Dtype::float64,
          1e-10);
      if (HasFailure()) {
        return;
      }
    }
  }
}

// Weights cut over two ranks, two copies of the model: replicas sum their gradients.
TEST_F(Equality, WeightDomainsSmallerThanTheWorld) {
  for (const Case& c : cases()) {
    std::vector<std::int64_t> rest;
    for (std::size_t d = 2; d < c.lengths.size(); ++d) {
      rest.push_back(static_cast<std::int64_t>(d));
    }
    expect_equal(
        c,
        plan_of(
            c, 4, 2, {{{group({0, 1}, {0, 1}, "megatron"), group({2, 3}, rest, "ulysses")}, {}}}),
        Dtype::float64,
        1e-10);
    expect_equal(
        c,
        plan_of(
            c,
            4,
            1,
            {{{group({0}, {0}, "data"),
               group({1}, {1}, "data"),
               group({2}, rest, "data"),
               group({3}, {}, "data")},
              {}}}),
        Dtype::float64,
        1e-10);
  }
}

TEST_F(Equality, NarrowTypesStayWithinTheirRounding) {
  for (const Dtype dtype : {Dtype::bfloat16, Dtype::float16}) {
    for (const Case& c : cases()) {
      for (const int p : {1, 2, 3, 4}) {
        for (const auto& [attention, mlp] : test::pure_strategies()) {
          const std::vector<LayerChoice> layers(
              static_cast<std::size_t>(c.model.layers), layer(attention, mlp, Recompute::light));
          test::expect_within_rounding(c, uniform_plan(c.model, c.lengths, p, layers), dtype);
        }
      }
    }
  }
}

// The same seed and plan: the same bits, however the threads are scheduled.
TEST_F(Equality, IsBitIdenticalFromRunToRun) {
  const Case c = cases().front();
  const auto documents = test::random_documents(c.lengths, c.model.vocab, 7);
  const Weights weights = test::random_weights(c.model, 11);
  for (const auto& [attention, mlp] : test::pure_strategies()) {
    const Plan plan =
        test::uniform_plan(c.model, c.lengths, 4, layer(attention, mlp, Recompute::none));
    GradientRequest request{
        .model = text_model(c.model),
        .plan = &plan,
        .items = items_of(documents),
        .dtype = Dtype::float32};
    request.fill = [&](Parameters& parameters) { test::fill(parameters, weights); };
    const GradientAnswer first = gradients(request);
    for (int round = 0; round < 10; ++round) {
      const GradientAnswer again = gradients(request);
      EXPECT_EQ(first.batch.loss, again.batch.loss);
      for (const auto& [name, gradient] : first.gradients) {
        EXPECT_TRUE(at::equal(gradient, again.gradients.at(name))) << name;
      }
    }
  }
}

// The largest footprint the folds name is a budget that suffices, to the byte; less is refused
// while running, by a message that says what asked for what.
TEST_F(Equality, TheCountedPeakIsABudgetThatSuffices) {
  const Case c = cases().front();
  const auto documents = test::random_documents(c.lengths, c.model.vocab, 7);
  const Weights weights = test::random_weights(c.model, 11);
  for (const int p : {1, 3}) {
    for (const auto& [attention, mlp] : test::pure_strategies()) {
      for (const Recompute level : {Recompute::none, Recompute::full}) {
        SCOPED_TRACE(std::string(attention) + " on " + std::to_string(p));
        Plan plan = test::uniform_plan(c.model, c.lengths, p, layer(attention, mlp, level));
        for (const bool overlap : {false, true}) {
          for (const bool reshard : {false, true}) {
            plan.messages = {.overlap = overlap, .reshard_after_forward = reshard};
            test::expect_peak_is_a_budget(c.model, plan, documents, weights);
          }
          const bool passes = strategy("attention", attention).verb == Verb::pass ||
                              strategy("mlp", mlp).verb == Verb::pass;
          if (p == 1 || !passes) {  // whole weights are not passed on
            plan.messages = {
                .overlap = overlap,
                .reshard_after_forward = false,
                .reshard_after_backward = false};
            test::expect_peak_is_a_budget(c.model, plan, documents, weights);
          }
        }
      }
    }
  }
}

// Of attention dropout nothing is held, but a tile where probabilities are kept.
TEST_F(Equality, DropoutOfProbabilitiesIsCounted) {
  const TextShape without = test::llama({.heads = 6, .kv_heads = 6, .ffn = 3, .vocab = 7});
  TextShape with = without;
  with.attention_dropout = 0.3;
  const std::vector<std::int64_t> lengths = {150, 3};
  const auto documents = test::random_documents(lengths, with.vocab, 7);
  const Weights weights = test::random_weights(with, 11);
  for (const int p : {1, 2, 3}) {
    for (const auto& [attention, mlp] : test::pure_strategies()) {
      SCOPED_TRACE(std::string(attention) + " on " + std::to_string(p));
      const Plan plan =
          test::uniform_plan(with, lengths, p, layer(attention, mlp, Recompute::attention_output));
      test::expect_peak_is_a_budget(with, plan, documents, weights);
      if (attention == "ColossalZ") {
        continue;
      }
      for (int r = 0; r < p; ++r) {
        const auto peak = [&](const TextShape& model) {
          return predicted_report(plan, model, r, precision_of(Dtype::bfloat16)).peak_bytes;
        };
        EXPECT_EQ(peak(with), peak(without)) << "rank " << r;
      }
    }
  }
}

// What ranks send and hold follows from the tiles of the plan, whatever their sizes.
TEST_F(Equality, TilesOfAPlanAreCounted) {
  const Case c = cases().front();
  const auto documents = test::random_documents(c.lengths, c.model.vocab, 7);
  const Weights weights = test::random_weights(c.model, 11);
  for (const Tiles tiles :
       {Tiles{.vocabulary = 5, .logits = 17, .products = 1},
        Tiles{
            .vocabulary = 1000, .logits = std::int64_t{1} << 26, .products = std::int64_t{1} << 30},
        gpu_tiles(c.model, 4)}) {
    for (const int p : {1, 2, 3, 4}) {
      for (const auto& [attention, mlp] :
           {std::pair{"UlyssesZ", "gather"}, {"MegatronTS", "hold"}}) {
        SCOPED_TRACE(
            std::string(attention) + " on " + std::to_string(p) + ", tiles of " +
            std::to_string(tiles.vocabulary) + " ids");
        Plan plan =
            test::uniform_plan(c.model, c.lengths, p, layer(attention, mlp, Recompute::none));
        plan.tiles = tiles;
        test::expect_equal(c, plan, Dtype::float64, 1e-10);
        test::expect_peak_is_a_budget(c.model, plan, documents, weights);
        if (tiles.products > 0) {
          test::expect_within_rounding(c, plan, Dtype::bfloat16);
        }
      }
    }
  }
}

}  // namespace
}  // namespace paradyse
