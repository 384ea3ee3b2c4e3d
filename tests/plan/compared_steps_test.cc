// Measured ratios of steps, the interval that they leave, and what is said of them.
#include "paradyse/plan/detail/compared_steps.h"

#include <cmath>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "src/plan/report/compared_json.h"

namespace paradyse {
namespace {

using testing::HasSubstr;

ComparedStep step(double seconds, double ours, const char* strategy = "UlyssesZ") {
  return {.strategy = strategy, .seconds = seconds, .predicted_seconds = seconds, .ours = ours};
}

TEST(ComparedSteps, NoneAreNothing) {
  EXPECT_FALSE(measured_comparison({}));
  EXPECT_TRUE(json_of(measured_comparison({})).is_null());
}

// Logarithms of 1.1, 1.2, 1.3 and 1.2: their mean, and t = 3.182 times its standard error.
TEST(ComparedSteps, AreAMeanAndItsInterval) {
  const std::vector<ComparedStep> steps = {
      step(1.1, 1), step(2.4, 2), step(1.3, 1), step(0.6, 0.5)};
  const MeasuredComparison found = *measured_comparison(steps);
  EXPECT_EQ(found.strategy, "UlyssesZ");
  EXPECT_EQ(found.steps, 4);
  EXPECT_EQ(found.did_not_fit, 0);
  EXPECT_DOUBLE_EQ(found.seconds, 5.4);
  EXPECT_DOUBLE_EQ(found.ours, 4.5);
  const std::vector<double> logs = {std::log(1.1), std::log(1.2), std::log(1.3), std::log(1.2)};
  double mean = 0;
  double squares = 0;
  for (const double log : logs) {
    mean += log / 4;
  }
  for (const double log : logs) {
    squares += (log - mean) * (log - mean);
  }
  const double off = 3.182 * std::sqrt(squares / 3 / 4);
  EXPECT_NEAR(found.ratio, std::exp(mean), 1e-12);
  EXPECT_NEAR(found.low, std::exp(mean - off), 1e-12);
  EXPECT_NEAR(found.high, std::exp(mean + off), 1e-12);
  EXPECT_TRUE(found.differs());
  EXPECT_EQ(
      text_of(found),
      "measured comparison with the best static plan (UlyssesZ, 4 steps): 1.20 times its speed "
      "(1.07 to "
      "1.34)");
  const auto json = json_of(found);
  EXPECT_EQ(json["steps"], 4);
  EXPECT_EQ(json["static_seconds"], found.seconds);
  EXPECT_EQ(json["seconds"], found.ours);
  EXPECT_EQ(json["ratio"], found.ratio);
  EXPECT_EQ(json["interval"][0], found.low);
  EXPECT_EQ(json["interval"][1], found.high);
}

TEST(ComparedSteps, SayWhatTheyCannotShow) {
  const std::vector<ComparedStep> unlike = {step(1.2, 1), step(0.9, 1)};
  const MeasuredComparison found = *measured_comparison(unlike);
  EXPECT_FALSE(found.differs());
  EXPECT_THAT(
      text_of(found), HasSubstr("(UlyssesZ, 2 steps): no difference that 2 steps could show"));

  const std::vector<ComparedStep> alone = {step(1.5, 1)};
  const MeasuredComparison one = *measured_comparison(alone);
  EXPECT_FALSE(one.differs());
  EXPECT_DOUBLE_EQ(one.ratio, 1.5);
  EXPECT_TRUE(std::isnan(one.low));
  EXPECT_THAT(text_of(one), HasSubstr("1.50 times its speed, but one step shows no difference"));
  EXPECT_TRUE(json_of(one)["interval"].is_null());
}

TEST(ComparedSteps, CountWhatDidNotFit) {
  const std::vector<ComparedStep> some = {
      step(ComparedStep::kNone, 1), step(2, 1), step(2, 1), step(ComparedStep::kNone, 1)};
  const MeasuredComparison found = *measured_comparison(some);
  EXPECT_EQ(found.steps, 2);
  EXPECT_EQ(found.did_not_fit, 2);
  EXPECT_EQ(
      text_of(found),
      "measured comparison with the best static plan (UlyssesZ, 2 steps): 2.00 times its speed "
      "(2.00 to "
      "2.00); it did not fit into memory in 2 more");
  const MeasuredComparison none = *measured_comparison(std::span(some).first(1));
  EXPECT_EQ(none.steps, 0);
  EXPECT_THAT(text_of(none), HasSubstr("(UlyssesZ) could not be measured: it did not fit"));
  EXPECT_TRUE(json_of(none)["ratio"].is_null());
}

// A run that was resumed with less memory may have had to take another.
TEST(ComparedSteps, AreOfTheLastStrategy) {
  const std::vector<ComparedStep> steps = {step(9, 1, "METP"), step(2, 1), step(3, 1)};
  const MeasuredComparison found = *measured_comparison(steps);
  EXPECT_EQ(found.strategy, "UlyssesZ");
  EXPECT_EQ(found.steps, 2);
  EXPECT_DOUBLE_EQ(found.seconds, 5);
}

// Steps enough for the normal distribution.
TEST(ComparedSteps, ManyStepsLeaveANarrowInterval) {
  std::vector<ComparedStep> steps;
  for (int i = 0; i < 400; ++i) {
    steps.push_back(step(i % 2 == 0 ? 1.1 : 1.3, 1));
  }
  const MeasuredComparison found = *measured_comparison(steps);
  const double deviation = std::log(1.3 / 1.1) / 2;
  EXPECT_NEAR(std::log(found.high / found.ratio), 1.96 * deviation / 20, 1e-4);
}

}  // namespace
}  // namespace paradyse
