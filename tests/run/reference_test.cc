// The reference model against Hugging Face transformers (tests/golden/README.md), and the measure
// of gradients by which everything else is held against the reference.
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <optional>
#include <stdexcept>
#include <string>

#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "paradyse/run/data.h"
#include "paradyse/run/gradients.h"
#include "src/plan/model/text/text_shape.h"
#include "src/run/check/continuation.h"
#include "src/run/reference/text.h"
#include "src/run/weights/safetensors.h"
#include "tests/support/models.h"
#include "tests/support/refusal.h"

namespace paradyse {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

using Tensors = std::map<std::string, at::Tensor>;
using Documents = std::vector<std::vector<std::int32_t>>;

Tensors tensors_of(const std::filesystem::path& path, at::ScalarType dtype) {
  const SafetensorsReader reader(path);
  Tensors all;
  for (const auto& [name, stored] : reader.tensors()) {
    all[name] = reader.view(name).to(dtype, /*non_blocking=*/false, /*copy=*/true);
  }
  return all;
}

nlohmann::json json_of(const std::filesystem::path& path) {
  std::ifstream file(path);
  return nlohmann::json::parse(file);
}

// One folder of tests/golden.
struct Golden {
  TextShape shape;
  std::filesystem::path folder;
  std::vector<Document> documents;
  nlohmann::json expected;

