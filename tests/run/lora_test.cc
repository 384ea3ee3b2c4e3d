// Low-rank adapters: gradients under every strategy against the reference and against PEFT's own
// (tests/golden/peft_*), counted memory and traffic, PEFT folders, and runs that train them.
#include "paradyse/plan/lora.h"

#include <atomic>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <random>

#include <c10/core/InferenceMode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "paradyse/plan/config.h"
#include "paradyse/plan/cost.h"
#include "paradyse/plan/detail/index.h"
#include "paradyse/plan/plan.h"
#include "paradyse/run/accountant.h"
#include "paradyse/run/data.h"
#include "paradyse/run/gradients.h"
#include "paradyse/run/train.h"
#include "src/run/check/check_case.h"
#include "src/run/check/own_rounding.h"
#include "src/run/reference/reference.h"
#include "src/run/reference/text.h"
#include "src/run/train/export.h"
#include "src/run/weights/adapters.h"
#include "src/run/weights/optimizer.h"
#include "tests/support/equality.h"
#include "tests/support/folder.h"
#include "tests/support/models.h"
#include "tests/support/plans.h"
#include "tests/support/refusal.h"

namespace paradyse {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using test::Weights;
using testing::HasSubstr;

bool whole_table() { return std::getenv("PARADYSE_TEST_LONG") != nullptr; }

struct Case {
  std::string name;
  Model model;
  bool masked = false;
};

// Sizes that 2, 3 and 4 do not divide; modules that files store apart, fused, transposed and by
// heads; biases of every kind.
std::vector<Case> cases() {
  const auto made = [](const std::string& name, const std::string& config, const Lora& lora) {
    const TextShape shape = without_dropout(test::model_of(config));
    return Case{name, with_lora(text_model(shape), lora), shape.masked_lm};
  };
  return {
      made(
          "llama",
          R"({"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 12,
            "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 4,
            "intermediate_size": 13, "vocab_size": 31, "rope_theta": 100.0})",
          {.rank = 3, .alpha = 5, .targets = {"q_proj", "v_proj", "o_proj", "up_proj"}}),
      made(
          "qwen2",
          R"({"model_type": "qwen2", "num_hidden_layers": 2, "hidden_size": 20,
            "num_attention_heads": 5, "num_key_value_heads": 1, "intermediate_size": 11,
            "vocab_size": 29, "tie_word_embeddings": true})",
          {.rank = 2, .alpha = 3, .rslora = true, .bias = Lora::Bias::lora_only}),
      made(
          "qwen3",
          R"({"model_type": "qwen3", "num_hidden_layers": 2, "hidden_size": 12,
            "num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 6,
            "intermediate_size": 13, "vocab_size": 31, "attention_bias": true})",
          {.rank = 1, .alpha = 2, .targets = {"k_proj", "down_proj"}}),
      made(
          "olmo2",
          R"({"model_type": "olmo2", "num_hidden_layers": 2, "hidden_size": 12,
            "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 4,
            "intermediate_size": 13, "vocab_size": 31})",
          {.rank = 2, .alpha = 3}),
      made(
          "phi3",
          R"({"model_type": "phi3", "num_hidden_layers": 2, "hidden_size": 12,
            "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 4,
            "intermediate_size": 13, "vocab_size": 31, "partial_rotary_factor": 0.5})",
          {.rank = 3, .alpha = 6}),
      made(
          "gpt2",
          R"({"model_type": "gpt2", "n_layer": 2, "n_embd": 15, "n_head": 5, "n_inner": 13,
            "vocab_size": 31, "n_positions": 17})",
          {.rank = 2, .alpha = 2, .targets = {"c_attn", "c_proj"}, .bias = Lora::Bias::all}),
      made(
          "gpt_neox",
          R"({"model_type": "gpt_neox", "num_hidden_layers": 2, "hidden_size": 18,
            "num_attention_heads": 3, "intermediate_size": 13, "vocab_size": 31,
            "rotary_pct": 0.34})",
          {.rank = 2, .alpha = 3, .targets = {"query_key_value", "dense_4h_to_h"}}),
      made(
          "bert",
          R"({"model_type": "bert", "num_hidden_layers": 2, "hidden_size": 14,
            "num_attention_heads": 7, "intermediate_size": 13, "vocab_size": 31,
            "max_position_embeddings": 17})",
          {.rank = 2, .alpha = 2, .targets = {"query", "dense"}, .bias = Lora::Bias::all})};
}

const std::vector<std::int64_t> kLengths = {1, 9, 2, 17, 3};

