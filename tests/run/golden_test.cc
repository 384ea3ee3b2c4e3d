// Losses and gradient norms of three steps, as stored in tests/golden/: every family of language
// models under strategies of every verb, and a mixed run, on four ranks (losses.json); multi-axis
// models under every strategy on one to four (grid_losses/).
#include "tests/support/golden.h"

#include <cmath>
#include <map>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "paradyse/plan/batch_planner.h"
#include "paradyse/plan/detail/index.h"
#include "paradyse/plan/layout_planner.h"
#include "paradyse/plan/plan.h"
#include "paradyse/run/accountant.h"
#include "paradyse/run/data.h"
#include "paradyse/run/session.h"
#include "src/plan/model/evoformer/evoformer.h"
#include "src/plan/model/stdit/stdit.h"
#include "src/plan/model/text/text_shape.h"
#include "src/run/data/synthetic_items.h"
#include "src/run/weights/optimizer.h"
#include "tests/support/grid_layers.h"
#include "tests/support/grid_shapes.h"
#include "tests/support/models.h"
#include "tests/support/plans.h"

namespace paradyse {
namespace {

constexpr int kRanks = 4;
constexpr double kTolerance = 1e-12;

std::vector<std::pair<std::string, TextShape>> families() {
  std::vector<std::pair<std::string, TextShape>> all = {
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
    const TextShape& model, const std::vector<std::int64_t>& lengths, const LayerChoice& choice) {
  return test::uniform_plan(model, lengths, kRanks, choice);
}

// A micro-batch of whole documents, one of documents cut by shares under layers that differ, and
// one more under USP.
Plan mixed(const TextShape& shape, const std::vector<std::int64_t>& lengths) {
  Plan plan = alike(shape, lengths, text_layer("DataZ", "gather"));
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
  const Model model = shape;
  EXPECT_TRUE(problems(plan, {.model = model}).empty());
  return plan;
}

struct StepNumbers {
  double loss = 0;
  double gradient_norm = 0;
};

std::vector<StepNumbers> three_steps(
    const Model& model, const test::Weights& start, const Plan& plan, Batch batch) {
  RunConfig::Optimizer options;
  options.lr = 0.01;
  options.eps = 1e-4;  // a gradient that is zero but for rounding moves nothing
  std::vector<StepNumbers> steps(3);
  run_local_ranks(plan.ranks, {}, [&](Communicators& communicators) {
    RankSession session(communicators, model, {.dtype = Dtype::float64});
    Parameters& parameters = session.parameters();
    test::fill(parameters, start);
    AdamW optimizer(parameters, options);
    for (std::size_t s = 0; s < steps.size(); ++s) {
      parameters.zero_gradients();
      Batch seeded = batch;
      seeded.dropout_seed = 17 + s;
      const BatchResult result = session.play(plan, seeded, /*backward=*/true);
      const double norm = gradient_norm(parameters, communicators.world()).item<double>();
      optimizer.step(options.lr, 1.0);
      if (communicators.rank() == 0) {
        steps[s] = {.loss = result.loss, .gradient_norm = norm};
      }
    }
  });
  return steps;
}

std::vector<StepNumbers> three_steps(const TextShape& model, const Plan& plan) {
  const std::vector<Document> documents = test::labelled(
      test::random_documents(plan.lengths, model.vocab, 3),
      test::random_labels(model, plan.lengths, 4));
  const std::vector<Item> items = items_of(documents);
  return three_steps(text_model(model), test::random_weights(model, 5), plan, {.items = items});
}

// What the runs of each model compute.  Strategies and ranks do not change it, so the file has it
// once a model, with the number of runs: that no run goes missing.
class Numbers {
 public:
  void add(
      const std::string& model, const std::string& run, const std::vector<StepNumbers>& steps) {
    found_[model].push_back({run, steps});
  }

  void expect_golden(const std::string& file) const {
    if (test::writes_golden()) {
      test::write_golden(file, first_runs());
    }
    const auto expected = nlohmann::json::parse(test::golden_text(file));
    ASSERT_EQ(found_.size(), expected.size());
    for (const auto& [model, runs] : found_) {
      ASSERT_TRUE(expected.contains(model)) << model;
      const auto& of = expected[model];
      EXPECT_EQ(runs.size(), of["runs"].get<std::size_t>()) << model;
      for (const auto& [run, steps] : runs) {
        ASSERT_EQ(steps.size(), of["loss"].size());
        for (std::size_t s = 0; s < steps.size(); ++s) {
          const std::string where = model + ", " + run + ", step " + std::to_string(s);
          expect_near(steps[s].loss, of["loss"][s], where + ", loss");
          expect_near(steps[s].gradient_norm, of["gradient_norm"][s], where + ", gradient norm");
        }
      }
    }
  }

 private:
  static void expect_near(double is, double was, const std::string& what) {
    EXPECT_NEAR(is, was, kTolerance * std::abs(was)) << what;
  }

  // A line for each model, of the run that was added first.
  std::string first_runs() const {
    std::string text;
    for (const auto& [model, runs] : found_) {
      nlohmann::ordered_json line = {{"runs", runs.size()}};
      for (const StepNumbers& step : runs.front().second) {
        line["loss"].push_back(step.loss);
        line["gradient_norm"].push_back(step.gradient_norm);
      }
      text += (text.empty() ? "{\n " : ",\n ") + nlohmann::json(model).dump() + ": " + line.dump();
    }
    return text + "\n}\n";
  }

  std::map<std::string, std::vector<std::pair<std::string, std::vector<StepNumbers>>>> found_;
};

TEST(Golden, LossesAndGradientNorms) {
  const std::vector<std::int64_t> lengths = {1, 9, 2, 5, 17, 3, 11};
  Numbers found;
  for (const auto& [name, model] : families()) {
    const auto run = [&](const std::string& strategies, const Plan& plan) {
      found.add(name, strategies, three_steps(model, plan));
    };
    run("MegatronTS+hold", alike(model, lengths, text_layer("MegatronTS", "hold")));
    run("UlyssesZ+gather", alike(model, lengths, text_layer("UlyssesZ", "gather")));
    run("METP+pass", alike(model, lengths, text_layer("METP", "pass")));
    run("mixed", mixed(model, lengths));
  }
  found.expect_golden("losses.json");
}

// --- multi-axis models ---------------------------------------------------------------------------

std::vector<test::GridModel> grid_models() {
  StditShape video = test::small_stdit(2);
  video.channels = 1;
  EvoformerShape protein = test::small_evoformer(2);
  std::vector<test::GridModel> all = {
      {.name = "stdit", .shape = video, .dims = {{"frames", 5}, {"patches", 4}}, .samples = 3},
      {.name = "stdit_text",
       .shape = test::with_text(video),
       .dims = {{"frames", 3}, {"patches", 5}, {"text", 4}},
       .samples = 2},
      {.name = "evoformer",
       .shape = protein,
       .dims = {{"sequences", 5}, {"residues", 4}, {"i", 4}, {"j", 4}}},
      {.name = "extra_msa",
       .shape = test::small_extra_msa(2),
       .dims = {{"sequences", 7}, {"residues", 5}, {"i", 5}, {"j", 5}}}};
  protein.multimer = true;
  all.push_back(
      {.name = "multimer",
       .shape = protein,
       .dims = {{"sequences", 3}, {"residues", 5}, {"i", 5}, {"j", 5}}});
  return all;
}

std::vector<StepNumbers> three_steps(const test::GridModel& of, const Plan& plan) {
  const Model model = Model(of.shape);
  EXPECT_TRUE(problems(plan, {.model = of.shape}).empty()) << problems(plan).front();
  std::vector<Sample> samples;
  const BatchSizes sizes = sizes_of(plan);
  for (std::size_t s = 0; s < sizes.lengths.size(); ++s) {
    samples.push_back(std::move(
        synthetic_samples(model, sizes.dims[s], static_cast<std::int64_t>(s) + 1).back()));
  }
  const std::vector<Item> items = items_of(samples);
  return three_steps(model, test::random_weights(model, 5), plan, {.items = items});
}

// All layers by one choice, all samples at once.
Plan alike(const test::GridModel& of, int ranks, const LayerChoice& layer) {
  const Model model = Model(of.shape);
  Plan plan = plan_of(
      {.model = &model,
       .documents = test::documents_of_samples(of.dims, of.shape.rows(of.dims), of.samples, ranks)},
      std::vector<LayerChoice>(idx(model.layers), layer));
  plan.model_name = of.shape.name;
  return plan;
}

// A batch of samples of two sizes, as it is planned: weights are kept, messages overlap.
Plan of_two_sizes(const test::GridModel& of) {
  DimSizes other = of.dims;
  for (auto& [dim, size] : other) {
    size -= dim == "patches" ? 0 : 1;
  }
  const std::unique_ptr<BatchPlanner> planner = batch_planner(
      {.model = of.shape,
       .ranks = 3,
       .machine = {},
       .memory_per_rank = std::int64_t{1} << 30,
       .recompute = to_string(Recompute::attention_output)});
  return planner
      ->plan({.lengths = {of.shape.rows(of.dims), of.shape.rows(other)}, .dims = {of.dims, other}})
      .plan.value();
}

class GoldenGrids : public testing::TestWithParam<test::GridModel> {};

TEST_P(GoldenGrids, LossesAndGradientNorms) {
  const test::GridModel& of = GetParam();
  const Model model = Model(of.shape);
  Numbers found;
  const auto run = [&](const std::string& name, int ranks, const LayerChoice& layer) {
    found.add(
        "one size",
        name + " on " + std::to_string(ranks),
        three_steps(of, alike(of, ranks, layer)));
  };
  for (const LayoutRival& rival : layout_rivals(model)) {
    run(rival.name, 4, rival.parts);
  }
  const std::vector<LayerChoice> layers = test::layers_of_every_strategy(model, of.dims);
  for (std::size_t i = 0; i < layers.size(); ++i) {
    LayerChoice layer = layers[i];
    for (const int ranks : {1, 2, 3, 4}) {
      const std::vector<std::string> levels = {
          "none", "layer", "light", "attention-output", "full"};
      set_recompute(layer, layer_recompute(levels[(i + idx(ranks)) % levels.size()]));
      run("layer " + std::to_string(i), ranks, layer);
    }
  }
  found.add("two sizes", "on 3", three_steps(of, of_two_sizes(of)));
  found.expect_golden("grid_losses/" + of.name + ".json");
}

INSTANTIATE_TEST_SUITE_P(
    Models, GoldenGrids, testing::ValuesIn(grid_models()), [](const auto& tested) {
      return tested.param.name;
    });

}  // namespace
}  // namespace paradyse
