#include "tests/support/equality.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "paradyse/run/gradient_error.h"
#include "paradyse/run/gradients.h"

namespace paradyse::test {
namespace {

constexpr std::uint64_t kDropoutSeed = 0x1234567890ABCDEF;

Weights weights_of(const Case& c) { return random_weights(c.model, 11); }

}  // namespace

const reference::Answer& reference_answer(const Case& c) {
  static std::map<std::string, reference::Answer> answers;
  auto found = answers.find(c.name);
  if (found == answers.end()) {
    found = answers
                .emplace(
                    c.name,
                    reference::model(
                        c.model,
                        weights_of(c),
                        random_documents(c.lengths, c.model.vocab, 7),
                        random_labels(c.model, c.lengths, 7),
                        kDropoutSeed))
                .first;
  }
  return found->second;
}

void expect_equal(const Case& c, const Plan& plan, const std::string& dtype, double tolerance) {
  SCOPED_TRACE(
      c.name + ", " + std::to_string(plan.ranks) + " ranks, " + dtype + "\n" + to_json(plan));
  ASSERT_THAT(problems(plan, {.model = &c.model}), testing::IsEmpty());
  const Weights weights = weights_of(c);
  GradientRequest request{
      .model = &c.model,
      .plan = &plan,
      .documents = random_documents(c.lengths, c.model.vocab, 7),
      .labels = random_labels(c.model, c.lengths, 7),
      .dropout_seed = kDropoutSeed,
      .dtype = dtype};
  request.fill = [&](Parameters& parameters) { fill(parameters, weights); };
  const GradientAnswer answer = gradients(request);
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
        static_cast<double>(measured.peak_bytes),
        static_cast<double>(predicted.peak_bytes),
        0.02 * static_cast<double>(predicted.peak_bytes))
        << "rank " << r;
  }
}

void expect_peak_is_a_budget(
    const ModelShape& model,
    const Plan& plan,
    const std::vector<std::vector<std::int32_t>>& documents,
    const Weights& weights) {
  std::int64_t peak = 0;
  for (int r = 0; r < plan.ranks; ++r) {
    const std::int64_t held = 8 * stored_elements(model, plan.ranks, r);
    peak =
        std::max(peak, predicted_report(plan, model, r, precision_of("float32"), held).peak_bytes);
  }
  GradientRequest request{
      .model = &model,
      .plan = &plan,
      .documents = documents,
      .dtype = "float32",
      .memory_per_rank = peak};
  request.fill = [&](Parameters& parameters) { fill(parameters, weights); };
  EXPECT_NO_THROW(gradients(request));
  request.memory_per_rank = peak - 64;
  EXPECT_THROW(gradients(request), OutOfMemory);
}

}  // namespace paradyse::test