// The weights, a batch, and what the reference says of them.
struct Problem {
  Weights weights;
  std::vector<Document> documents;
  reference::Answer expected;

  [[nodiscard]] std::vector<Item> items() const { return items_of(documents); }
};
Problem problem_of(const Case& c) {
  Problem problem{
      .weights = test::random_weights(c.model, 11),
      .documents = test::labelled(
          test::random_documents(kLengths, c.model.vocab(), 7),
          test::random_labels(text_shape(c.model), kLengths, 7)),
      .expected = {}};
  problem.expected = reference::answer(c.model, problem.weights, {.items = problem.items()});
  return problem;
}

GradientAnswer answer_of(const Case& c, const Problem& problem, const Plan& plan, Dtype dtype) {
  return gradients(
      {.model = c.model,
       .fill = [&](Parameters& parameters) { test::fill(parameters, problem.weights); },
       .plan = &plan,
       .items = problem.items(),
       .dtype = dtype});
}

// A bias of all keys moves all scores of a query alike: but for what rotary positions make of it
// its gradient is zero, and is judged by that of the queries.
std::map<std::string, std::string> judges(const Weights& gradients) {
  std::map<std::string, std::string> found;
  for (const auto& [name, gradient] : gradients) {
    for (const auto& [keys, queries] :
         {std::pair<std::string, std::string>{"key.bias", "query.bias"},
          {"k_proj.bias", "q_proj.bias"}}) {
      if (name.ends_with(keys)) {
        found[name] = name.substr(0, name.size() - keys.size()) + queries;
      }
    }
  }
  return found;
}

// Post: loss and gradients are the reference's, and counts what the folds say.
void expect_adapted(
    const Case& c, const Problem& problem, const Plan& plan, Dtype dtype, double tolerance) {
  SCOPED_TRACE(
      c.name + ", " + std::to_string(plan.ranks) + " ranks, " + to_string(dtype) + "\n" +
      to_json(plan));
  ASSERT_THAT(problems(plan, {.model = c.model}), testing::IsEmpty());
  const GradientAnswer answer = answer_of(c, problem, plan, dtype);
  EXPECT_NEAR(
      answer.batch.loss, problem.expected.loss, tolerance * std::abs(problem.expected.loss));
  const GradientError error = compare_gradients(
      answer.gradients, problem.expected.gradients, judges(problem.expected.gradients));
  EXPECT_LE(error.worst, tolerance) << error.worst_name;
  test::expect_counts(plan, c.model, dtype, answer);
}

Plan plan_of(const Case& c, int ranks, LayerChoice layer, LayerRecompute level) {
  set_recompute(layer, level);
  return test::uniform_plan(c.model, kLengths, ranks, layer);
}

class LoraModels : public testing::TestWithParam<std::size_t> {};

TEST_P(LoraModels, EqualTheReferenceUnderEveryStrategy) {
  const Case c = cases()[GetParam()];
  const Problem problem = problem_of(c);
  std::size_t number = 0;
  for (const int ranks : {1, 2, 3, 4}) {
    for (const auto& [attention, verb] : test::pure_strategies()) {
      for (const char* const mlp : {"hold", "gather", "pass"}) {
        for (const LayerRecompute level : test::recompute_levels()) {
          if ((strategy("attention", attention).one_rank && std::string(mlp) != "gather") ||
              (!whole_table() && number++ % 7 != GetParam() % 7) || HasFatalFailure()) {
            continue;
          }
          const LayerChoice layer = text_layer(attention, mlp);
          expect_adapted(c, problem, plan_of(c, ranks, layer, level), Dtype::float64, 1e-10);
        }
      }
    }
  }
}

