// Losses and gradient norms of three steps on four ranks, as stored in tests/golden/losses.json:
// every family under strategies of every verb, and a mixed run.
#include "tests/support/golden.h"

#include <cmath>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "paradyse/plan/plan.h"
#include "paradyse/run/accountant.h"
#include "paradyse/run/session.h"
#include "src/run/weights/optimizer.h"
#include "tests/support/models.h"

namespace paradyse {
namespace {

constexpr int kRanks = 4;
constexpr double kTolerance = 1e-12;

std::vector<std::pair<std::string, ModelShape>> families() {
  std::vector<std::pair<std::string, ModelShape>> all = {
      {"llama", test::llama({.heads = 6, .kv_heads = 2, .ffn = 13, .vocab = 31, .tied = true})},
      {"qwen2", test::model_of(R"({"model_type": "qwen2", "num_hidden_layers": 2, "hidden_size": 20,
         "num_attention_heads": 5, "num_key_value_heads": 1, "intermediate_size": 11,
         "vocab_size": 29, "tie_word_embeddings": true, "rope_parameters": {"rope_type": "yarn",
         "rope_theta": 100.0, "factor": 4.0, "original_max_position_embeddings": 8}})")},
      {"qwen3", test::model_of(R"({"model_type": "qwen3", "num_hidden_layers": 2, "hidden_size": 12,
         "num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 6,
         "intermediate_size": 13, "vocab_size": 31, "attention_bias": true})")},
      {"gpt2", test::model_of(R"({"model_type": "gpt2", "n_layer": 2, "n_embd": 15, "n_head": 5,
         "n_inner": 13, "vocab_size": 31, "n_positions": 40})")},
      {"opt", test::model_of(R"({"model_type": "opt", "num_hidden_layers": 2, "hidden_size": 15,
         "num_attention_heads": 3, "ffn_dim": 13, "vocab_size": 31,
         "max_position_embeddings": 40})")},
      {"bert", test::model_of(R"({"model_type": "bert", "num_hidden_layers": 2, "hidden_size": 14,
         "num_attention_heads": 7, "intermediate_size": 13, "vocab_size": 31,
         "max_position_embeddings": 40})")}};
  for (auto& [name, model] : all) {
    model.attention_dropout = 0;  // that of embeddings and sums stays on, where a family has it
  }
  return all;
}

Plan alike(
    const ModelShape& model, const std::vector<std::int64_t>& lengths, const LayerChoice& choice) {
  return uniform_plan(
      model,
      lengths,
      kRanks,
      std::vector<LayerChoice>(static_cast<std::size_t>(model.layers), choice));
}

// A micro-batch of whole documents, one of documents cut by shares under layers that differ, and
// one more under USP.
Plan mixed(const ModelShape& model, const std::vector<std::int64_t>& lengths) {
  Plan plan = alike(model, lengths, text_layer("DataZ", "gather"));
  for (PlanGroup& group : plan.micro_batches[0].groups) {
    std::erase_if(group.documents, [](std::int64_t d) { return d > 3; });
  }
  plan.programs["ring"] = runs_of(
      {text_layer("MegatronCZ", "pass", Recompute::none, Recompute::full),
       text_layer("MegatronTS", "hold", Recompute::light)});
  plan.programs["grid"] = runs_of(
      {text_layer("USP", "gather", Recompute::attention_output),
       text_layer("ColossalZ", "gather")});
  plan.micro_batches.push_back(
      {.groups =
           {{.ranks = {0, 1, 2, 3},
             .documents = {4, 5},
             .program = "ring",
             .shares = {3, 1, 2, 2}}},
       .predicted = {}});
  plan.micro_batches.push_back(
      {.groups = {{.ranks = {0, 1, 2, 3}, .documents = {6}, .program = "grid"}}, .predicted = {}});
  EXPECT_TRUE(problems(plan, {.model = &model}).empty());
  return plan;
}

struct StepNumbers {
  double loss = 0;
  double gradient_norm = 0;
};

std::vector<StepNumbers> three_steps(const ModelShape& model, const Plan& plan) {
  const auto documents = test::random_documents(plan.lengths, model.vocab, 3);
  const auto labels = test::random_labels(model, plan.lengths, 4);
  std::vector<const std::vector<std::int32_t>*> batch;
  std::vector<const std::vector<std::int32_t>*> targets;
  for (std::size_t d = 0; d < documents.size(); ++d) {
    batch.push_back(&documents[d]);
    if (!labels.empty()) {
      targets.push_back(&labels[d]);
    }
  }
  RunConfig::Optimizer options;
  options.lr = 0.01;
  options.eps = 1e-4;  // a gradient that is zero but for rounding moves nothing
  const test::Weights start = test::random_weights(model, 5);
  std::vector<StepNumbers> steps(3);
  run_local_ranks(kRanks, {}, [&](Communicators& communicators) {
    RankSession session(communicators, text_model(model), {.dtype = Dtype::float64});
    Parameters& parameters = session.parameters();
    test::fill(parameters, start);
    AdamW optimizer(parameters, options);
    for (std::size_t s = 0; s < steps.size(); ++s) {
      parameters.zero_gradients();
      const BatchResult result = session.play(
          plan,
          {.documents = batch, .labels = targets, .dropout_seed = 17 + s},
          /*backward=*/true);
      const double norm = gradient_norm(parameters, communicators.world()).item<double>();
      optimizer.step(options.lr, 1.0);
      if (communicators.rank() == 0) {
        steps[s] = {.loss = result.loss, .gradient_norm = norm};
      }
    }
  });
  return steps;
}

TEST(Golden, LossesAndGradientNorms) {
  const std::vector<std::int64_t> lengths = {1, 9, 2, 5, 17, 3, 11};
  nlohmann::ordered_json found;
  const auto run = [&](const std::string& name, const ModelShape& model, const Plan& plan) {
    for (const StepNumbers& step : three_steps(model, plan)) {
      found[name].push_back({{"loss", step.loss}, {"gradient_norm", step.gradient_norm}});
    }
  };
  for (const auto& [name, model] : families()) {
    run(name + " MegatronTS+hold", model, alike(model, lengths, text_layer("MegatronTS", "hold")));
    run(name + " UlyssesZ+gather", model, alike(model, lengths, text_layer("UlyssesZ", "gather")));
    run(name + " METP+pass", model, alike(model, lengths, text_layer("METP", "pass")));
    run(name + " mixed", model, mixed(model, lengths));
  }
  if (test::writes_golden()) {
    test::write_golden("losses.json", found.dump(1) + "\n");
    return;
  }
  const auto expected = nlohmann::ordered_json::parse(test::golden_text("losses.json"));
  ASSERT_EQ(found.size(), expected.size());
  for (const auto& [name, steps] : expected.items()) {
    ASSERT_EQ(found[name].size(), steps.size()) << name;
    for (std::size_t s = 0; s < steps.size(); ++s) {
      for (const char* what : {"loss", "gradient_norm"}) {
        const double was = steps[s][what];
        EXPECT_NEAR(found[name][s][what].get<double>(), was, kTolerance * std::abs(was))
            << name << ", step " << s << ", " << what;
      }
    }
  }
}

}  // namespace
}  // namespace paradyse