  [[nodiscard]] std::vector<Item> items() const { return items_of(documents); }
  [[nodiscard]] Tensors weights(at::ScalarType dtype) const {
    return tensors_of(folder / "model.safetensors", dtype);
  }
  [[nodiscard]] Tensors gradients() const {
    return tensors_of(folder / "expected_gradients.safetensors", at::kDouble);
  }
};

Golden golden(const std::string& name) {
  const auto folder = std::filesystem::path(PARADYSE_SOURCE_DIR) / "tests" / "golden" / name;
  const auto config = folder / "config.json";
  Golden it{
      .shape = text_shape_from_config(json_of(config), config.string()),
      .folder = folder,
      .documents = {},
      .expected = json_of(folder / "expected.json")};
  std::ifstream lines(folder / "documents.jsonl");
  for (std::string line; std::getline(lines, line);) {
    const auto record = nlohmann::json::parse(line);
    Document& document = it.documents.emplace_back(Document{.tokens = record.at("tokens")});
    if (record.contains("labels")) {
      document.labels = record.at("labels").get<Tokens>();
    }
  }
  return it;
}

void expect_mentions(const std::string& message, const std::string& part) {
  EXPECT_NE(message.find(part), std::string::npos) << "no \"" << part << "\" in: " << message;
}

class GoldenModel : public testing::TestWithParam<std::string> {};

TEST_P(GoldenModel, HasTheLossesAndGradientsOfHuggingFace) {
  const Golden it = golden(GetParam());
  const auto answer = reference::text_answer(it.shape, it.weights(at::kDouble), it.items());

  EXPECT_NEAR(answer.loss, it.expected.at("loss").get<double>(), 1e-12);
  ASSERT_EQ(answer.documents.size(), it.expected.at("documents").size());
  for (std::size_t d = 0; d < answer.documents.size(); ++d) {
    const auto& wanted = it.expected.at("documents")[d];
    EXPECT_NEAR(answer.documents[d].sum, wanted.at("sum").get<double>(), 1e-10) << "document " << d;
    EXPECT_EQ(answer.documents[d].count, wanted.at("count").get<std::int64_t>())
        << "document " << d;
  }

  const GradientError error = compare_gradients(answer.gradients, it.gradients());
  EXPECT_LT(error.worst, 1e-10) << error.worst_name;
}

// Its logits are those that the loss is of.
TEST_P(GoldenModel, HasTheLogitsOfItsLosses) {
  const Golden it = golden(GetParam());
  const Tensors weights = it.weights(at::kDouble);
  const auto answer = reference::text_answer(it.shape, weights, it.items());
  for (std::size_t d = 0; d < it.documents.size(); ++d) {
    const Tokens& document = it.documents[d].tokens;
    const Tokens labels = it.documents[d].labels.value_or(document);
    const at::Tensor log_p_TV = at::log_softmax(reference::logits(it.shape, weights, document), -1);
    double sum = 0;
    for (std::size_t t = 0; t < document.size(); ++t) {
      const std::size_t of = it.shape.masked_lm ? t : t + 1;
      if (of < labels.size() && labels[of] >= 0) {
        sum -= log_p_TV[static_cast<std::int64_t>(t)][labels[of]].item<double>();
      }
    }
    EXPECT_NEAR(sum, answer.documents[d].sum, 1e-9) << "document " << d;
  }
}

TEST_P(GoldenModel, WritesOnWhatItHoldsLikely) {
  const Golden it = golden(GetParam());
  const Tensors weights = it.weights(at::kDouble);
  ContinuationRequest request{.prompt = it.documents.front().tokens, .tokens = 5, .temperature = 0};
  if (it.shape.masked_lm) {
    EXPECT_THROW(continuation(it.shape, weights, request), std::invalid_argument);
    return;
  }
  request.prompt.resize(std::min<std::size_t>(request.prompt.size(), 4));
  std::vector<std::int32_t> text = request.prompt;
  for (const std::int32_t token : continuation(it.shape, weights, request)) {
    EXPECT_EQ(token, reference::logits(it.shape, weights, text)[-1].argmax().item<std::int64_t>());
    text.push_back(token);
  }
  ASSERT_EQ(text.size(), request.prompt.size() + 5);
  // A window of one token: each follows from the one before it.
  request.window = 1;
  text = {request.prompt.back()};
  for (const std::int32_t token : continuation(it.shape, weights, request)) {
    EXPECT_EQ(
        token,
        reference::logits(it.shape, weights, {&text.back(), 1})[-1].argmax().item<std::int64_t>());
    text.push_back(token);
  }
  // Draws: each token as often as its share says, the same again from the same seed.
  request = {.prompt = {1}, .tokens = 1, .temperature = 0.5};
  const at::Tensor shares =
      at::softmax(reference::logits(it.shape, weights, request.prompt)[-1] / 0.5, -1);
  const auto likeliest = static_cast<std::int32_t>(shares.argmax().item<std::int64_t>());
  int found = 0;
  constexpr int kDraws = 400;
  for (request.seed = 1; request.seed <= kDraws; ++request.seed) {
    const std::vector<std::int32_t> drawn = continuation(it.shape, weights, request);
    found += drawn == std::vector<std::int32_t>{likeliest} ? 1 : 0;
  }
  const double share = shares[likeliest].item<double>();
  EXPECT_NEAR(found, kDraws * share, 4 * std::sqrt(kDraws * share * (1 - share)) + 1);
  request.seed = 7;
  EXPECT_EQ(continuation(it.shape, weights, request), continuation(it.shape, weights, request));
  request.prompt.clear();
  EXPECT_THROW(continuation(it.shape, weights, request), std::invalid_argument);
}

TEST(TextOfBytes, IsUtf8) {
  const auto text = [](const std::string& bytes) {
    std::vector<std::int32_t> tokens;
    for (const char byte : bytes) {
      tokens.push_back(static_cast<unsigned char>(byte));
    }
    return text_of_bytes(tokens);
  };
  for (const std::string sound :
       {"", "a\n", "\u00e9", "\u20ac", "\U0001f600", "\u07ff", "\u0800", "\uffff", "\U0010ffff"}) {
    EXPECT_EQ(text(sound), sound);
  }
  const std::string bad = "\ufffd";
  EXPECT_EQ(
      text("a\xff"
           "b"),
      "a" + bad + "b");
  EXPECT_EQ(text("\xc3"), bad);            // cut off
  EXPECT_EQ(text("\xc0\x80"), bad + bad);  // too long for its value
  EXPECT_EQ(text("\xe0\x80\x80"), bad + bad + bad);
  EXPECT_EQ(text("\xed\xa0\x80"), bad + bad + bad);  // half a surrogate pair
  EXPECT_EQ(text("\xf4\x90\x80\x80"), bad + bad + bad + bad);
  EXPECT_EQ(text_of_bytes({65, 300}), "A" + bad);  // no byte
}

TEST_P(GoldenModel, ComputesInTheDtypeOfTheWeights) {
  const Golden it = golden(GetParam());
  const auto answer = reference::text_answer(it.shape, it.weights(at::kFloat), it.items());
  for (const auto& [name, gradient] : answer.gradients) {
    EXPECT_EQ(gradient.scalar_type(), at::kFloat) << name;
  }
  const GradientError error = compare_gradients(answer.gradients, it.gradients());
  EXPECT_LT(error.worst, 1e-4) << error.worst_name;
  EXPECT_GT(error.worst, 1e-10) << "this was float64";
}

TEST_P(GoldenModel, GivesZerosWhenNothingIsPredicted) {
  const Golden it = golden(GetParam());
  const Tensors weights = it.weights(at::kDouble);
  for (const Documents& documents : {Documents{}, Documents{{}}, Documents{{3}, {}, {4}}}) {
    Documents labels;
    for (const auto& document : documents) {
      labels.emplace_back(document.size(), -100);
    }
    const std::vector<Document> shown =
        test::labelled(documents, it.shape.masked_lm ? labels : Documents{});
    const auto answer = reference::text_answer(it.shape, weights, items_of(shown));
    EXPECT_EQ(answer.loss, 0);
    EXPECT_EQ(answer.documents.size(), documents.size());
    ASSERT_EQ(answer.gradients.size(), weights.size());
    for (const auto& [name, gradient] : answer.gradients) {
      EXPECT_EQ(gradient.sizes(), weights.at(name).sizes()) << name;
      EXPECT_EQ(gradient.abs().max().item<double>(), 0) << name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    HuggingFace,
    GoldenModel,
    testing::Values(
        "hf_llama_gqa",
        "hf_llama_mqa_tied",
        "hf_llama_mha_wide",
        "hf_llama_bias_llama3",
        "hf_llama_linear",
        "hf_llama_yarn",
        "hf_llama_yarn_mscale",
        "hf_qwen2",
        "hf_qwen3",
        "hf_gpt2",
        "hf_opt",
        "hf_llama_labels",
        "hf_bert",
        "hf_olmo2",
        "hf_phi3",
        "hf_neox",
        "hf_neox_sequential",
        "hf_roberta",
        "hf_distilbert",
        "hf_gemma2",
        "hf_gemma3",
        "hf_modernbert",
        "hf_modernbert_biases",
        "hf_mistral_window",
        "hf_qwen2_window",
        // hf_bert_pretraining has more tensors than its model: tests/cli/grad_test.py
        "hf_mistral"),
    [](const auto& test) { return test.param; });

// The zeros are this program's, what is left of the computation transformers'.
class GoldenDropout : public testing::TestWithParam<std::string> {};

TEST_P(GoldenDropout, IsThatOfHuggingFaceInTheSamePlaces) {
  const Golden it = golden(GetParam());
  const Tensors weights = it.weights(at::kDouble);
  const auto seed = it.expected.at("dropout_seed").get<std::uint64_t>();
  const auto answer = reference::text_answer(it.shape, weights, it.items(), seed);
  EXPECT_NEAR(answer.loss, it.expected.at("loss").get<double>(), 1e-12);
  for (std::size_t d = 0; d < answer.documents.size(); ++d) {
    const auto& wanted = it.expected.at("documents")[d];
    EXPECT_NEAR(answer.documents[d].sum, wanted.at("sum").get<double>(), 1e-10) << "document " << d;
  }
  const GradientError error = compare_gradients(answer.gradients, it.gradients());
  EXPECT_LT(error.worst, 1e-10) << error.worst_name;
  for (const auto& [different, what] :
       {std::pair{std::optional(seed + 1), "another seed"}, {std::nullopt, "without dropout"}}) {
    const auto other = reference::text_answer(it.shape, weights, it.items(), different);
    EXPECT_GT(std::abs(other.loss - answer.loss), 1e-3) << what;
  }
}

INSTANTIATE_TEST_SUITE_P(
    HuggingFace,
    GoldenDropout,
    testing::Values("hf_gpt2_dropout", "hf_bert_dropout", "hf_mistral_dropout"),
    [](const auto& test) { return test.param; });

TEST(ReferenceModel, LeavesTheWeightsOfTheCallerAsTheyAre) {
  const Golden it = golden("hf_llama_gqa");
  const Tensors weights = it.weights(at::kDouble);
  reference::text_answer(it.shape, weights, items_of(it.documents));
  const Tensors fresh = it.weights(at::kDouble);
  for (const auto& [name, weight] : weights) {
    EXPECT_TRUE(weight.equal(fresh.at(name))) << name;
    EXPECT_FALSE(weight.requires_grad()) << name;
    EXPECT_FALSE(weight.grad().defined()) << name;
  }
}

// What a causal model expects after 5, 6, 7 is a distribution whatever comes: it sums to 1 over all
// that may come. A model that sees what comes has no such distribution.
TEST(ReferenceModel, SeesTheFutureOnlyWhenNotCausal) {
  Golden it = golden("hf_llama_gqa");
  const Tensors weights = it.weights(at::kDouble);
  const auto total_probability = [&] {
    Documents documents = {{5, 6, 7}};
    for (std::int32_t next = 0; next < it.shape.vocab; ++next) {
      documents.push_back({5, 6, 7, next});
    }
    const auto losses = reference::text_answer(it.shape, weights, items_of(documents)).documents;
    double total = 0;
    for (std::size_t d = 1; d < losses.size(); ++d) {
      total += std::exp(losses[0].sum - losses[d].sum);
    }
    return total;
  };
  EXPECT_NEAR(total_probability(), 1, 1e-12);
  it.shape.causal = false;
  EXPECT_GT(std::abs(total_probability() - 1), 1e-3);
}

// Labels of a causal model, against torch's cross entropy of logits that are shifted by one: the
// last token's are dropped, the first label too.  Logits are made of what the model expects after
// every beginning of the document, each next token in turn.
TEST(ReferenceModel, ScoresATokenAgainstTheNextLabel) {
  at::set_num_threads(1);  // as ranks have it
  const Golden it = golden("hf_llama_gqa");
  const Tensors weights = it.weights(at::kDouble);
  const std::vector<std::int32_t> document = {5, 6, 7, 8, 9};
  const auto tokens = static_cast<std::int64_t>(document.size());
  const at::Tensor logits_TV = at::empty({tokens, it.shape.vocab}, at::kDouble);
  for (std::int64_t t = 0; t < tokens; ++t) {
    const std::vector<std::int32_t> seen(document.begin(), document.begin() + t + 1);
    Documents documents = {seen};
    for (std::int32_t next = 0; next < it.shape.vocab; ++next) {
      documents.push_back(seen);
      documents.back().push_back(next);
    }
    const auto losses = reference::text_answer(it.shape, weights, items_of(documents)).documents;
    for (std::int64_t v = 0; v < it.shape.vocab; ++v) {
      logits_TV[t][v] = losses[0].sum - losses[static_cast<std::size_t>(v) + 1].sum;
    }
  }
  for (const std::vector<std::int32_t>& labels :
       {std::vector<std::int32_t>{5, 6, 7, 8, 9},
        std::vector<std::int32_t>{30, 2, -100, -100, 36},
        std::vector<std::int32_t>{-100, -100, 11, -100, -100},
        std::vector<std::int32_t>{3, -100, -100, -100, -100}}) {
    const at::Tensor label_T = at::tensor(labels, at::kLong);
    const double expected = at::cross_entropy_loss(
                                logits_TV.narrow(0, 0, tokens - 1),
                                label_T.narrow(0, 1, tokens - 1),
                                {},
                                at::Reduction::Sum,
                                /*ignore_index=*/-100)
                                .item<double>();
    const auto count = label_T.narrow(0, 1, tokens - 1).ge(0).sum().item<std::int64_t>();
    const auto answer = reference::text_answer(it.shape, weights, {Item(document, labels)});
    EXPECT_EQ(answer.documents[0].count, count);
    EXPECT_NEAR(answer.documents[0].sum, expected, 1e-11);
    EXPECT_NEAR(answer.loss, count == 0 ? 0 : expected / static_cast<double>(count), 1e-11);
  }
}

TEST(ReferenceModel, RefusesWeightsAndTokensOfAnotherModel) {
  const Golden it = golden("hf_llama_gqa");
  const Tensors weights = it.weights(at::kDouble);
  const auto refusal_of = [&](const Tensors& changed, const Documents& documents) {
    return test::refusal([&] { reference::text_answer(it.shape, changed, items_of(documents)); });
  };

  Tensors changed = weights;
  changed.erase("model.norm.weight");
  changed["model.layers.2.mlp.up_proj.weight"] = at::ones({40, 24}, at::kDouble);
  changed["model.layers.0.mlp.up_proj.weight"] = at::ones({24, 40}, at::kDouble);
  changed["model.layers.1.mlp.up_proj.weight"] = at::ones({40, 24}, at::kFloat);
  const std::string message = refusal_of(changed, {{1, 2}});
  expect_mentions(message, "model.norm.weight: missing");
  expect_mentions(message, "model.layers.2.mlp.up_proj.weight: not of this model");
  expect_mentions(message, "model.layers.0.mlp.up_proj.weight: has shape [24, 40]");
  expect_mentions(message, "model.layers.1.mlp.up_proj.weight: is Float");

  expect_mentions(refusal_of(weights, {{1, 2}, {3, 37}}), "document 1 has token 37");
  expect_mentions(refusal_of(weights, {{-1}}), "document 0 has token -1");
}

TEST(CompareGradients, NamesTheWorst) {
  const Tensors expected = {{"a", at::tensor({3.0, 0.0})}, {"b", at::tensor({4.0})}};
  EXPECT_EQ(compare_gradients(expected, expected).worst, 0);

  Tensors actual = expected;
  actual["b"] = at::tensor({4.4});
  GradientError error = compare_gradients(actual, expected);
  EXPECT_EQ(error.worst_name, "b");
  EXPECT_NEAR(error.worst, 0.1, 1e-15);

  actual["a"] = at::tensor({3.0, 0.6});
  error = compare_gradients(actual, expected);
  EXPECT_EQ(error.worst_name, "a");
  EXPECT_NEAR(error.worst, 0.2, 1e-15);
}

TEST(CompareGradients, JudgesTheNearlyZeroByAllOfThem) {
  const Tensors expected = {{"big", at::tensor({100.0})}, {"tiny", at::tensor({1e-9})}};
  const Tensors actual = {{"big", at::tensor({100.0})}, {"tiny", at::tensor({1e-9 + 1e-3})}};
  EXPECT_NEAR(compare_gradients(actual, expected).worst, 1e-2, 1e-9);
}

TEST(CompareGradients, JudgesByTheLengthOfAnother) {
  const Tensors expected = {
      {"big", at::tensor({100.0})}, {"k", at::tensor({0.0})}, {"q", at::tensor({2.0})}};
  Tensors actual = expected;
  actual["k"] = at::tensor({0.5});
  EXPECT_NEAR(compare_gradients(actual, expected).worst, 0.5 / (1e-3 * 100.02), 1e-6);
  const GradientError error = compare_gradients(actual, expected, {{"k", "q"}});
  EXPECT_EQ(error.worst_name, "k");
  EXPECT_NEAR(error.worst, 0.25, 1e-15);
}

TEST(CompareGradients, ComputesInFloat64) {
  const Tensors expected = {{"a", at::tensor({1.0, 1.0 + 1e-12})}};
  const Tensors actual = {{"a", at::ones({2}, at::kFloat)}};
  EXPECT_NEAR(compare_gradients(actual, expected).worst, 1e-12 / std::sqrt(2.0), 1e-15);
}

TEST(CompareGradients, NoNumberIsInfinitelyWrong) {
  const Tensors one = {{"a", at::tensor({1.0})}, {"b", at::tensor({1.0})}};
  for (const double bad : {std::nan(""), kInfinity}) {
    Tensors other = one;
    other["b"] = at::tensor({bad});
    EXPECT_EQ(compare_gradients(other, one).worst, kInfinity);
    EXPECT_EQ(compare_gradients(other, one).worst_name, "b");
    EXPECT_EQ(compare_gradients(one, other).worst, kInfinity);
    EXPECT_EQ(compare_gradients(other, other).worst, kInfinity);
  }
}

TEST(CompareGradients, AcceptsNothingAndZeros) {
  const Tensors zeros = {{"a", at::zeros({2}, at::kDouble)}};
  const Tensors ones = {{"a", at::ones({2}, at::kDouble)}};
  EXPECT_EQ(compare_gradients({}, {}).worst, 0);
  EXPECT_EQ(compare_gradients(zeros, zeros).worst, 0);
  EXPECT_EQ(compare_gradients(ones, zeros).worst, kInfinity);
}

TEST(CompareGradients, RefusesOtherNamesAndShapes) {
  const Tensors expected = {{"a", at::ones({2})}, {"b", at::ones({2})}, {"c", at::ones({2})}};
  const Tensors actual = {{"a", at::ones({1, 2})}, {"b", at::Tensor()}, {"d", at::ones({2})}};
  const std::string message = test::refusal([&] { compare_gradients(actual, expected); });
  expect_mentions(message, "a: has shape [1, 2], expected [2]");
  expect_mentions(message, "b: expected, but not there");
  expect_mentions(message, "c: expected, but not there");
  expect_mentions(message, "d: there, but not expected");
}

}  // namespace
}  // namespace paradyse