// Rows in tiles, a grid of Ulysses and ring, weights whole while a step lasts or kept after the
// forward pass, and messages beside work.
TEST_P(LoraModels, EqualTheReferenceHoweverWeightsAndMessagesTravel) {
  const Case c = cases()[GetParam()];
  const Problem problem = problem_of(c);
  const std::vector<Messages> ways = {
      {.overlap = true},
      {.overlap = true, .reshard_after_forward = false},
      {.reshard_after_forward = false, .reshard_after_backward = false}};
  for (const int ranks : {1, 2, 4}) {
    for (const char* const mlp : {"hold", "gather", "pass"}) {
      for (const Messages& messages : ways) {
        if (ranks > 1 && !messages.reshard_after_backward && std::string(mlp) != "gather") {
          continue;  // shards are whole then
        }
        LayerChoice layer = text_layer("USP", mlp);
        part_of(layer, "mlp").options["token_tiles"] = 3;
        Plan plan = plan_of(c, ranks, layer, {.parts = Recompute::light});
        plan.messages = messages;
        expect_adapted(c, problem, plan, Dtype::float64, 1e-10);
        layer = text_layer(messages.reshard_after_backward ? "MegatronTS" : "MegatronCZ", mlp);
        plan = plan_of(c, ranks, layer, {.parts = Recompute::full});
        plan.messages = messages;
        expect_adapted(c, problem, plan, Dtype::float32, 2e-5);
      }
    }
  }
  // Two sharding groups, whose sums of gradients are exchanged.
  Plan copies = plan_of(c, 4, text_layer("UlyssesZ", "gather"), {});
  copies.weight_domain = 2;
  copies.micro_batches = {{{{{0, 1}, {0, 1}, "all", {}}, {{2, 3}, {2, 3, 4}, "all", {}}}, {}}};
  expect_adapted(c, problem, copies, Dtype::float64, 1e-10);
}

TEST_P(LoraModels, StayWithinTheirRoundingInBFloat16) {
  const Case c = cases()[GetParam()];
  const Dtype dtype = Dtype::bfloat16;
  Problem problem = problem_of(c);
  for (auto& [name, weight] : problem.weights) {
    weight = weight.to(at::kBFloat16).to(at::kDouble);
  }
  const auto answer = [&](const Weights& weights) {
    return reference::answer(c.model, weights, {.items = problem.items()});
  };
  problem.expected = answer(problem.weights);
  const std::map<std::string, double> own = own_rounding(
      problem.weights,
      [&](const Weights& weights) { return answer(weights).gradients; },
      dtype,
      judges(problem.expected.gradients));
  for (const auto& [attention, mlp] : test::pure_strategies()) {
    const Plan plan = plan_of(c, 3, text_layer(attention, mlp), {.parts = Recompute::light});
    SCOPED_TRACE(c.name + " " + attention);
    const GradientAnswer is = answer_of(c, problem, plan, dtype);
    EXPECT_NEAR(is.batch.loss, problem.expected.loss, rounding(dtype) * problem.expected.loss);
    for (const auto& [name, error] : gradient_errors(
             is.gradients, problem.expected.gradients, judges(problem.expected.gradients))) {
      EXPECT_LE(error, narrow_limit(own.at(name), dtype, /*behind_scores=*/true)) << name;
    }
    test::expect_counts(plan, c.model, dtype, is);
  }
}

INSTANTIATE_TEST_SUITE_P(
    EveryFamily, LoraModels, testing::Range<std::size_t>(0, cases().size()), [](const auto& which) {
      return cases()[which.param].name;
    });

// --- what PEFT itself computes -----------------------------------------------------------------

fs::path golden(const std::string& name) {
  return fs::path(PARADYSE_SOURCE_DIR) / "tests" / "golden" / name;
}

json json_of(const fs::path& file) { return json::parse(std::ifstream(file)); }

std::vector<Document> documents_of(const fs::path& folder) {
  std::vector<Document> documents;
  std::ifstream lines(folder / "documents.jsonl");
  for (std::string line; std::getline(lines, line);) {
    const json record = json::parse(line);
    Document& document = documents.emplace_back(Document{.tokens = record.at("tokens")});
    if (record.contains("labels")) {
      document.labels = record.at("labels").get<Tokens>();
    }
  }
  return documents;
}

class LoraOfPeft : public testing::TestWithParam<const char*> {};

