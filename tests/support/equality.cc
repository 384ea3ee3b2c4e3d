#include "tests/support/equality.h"

#include <algorithm>
#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "paradyse/run/data.h"
#include "paradyse/run/gradients.h"
#include "src/plan/model/text/text_shape.h"
#include "src/plan/model/text/weight_names.h"
#include "src/run/check/own_rounding.h"

namespace paradyse::test {
namespace {

constexpr std::uint64_t kDropoutSeed = 0x1234567890ABCDEF;

Weights weights_of(const Case& c) { return random_weights(c.model, 11); }

std::vector<Document> data_of(const Case& c) {
  auto documents = random_documents(c.lengths, c.model.vocab, 7);
  for (auto& document : documents) {
    for (std::int32_t& token : document) {
      token = !c.model.padding_in_documents && token == c.model.padding_id ? 0 : token;
    }
  }
  TextShape model = c.model;
  model.masked_lm = model.masked_lm || c.labels;
  return labelled(documents, random_labels(model, c.lengths, 7));
}

// In float64; what some architectures keep as one bias of queries, keys and values taken apart.
Weights apart(const WeightNames& names, const Weights& gradients) {
  Weights found;
  for (const auto& [name, gradient] : gradients) {
    const at::Tensor wide = gradient.to(at::kDouble);
    if (names.fused && name.ends_with(names.k + ".bias")) {
      const std::vector<at::Tensor> parts = wide.chunk(3);
      found[name + " of queries"] = parts[0];
      found[name + " of keys"] = parts[1];
      found[name + " of values"] = parts[2];
    } else {
      found[name] = wide;
    }
  }
  return found;
}

// By which gradient's length and rounding one is judged: its own.  But a bias of all keys moves all
// scores of a query alike, of which softmax takes no notice: but for what rotary positions make of
// it, its gradient is zero, and is judged by that of the queries.
std::string judge_of(const WeightNames& names, const std::string& name) {
  const std::string keys = names.fused ? names.k + ".bias of keys" : names.k + ".bias";
  const std::string queries = names.fused ? names.q + ".bias of queries" : names.q + ".bias";
  return name.ends_with(keys) ? name.substr(0, name.size() - keys.size()) + queries : name;
}

std::map<std::string, std::string> judges(const WeightNames& names, const Weights& gradients) {
  std::map<std::string, std::string> found;
  for (const auto& [name, gradient] : gradients) {
    if (const std::string judge = judge_of(names, name); judge != name) {
      found[name] = judge;
    }
  }
  return found;
}

// What a run in a narrow type is held to.
struct NarrowReference {
  Weights weights;  // as the type rounds them
  reference::Answer answer;
  Weights expected;  // its gradients apart
  std::map<std::string, std::string> judged_as;
  std::map<std::string, double> own;  // own_rounding()
};

const NarrowReference& narrow_reference(const Case& c, Dtype dtype) {
  static std::map<std::pair<std::string, Dtype>, NarrowReference> all;
  const auto [found, fresh] = all.try_emplace({c.name, dtype});
  NarrowReference& reference = found->second;
  if (!fresh) {
    return reference;
  }
  const std::vector<Document> documents = data_of(c);
  const auto answer_of = [&](const Weights& weights) {
    return reference::text_answer(without_dropout(c.model), weights, items_of(documents));
  };
  const WeightNames& names = weight_names(c.model);
  reference.weights = weights_of(c);
  for (auto& [name, weight] : reference.weights) {
    weight = weight.to(parameter_types(dtype).weight).to(at::kDouble);
  }
  reference.answer = answer_of(reference.weights);
  reference.expected = apart(names, reference.answer.gradients);
  reference.judged_as = judges(names, reference.expected);
  reference.own = own_rounding(
      reference.weights,
      [&](const Weights& weights) { return apart(names, answer_of(weights).gradients); },
      dtype,
      reference.judged_as);
  return reference;
}

// Of a gradient's own rounding.  Measured over the models and strategies of models_test,
// equality_test and aten_kernels_test: 0.7 in the median, 2.8 at most.
constexpr double kOwnRoundings = 4;
// Roundings of one number, however badly conditioned the gradient is.  Measured: 16 at most.
constexpr double kMostRoundings = 25;

}  // namespace

std::vector<Case> cases() {
  TextShape dropped = llama({.heads = 6, .kv_heads = 2, .ffn = 13, .vocab = 31});
  dropped.attention_dropout = 0.3;
  return {
      {"gqa", llama({.heads = 6, .kv_heads = 2, .ffn = 13, .vocab = 31}), {1, 9, 2, 17, 3}},
      {"mqa_tied",
       llama({.heads = 5, .kv_heads = 1, .ffn = 11, .vocab = 29, .tied = true}),
       {3, 1, 8, 2}},
      {"mha", llama({.heads = 4, .kv_heads = 4, .ffn = 16, .vocab = 32}), {12, 1, 5}},
      {"few_heads", llama({.heads = 2, .kv_heads = 2, .ffn = 3, .vocab = 7}), {1, 2, 6}},
      {"dropped", dropped, {1, 9, 2, 17, 3}}};
}

const reference::Answer& reference_answer(const Case& c) {
  static std::map<std::string, reference::Answer> answers;
  auto found = answers.find(c.name);
  if (found == answers.end()) {
    const std::vector<Document> documents = data_of(c);
    found =
        answers
            .emplace(
                c.name,
                reference::text_answer(c.model, weights_of(c), items_of(documents), kDropoutSeed))
            .first;
  }
  return found->second;
}

void expect_counts(
    const Plan& plan, const Model& model, Dtype dtype, const GradientAnswer& answer) {
  const Precision precision = precision_of(dtype);
  for (int r = 0; r < plan.ranks; ++r) {
    const RankReport predicted = predicted_report(plan, model, r, precision);
    const RankReport& measured = answer.ranks[static_cast<std::size_t>(r)];
    EXPECT_EQ(measured.saved_bytes, predicted.saved_bytes) << "rank " << r;
    EXPECT_EQ(measured.bytes_sent, predicted.bytes_sent) << "rank " << r;
    EXPECT_EQ(measured.messages, predicted.messages) << "rank " << r;
    EXPECT_NEAR(
        static_cast<double>(measured.peak_bytes),
        static_cast<double>(predicted.peak_bytes),
        0.02 * static_cast<double>(predicted.peak_bytes))
        << "rank " << r;
  }
}

void expect_equal(
    const Case& c,
    const Plan& plan,
    Dtype dtype,
    double tolerance,
    const std::shared_ptr<Backend>& backend,
    c10::Device device) {
  SCOPED_TRACE(
      c.name + ", " + std::to_string(plan.ranks) + " ranks, " + to_string(dtype) + "\n" +
      to_json(plan));
  const Model model = c.model;
  ASSERT_THAT(problems(plan, {.model = model}), testing::IsEmpty());
  const Weights weights = weights_of(c);
  const std::vector<Document> documents = data_of(c);
  GradientRequest request{
      .model = model,
      .plan = &plan,
      .items = items_of(documents),
      .dropout_seed = kDropoutSeed,
      .dtype = dtype,
      .backend = backend,
      .device = device};
  request.fill = [&](Parameters& parameters) { fill(parameters, weights); };
  const GradientAnswer answer = gradients(request);
  if (!backend->leads()) {
    return;
  }
  const reference::Answer& expected = reference_answer(c);
  EXPECT_NEAR(answer.batch.loss, expected.loss, tolerance * std::abs(expected.loss));
  for (std::size_t d = 0; d < c.lengths.size(); ++d) {
    EXPECT_EQ(answer.batch.counts[d], expected.documents[d].count);
    EXPECT_NEAR(
        answer.batch.loss_sums[d],
        expected.documents[d].sum,
        tolerance * expected.documents[d].sum);
  }
  const GradientError error = compare_gradients(answer.gradients, expected.gradients);
  EXPECT_LE(error.worst, tolerance) << error.worst_name;

  expect_counts(plan, model, dtype, answer);
}

void expect_within_rounding(
    const Case& c,
    const Plan& plan,
    Dtype dtype,
    std::int64_t attention_dense_from,
    c10::Device device) {
  SCOPED_TRACE(
      c.name + ", " + std::to_string(plan.ranks) + " ranks, " + to_string(dtype) + "\n" +
      to_json(plan));
  const double one = rounding(dtype);
  const NarrowReference& reference = narrow_reference(c, dtype);
  const TextShape model = without_dropout(c.model);
  const std::vector<Document> documents = data_of(c);
  GradientRequest request{
      .model = text_model(model),
      .plan = &plan,
      .items = items_of(documents),
      .dtype = dtype,
      .device = device,
      .attention_dense_from = attention_dense_from};
  request.fill = [&](Parameters& parameters) { fill(parameters, reference.weights); };
  const GradientAnswer answer = gradients(request);
  const reference::Answer& expected = reference.answer;
  EXPECT_NEAR(answer.batch.loss, expected.loss, one * expected.loss);
  ASSERT_EQ(answer.gradients.size(), expected.gradients.size());
  for (const auto& [name, error] : gradient_errors(
           apart(weight_names(model), answer.gradients), reference.expected, reference.judged_as)) {
    const double own = reference.own.at(name);
    EXPECT_LE(error, std::min(kOwnRoundings * own, kMostRoundings * one))
        << name << ": " << error / own << " times what rounding the weights makes of it, "
        << error / one << " roundings";
  }
}

void expect_peak_is_a_budget(
    const TextShape& model,
    const Plan& plan,
    const std::vector<std::vector<std::int32_t>>& documents,
    const Weights& weights) {
  std::int64_t peak = 0;
  for (int r = 0; r < plan.ranks; ++r) {
    peak = std::max(
        peak,
        predicted_report(plan, text_model(model), r, precision_of(Dtype::float32)).peak_bytes);
  }
  GradientRequest request{
      .model = text_model(model),
      .plan = &plan,
      .items = items_of(documents),
      .dtype = Dtype::float32,
      .memory_per_rank = peak};
  request.fill = [&](Parameters& parameters) { fill(parameters, weights); };
  EXPECT_NO_THROW(gradients(request));
  request.memory_per_rank = peak - 64;
  EXPECT_THROW(gradients(request), OutOfMemory);
}

}  // namespace paradyse::test