// A folder that PEFT wrote is read; loss, every gradient and merged logits are those of PEFT.
TEST_P(LoraOfPeft, LossGradientsAndMergedLogitsAreTheirs) {
  const fs::path folder = golden(std::string("peft_") + GetParam());
  const ModelFolder model = open_model(folder);
  ASSERT_TRUE(model.model.lora);
  const Model adapted = without_dropout(model.model);
  const ModelWeights weights = open_weights(model, false, 1);
  const json expected = json_of(folder / "expected.json");
  const std::vector<Document> documents = documents_of(model.path);
  std::vector<std::int64_t> lengths;
  for (const Document& document : documents) {
    lengths.push_back(std::ssize(document.tokens));
  }
  const SafetensorsReader theirs(folder / "expected_gradients.safetensors");
  const StoredAdapters names = stored_adapters(theirs, adapted);
  for (const int ranks : {1, 3}) {
    for (const auto& [attention, mlp] : test::pure_strategies()) {
      const Plan plan = test::uniform_plan(adapted, lengths, ranks, text_layer(attention, mlp));
      const GradientAnswer answer = gradients(
          {.model = adapted,
           .fill = [&](Parameters& parameters) { weights.fill(parameters); },
           .plan = &plan,
           .items = items_of(documents),
           .dtype = Dtype::float64});
      EXPECT_NEAR(answer.batch.loss, expected.at("loss"), 1e-9);
      Weights of_peft;
      for (const auto& [name, stored] : names.names) {
        of_peft[name] = theirs.view(stored).clone();
      }
      const GradientError error = compare_gradients(answer.gradients, of_peft);
      EXPECT_LE(error.worst, 1e-9) << error.worst_name << " " << attention << " " << ranks;
    }
  }
  // Merged by us into weights that the model without adapters reads.
  const Model base = open_model(model.path).model;
  Weights merged;
  run_local_ranks(1, {}, [&](Communicators& communicators) {
    Parameters parameters(adapted, 1, 0, parameter_types(Dtype::float64), /*gradients=*/false);
    weights.fill(parameters);
    parameters.merge_adapters();
    collect(
        parameters,
        Which::base,
        communicators.world(),
        [&](const std::string& name, const at::Tensor& tensor) { merged[name] = tensor.clone(); });
  });
  const auto longest = std::ranges::max_element(
      documents, {}, [](const Document& document) { return document.tokens.size(); });
  const at::Tensor logits = reference::logits(text_shape(base), merged, longest->tokens)[-1];
  const std::vector<double> wanted = expected.at("last_logits");
  EXPECT_TRUE(at::allclose(logits, at::tensor(wanted, at::kDouble), 1e-9, 1e-9));
}

INSTANTIATE_TEST_SUITE_P(
    Golden, LoraOfPeft, testing::Values("llama", "qwen2", "gpt2", "neox", "phi3", "bert"));

// --- memory ------------------------------------------------------------------------------------

// What a rank keeps is counted to the byte, and falls as the fold says.
TEST(LoraMemory, IsWhatTheFoldSays) {
  install_accounting_allocator();
  for (const Case& c : cases()) {
    const Model base = text_model(text_shape(c.model));
    for (const Dtype dtype : {Dtype::float32, Dtype::bfloat16}) {
      for (const bool offload : {false, true}) {
        for (int rank = 0; rank < 3; ++rank) {
          Precision precision = precision_of(dtype);
          precision.optimizer_on_host = offload;
          Accountant memory("rank", 0);
          const MemoryScope scope(memory, Category::parameters, "parameters");
          Parameters parameters(
              c.model,
              3,
              rank,
              parameter_types(dtype),
              true,
              offload ? Masters::on_host : Masters::on_device);
          const AdamW optimizer(parameters, {.offload = offload});
          const std::int64_t counted = static_bytes(c.model, 3, rank, precision, Keeps::optimizer);
          EXPECT_EQ(memory.live_bytes(), counted) << c.name << " " << to_string(dtype);
          // Of what is frozen nothing but the weight is left; adapters come to it.
          const std::int64_t all = stored_elements(c.model, 3, rank);
          const std::int64_t frozen = all - trained_elements(c.model, 3, rank);
          const std::int64_t added = all - stored_elements(base, 3, rank);
          EXPECT_EQ(
              counted,
              static_bytes(base, 3, rank, precision, Keeps::optimizer) +
                  added * precision.of_weight(Keeps::optimizer) -
                  frozen * (precision.of_weight(Keeps::optimizer) - precision.activation));
        }
      }
    }
  }
}

// Of a model of half a billion weights all of them cannot be trained on 2 ranks of 4 GiB, adapters
// can.
TEST(LoraMemory, TrainsWhereAllWeightsDoNotFit) {
  const TextShape shape = test::model_of(R"({"model_type": "qwen2", "num_hidden_layers": 24,
      "hidden_size": 896, "num_attention_heads": 14, "num_key_value_heads": 2,
      "intermediate_size": 4864, "vocab_size": 151936, "tie_word_embeddings": true})");
  const Model base = text_model(shape);
  const Model adapted = with_lora(base, {.rank = 16, .alpha = 32});
  const std::vector<std::int64_t> lengths = {1024, 500};
  const std::vector<LayerChoice> layers(
      24, text_layer("UlyssesZ", "gather", Recompute::full, Recompute::full));
  const auto peak = [&](const Model& model) {
    const Plan plan = uniform_plan(model, lengths, 2, layers);
    return predicted_report(plan, model, 0, precision_of(Dtype::bfloat16), Keeps::optimizer)
        .peak_bytes;
  };
  constexpr std::int64_t kBudget = std::int64_t{4} << 30;
  EXPECT_GT(peak(base), kBudget);
  EXPECT_LT(peak(adapted), kBudget / 2);
  // 494 million weights at 2 bytes, and 8.8 million trained ones, which every rank has, at 18.
  EXPECT_EQ(stored_elements(base, 1, 0), 494032768);
  EXPECT_EQ(trained_elements(adapted, 1, 0), 8798208);
  EXPECT_EQ(
      static_bytes(adapted, 1, 0, precision_of(Dtype::bfloat16), Keeps::optimizer),
      494032768 * 2 + 8798208 * 18);
}

// --- folders -----------------------------------------------------------------------------------

class LoraFolders : public testing::Test {
 protected:
  void put(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ / name) << text;
  }
  test::Folder folder_;
};

// What 3 ranks write 2 ranks read, element by element; nothing is overwritten.
TEST_F(LoraFolders, AreReadAsTheyWereWrittenOnAnyNumberOfRanks) {
  for (const Case& c : cases()) {
    const Weights weights = test::random_weights(c.model, 3);
    const fs::path to = folder_ / c.name;
    const auto save = [&](int ranks) {
      run_local_ranks(ranks, {}, [&](Communicators& communicators) {
        const c10::InferenceMode no_autograd;
        Parameters parameters(
            c.model, ranks, communicators.rank(), parameter_types(Dtype::float64), false);
        test::fill(parameters, weights);
        save_adapters(parameters, communicators.world(), to, "base", at::kDouble);
      });
    };
    save(3);
    EXPECT_THAT(test::refusal<std::exception>([&] { save(1); }), HasSubstr("not overwritten"))
        << c.name;
    const AdapterConfig config = adapter_config(json_of(to / "adapter_config.json").dump(), "here");
    EXPECT_EQ(with_lora(text_model(text_shape(c.model)), config.lora).sha256, c.model.sha256);
    const SafetensorsReader reader(to / kAdapterWeights);
    for (int rank = 0; rank < 2; ++rank) {
      const c10::InferenceMode no_autograd;
      Parameters read(c.model, 2, rank, parameter_types(Dtype::float64), false);
      Parameters expected(c.model, 2, rank, parameter_types(Dtype::float64), false);
      test::fill(expected, weights);
      read.initialize(1);
      read.load_adapters(reader);
      for (std::size_t i = 0; i < read.parts().size(); ++i) {
        const PartParameters& part = read.parts()[i];
        for (std::size_t v = 0; v < part.vectors.size(); ++v) {
          EXPECT_EQ(
              at::equal(part.vectors[v], expected.parts()[i].vectors[v]),
              !part.weights.vectors[v].frozen)
              << c.name << " " << part.weights.vectors[v].name;
        }
      }
    }
  }
}

// A is uniform up to 1 / sqrt(inputs), B is zero, the same numbers on any number of ranks.
TEST_F(LoraFolders, AdaptersBeginAsThoseOfPeft) {
  const Model model = with_lora(
      text_model(test::llama({.hidden = 64, .ffn = 90})),
      {.rank = 8, .alpha = 8, .targets = {"up_proj", "down_proj"}});
  Weights first;
  for (const int ranks : {1, 3}) {
    run_local_ranks(ranks, {}, [&](Communicators& communicators) {
      const c10::InferenceMode no_autograd;
      Parameters parameters(
          model, ranks, communicators.rank(), parameter_types(Dtype::float64), false);
      parameters.initialize(5);
      collect(
          parameters,
          Which::trained,
          communicators.world(),
          [&](const std::string& name, const at::Tensor& tensor) {
            if (ranks == 1) {
              first[name] = tensor.clone();
            }
            EXPECT_TRUE(at::equal(first.at(name), tensor)) << name;
          });
    });
  }
  ASSERT_EQ(first.size(), 8U);
  for (const auto& [name, tensor] : first) {
    if (name.ends_with(".lora_B.weight")) {
      EXPECT_TRUE(at::equal(tensor, at::zeros_like(tensor))) << name;
      continue;
    }
    const double limit = 1 / std::sqrt(static_cast<double>(tensor.size(1)));
    EXPECT_LE(tensor.abs().max().item<double>(), limit) << name;
    EXPECT_GT(tensor.abs().max().item<double>(), 0.97 * limit) << name;
    EXPECT_NEAR(tensor.std().item<double>(), limit / std::sqrt(3.0), 0.05 * limit) << name;
  }
}

TEST_F(LoraFolders, RefuseWhatIsNotImplementedByName) {
  const json plain = json_of(golden("peft_llama") / "adapter_config.json");
  const auto said = [&](const json& changes) {
    json config = plain;
    config.update(changes);
    return test::refusal<std::exception>([&] {
      with_lora(
          open_model(golden("hf_llama_gqa")).model, adapter_config(config.dump(), "a.json").lora);
    });
  };
  EXPECT_EQ(said(json::object()), "");
  for (const auto& [key, value] : std::vector<std::pair<std::string, json>>{
           {"modules_to_save", {"lm_head"}},
           {"use_dora", true},
           {"layers_to_transform", {1}},
           {"layers_to_transform", 0},
           {"layers_pattern", "none"},
           {"exclude_modules", "None"},
           {"trainable_token_indices", 0},
           {"rank_pattern", {{"q_proj", 2}}},
           {"alpha_pattern", {{"q_proj", 2}}},
           {"lora_bias", true},
           {"exclude_modules", {"k_proj"}},
           {"init_lora_weights", "pissa"},
           {"trainable_token_indices", {3}},
           {"target_modules", ".*_proj"},
           {"target_parameters", {"a"}},
           {"use_qalora", true},
           {"megatron_config", {{"a", 1}}},
           {"peft_type", "IA3"},
           {"r", 0},
           {"lora_alpha", "8"},
           {"bias", "some"},
           {"something_new", 1}}) {
    EXPECT_THAT(said({{key, value}}), testing::AllOf(HasSubstr("a.json"), HasSubstr(key))) << key;
  }
  EXPECT_EQ(
      said(
          {{"layers_to_transform", json::array()},
           {"layers_pattern", nullptr},
           {"exclude_modules", ""},
           {"rank_pattern", json::object()},
           {"use_dora", false}}),
      "");
  EXPECT_THAT(
      said({{"target_modules", {"q_prj"}}}),
      testing::AllOf(HasSubstr("'q_prj'"), HasSubstr("self_attn.q_proj")));
  EXPECT_THAT(said({{"target_modules", {"lm_head"}}}), HasSubstr("of the head"));
  EXPECT_THAT(
      said({{"target_modules", {"model.layers.1.self_attn.q_proj"}}}),
      HasSubstr("self_attn.q_proj in 1 of its 2 layers"));
  EXPECT_EQ(
      said(
          {{"target_modules",
            {"model.layers.1.self_attn.q_proj", "model.layers.0.self_attn.q_proj"}}}),
      "");
  EXPECT_EQ(said({{"lora_dropout", 0.1}}), "");  // it is read, but
  const Model dropped =
      with_lora(open_model(golden("hf_llama_gqa")).model, {.rank = 2, .dropout = 0.1});
  EXPECT_THAT(
      test::refusal<std::exception>([&] { expect_trainable(dropped); }),
      HasSubstr("lora.dropout = 0"));
  EXPECT_EQ(test::refusal<std::exception>([&] { expect_trainable(without_dropout(dropped)); }), "");
}

TEST_F(LoraFolders, SayWhatIsMissingOrDoesNotFit) {
  const ModelFolder peft = open_model(golden("peft_llama"));
  const auto said = [&](const Weights& tensors, const Lora& lora) {
    fs::remove(folder_ / kAdapterWeights);
    test::write_tensors(folder_ / kAdapterWeights, tensors);
    const Model model = with_lora(open_model(peft.path).model, lora);
    return test::refusal<std::exception>(
        [&] { stored_adapters(SafetensorsReader(folder_ / kAdapterWeights), model); });
  };
  Weights tensors;
  const SafetensorsReader reader(golden("peft_llama") / kAdapterWeights);
  for (const auto& [name, stored] : reader.tensors()) {
    tensors[name] = reader.view(name).clone();
  }
  const Lora lora = *peft.model.lora;
  EXPECT_EQ(said(tensors, lora), "");
  Lora other = lora;
  other.rank = 4;
  EXPECT_THAT(said(tensors, other), HasSubstr("has shape [3, "));
  other = lora;
  other.targets = {"q_proj"};
  EXPECT_THAT(said(tensors, other), HasSubstr("do not have"));
  other.targets = {"all-linear"};
  EXPECT_THAT(said(tensors, other), HasSubstr("has no tensor"));
  EXPECT_THAT(
      test::refusal<std::exception>([&] { adapter_file(folder_ / "nothing"); }),
      HasSubstr("save_pretrained"));
  // A base model that is no folder here; and one that is given.
  json config = json_of(golden("peft_llama") / "adapter_config.json");
  json wrong = config;
  wrong["base_model_name_or_path"] = peft.path.string();
  wrong["target_modules"] = {"qkv_proj"};
  put("adapter_config.json", wrong.dump());
  EXPECT_THAT(
      test::refusal<std::exception>([&] { open_model(folder_); }),
      testing::AllOf(HasSubstr("adapter_config.json: target_modules"), HasSubstr("'qkv_proj'")));
  config["base_model_name_or_path"] = "meta-llama/Llama-2-7b";
  put("adapter_config.json", config.dump());
  EXPECT_THAT(
      test::refusal<std::exception>([&] { open_model(folder_); }),
      testing::AllOf(HasSubstr("'meta-llama/Llama-2-7b'"), HasSubstr("lora.path")));
  EXPECT_EQ(with_adapters(open_model(peft.path), folder_).model.sha256, peft.model.sha256);
}

// --- runs --------------------------------------------------------------------------------------

class LoraRuns : public LoraFolders {
 protected:
  LoraRuns() {
    put("model.toml",
        "model_type = \"qwen2\"\nnum_hidden_layers = 2\nhidden_size = 20\n"
        "num_attention_heads = 5\nnum_key_value_heads = 1\nintermediate_size = 11\n"
        "vocab_size = 64\ntie_word_embeddings = true\n");
    std::string data;
    std::mt19937 random(7);
    for (int length = 9; length < 200; length += 7) {
      std::vector<int> tokens(idx(length));
      for (int& token : tokens) {
        token = static_cast<int>(random() % 64);
      }
      data += json{{"tokens", tokens}}.dump() + "\n";
    }
    put("data.jsonl", data);
  }

  [[nodiscard]] LoadedConfig config(
      const std::string& name, const std::vector<std::string>& settings) const {
    std::vector<std::string> all = {
        "model.path=" + (folder_ / "model.toml").string(),
        "data.path=" + (folder_ / "data.jsonl").string(),
        "output.folder=" + folder_.string(),
        "output.name=" + name,
        "output.trace=false",
        "train.steps=4",
        "train.tokens_per_step=700",
        "train.dtype=float64",
        "optimizer.lr=0.01",
        "costs.correct=false",
        "checkpoint.minutes=0"};
    all.insert(all.end(), settings.begin(), settings.end());
    return load_config("", all);
  }

  static std::vector<StepReport> run(
      const LoadedConfig& config, const TrainFrom& from = {}, std::int64_t stop_after = 0) {
    std::vector<StepReport> steps;
    std::atomic<bool> stop = false;
    TrainHooks hooks;
    hooks.stop = &stop;
    hooks.step = [&](const StepReport& report) {
      steps.push_back(report);
      stop = report.step == stop_after;
    };
    train(config, hooks, *local_backend(), from);
    return steps;
  }

  // What an adapter folder holds.
  static Weights tensors_in(const fs::path& folder) {
    const SafetensorsReader reader(adapter_file(folder));
    Weights tensors;
    for (const auto& [name, stored] : reader.tensors()) {
      tensors[name] = reader.view(name).clone();
    }
    return tensors;
  }
  static void expect_close(const Weights& is, const Weights& expected, double tolerance) {
    ASSERT_EQ(is.size(), expected.size());
    for (const auto& [name, tensor] : expected) {
      EXPECT_TRUE(at::allclose(is.at(name), tensor, tolerance, tolerance)) << name;
    }
  }
};

const std::vector<std::string> kAdapters = {
    "lora.r=2", "lora.alpha=4", "lora.bias=lora_only", "lora.use_rslora=true"};

std::vector<std::string> with(std::vector<std::string> all, const std::vector<std::string>& more) {
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

// A run on any number of ranks trains the same adapters, straight or resumed on others; a
// checkpoint has the adapters alone.
TEST_F(LoraRuns, GoOnOnAnyNumberOfRanks) {
  const std::vector<StepReport> alone = run(config("alone", with(kAdapters, {"parallel.ranks=1"})));
  ASSERT_EQ(alone.size(), 4U);
  EXPECT_LT(alone.back().loss, alone.front().loss);
  const Weights expected = tensors_in(folder_ / "alone" / "model");
  EXPECT_FALSE(fs::exists(folder_ / "alone" / "model" / "model.safetensors"));
  const SafetensorsReader checkpoint(
      folder_ / "alone" / "checkpoints" / "000004" / "rank-00000.safetensors");
  for (const auto& [name, stored] : checkpoint.tensors()) {
    EXPECT_TRUE(name.find(".lora_") != std::string::npos || name.find("bias") != std::string::npos)
        << name;
  }
  for (const auto& [first, then] : {std::pair(2, 3), std::pair(3, 1), std::pair(4, 2)}) {
    const std::string name = std::to_string(first) + "to" + std::to_string(then);
    const std::string ranks = "parallel.ranks=";
    run(config(name, with(kAdapters, {ranks + std::to_string(first)})), {}, 2);
    const std::vector<StepReport> rest = run(
        config(name, with(kAdapters, {ranks + std::to_string(then)})), {.resume = folder_ / name});
    ASSERT_EQ(rest.size(), 2U) << name;
    EXPECT_NEAR(rest.back().loss, alone.back().loss, 1e-9) << name;
    expect_close(tensors_in(folder_ / name / "model"), expected, 1e-8);
  }
  EXPECT_THAT(
      test::refusal<std::exception>([&] {
        run(config("2to3", {"parallel.ranks=1", "lora.r=3"}), {.resume = folder_ / "2to3"});
      }),
      HasSubstr("lora.r is 3"));
}

// What a run wrote a run begins from; merged, it is a model without adapters of the same loss.
TEST_F(LoraRuns, AreExportedMergedAndTrainedFurther) {
  run(config("first", with(kAdapters, {"parallel.ranks=2"})));
  const fs::path model = folder_ / "first" / "model";
  EXPECT_TRUE(export_checkpoint(folder_ / "first", folder_ / "adapters").adapters);
  expect_close(tensors_in(folder_ / "adapters"), tensors_in(model), 0);
  EXPECT_FALSE(export_checkpoint(folder_ / "first", folder_ / "merged", {.merged = true}).adapters);
  const auto loss_of = [&](const std::string& name, const std::vector<std::string>& settings) {
    return run(config(name, with(settings, {"train.steps=1", "parallel.ranks=2"}))).front().loss;
  };
  const double further = loss_of("further", {"lora.path=" + model.string()});
  EXPECT_NEAR(
      loss_of("merged_loss", {"model.path=" + (folder_ / "merged").string()}), further, 1e-12);
  EXPECT_NEAR(loss_of("by_folder", {"model.path=" + model.string()}), further, 1e-12);
  EXPECT_GT(std::abs(loss_of("base", {}) - further), 1e-4);
  const auto said = [&](const std::vector<std::string>& settings) {
    return test::refusal<std::exception>([&] { loss_of("refused", settings); });
  };
  EXPECT_THAT(said({"lora.path=" + model.string(), "lora.r=2"}), HasSubstr("lora.path is given"));
  EXPECT_THAT(said({"lora.alpha=3"}), HasSubstr("lora.r is 0"));
  EXPECT_THAT(said({"lora.dropout=0"}), HasSubstr("there are no adapters"));
  EXPECT_THAT(said({"model.path=" + model.string(), "lora.r=2"}), HasSubstr("already"));
  EXPECT_THAT(said({"lora.r=2", "lora.target_modules=['x']"}), HasSubstr("'x'"));
  run(config("plain", {"train.steps=1"}));
  EXPECT_THAT(
      test::refusal<std::exception>(
          [&] { export_checkpoint(folder_ / "plain", folder_ / "none", {.merged = true}); }),
      HasSubstr("leave --merge out"));
}

// A budget in which all weights cannot be trained, adapters can.
TEST_F(LoraRuns, TrainWhereAllWeightsDoNotFit) {
  put("model.toml",
      "model_type = \"llama\"\nnum_hidden_layers = 4\nhidden_size = 96\n"
      "num_attention_heads = 4\nintermediate_size = 256\nvocab_size = 64\n");
  const std::vector<std::string> small = {
      "parallel.ranks=1",
      "train.dtype=float32",
      "train.steps=1",
      "train.tokens_per_step=100",
      "data.max_tokens=100",
      "parallel.memory_per_rank=5MiB"};
  EXPECT_THAT(
      test::refusal<std::exception>([&] { run(config("all", small)); }),
      testing::ContainsRegex("memory|fits|budget"));
  EXPECT_EQ(run(config("some", with(small, {"lora.r=4"}))).size(), 1U);
}

}  // namespace
}  // namespace paradyse
