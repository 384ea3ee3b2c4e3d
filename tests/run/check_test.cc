// `paradyse check` finds what is wrong: here the expectation is, by little more than the tolerance.
#include "src/run/check/check.h"

#include <cmath>
#include <iterator>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "paradyse/plan/strategy.h"

namespace paradyse {
namespace {

using testing::HasSubstr;

// One small subject by one strategy.
CheckRequest request(Dtype dtype) {
  CheckRequest request{.ranks = {1, 3}, .dtypes = {dtype}, .strategies = {"UlyssesZ"}};
  request.subjects = {request.subjects.front()};
  return request;
}

constexpr const char* kName = "model.layers.1.self_attn.o_proj.weight";

// What check() says when the expected gradient kName is `factor` times the right one.
std::vector<CheckRow> with_gradient_times(double factor, Dtype dtype) {
  CheckRequest wrong = request(dtype);
  wrong.expected = [factor](const CheckSubject& subject, Dtype type) {
    reference::Answer answer = expected_answer(subject, type);
    answer.gradients.at(kName).mul_(factor);
    return answer;
  };
  return check(wrong);
}

TEST(Check, WhatIsRightIsWithinTheTolerance) {
  for (const Dtype dtype : {Dtype::float64, Dtype::float32, Dtype::bfloat16, Dtype::float16}) {
    const std::vector<CheckRow> rows = check(request(dtype));
    ASSERT_EQ(rows.size(), 4 * std::size(kCheckedLevels))
        << "MLPs hold, gather and pass; layers differ";
    for (const CheckRow& row : rows) {
      SCOPED_TRACE(row.way + " " + row.recompute + " " + to_string(dtype));
      EXPECT_TRUE(row.near()) << row.worst(1).error << " in " << row.worst(1).place;
      EXPECT_THAT(row.counts_differ, testing::IsEmpty());
      EXPECT_TRUE(row.right());
      ASSERT_EQ(row.losses.size(), 2U);
      ASSERT_EQ(row.gradients.size(), 2U);
      EXPECT_THAT(row.losses[1].place, testing::EndsWith(", 3 ranks, loss"));
      EXPECT_GT(row.gradients[1].error, 0) << "nothing was compared";
    }
  }
}

// On 3 and 4 ranks some have none of the 2 heads: an output product without a factor.
TEST(Check, NarrowCountsOfRanksWithoutAHeadAreThoseOfTheFolds) {
  CheckRequest request{
      .ranks = {3, 4}, .dtypes = {Dtype::bfloat16, Dtype::float16}, .strategies = {"MegatronTS"}};
  std::erase_if(request.subjects, [](const CheckSubject& one) { return one.model.heads != 2; });
  ASSERT_EQ(request.subjects.size(), 1U);
  for (const CheckRow& row : check(request)) {
    EXPECT_THAT(row.counts_differ, testing::IsEmpty());
    EXPECT_TRUE(row.near());
  }
}

TEST(Check, AWrongGradientIsTooFar) {
  for (const Dtype dtype : {Dtype::float64, Dtype::float32, Dtype::bfloat16, Dtype::float16}) {
    const double tolerance = check(request(dtype)).front().gradients.front().tolerance;
    for (const CheckRow& row : with_gradient_times(1 + 2 * tolerance, dtype)) {
      SCOPED_TRACE(row.way + " " + row.recompute + " " + to_string(dtype));
      EXPECT_FALSE(row.near());
      EXPECT_FALSE(row.right());
      for (const CheckError& worst : row.gradients) {
        EXPECT_GT(worst.error, worst.tolerance);
        EXPECT_THAT(worst.place, HasSubstr(kName));
      }
    }
  }
}

TEST(Check, AWrongLossIsTooFar) {
  for (const Dtype dtype : {Dtype::float64, Dtype::float32, Dtype::bfloat16, Dtype::float16}) {
    CheckRequest wrong = request(dtype);
    const double tolerance = check(wrong).front().losses.front().tolerance;
    wrong.expected = [tolerance](const CheckSubject& subject, Dtype type) {
      reference::Answer answer = expected_answer(subject, type);
      answer.loss *= 1 + 3 * tolerance;
      return answer;
    };
    for (const CheckRow& row : check(wrong)) {
      SCOPED_TRACE(row.way + " " + row.recompute + " " + to_string(dtype));
      EXPECT_FALSE(row.near());
      EXPECT_GT(row.losses.front().error, tolerance);
      EXPECT_THAT(row.losses.front().place, testing::EndsWith(", 1 ranks, loss"));
    }
  }
}

TEST(Check, WhatIsNoNumberIsTooFar) {
  for (const CheckRow& row :
       with_gradient_times(std::numeric_limits<double>::quiet_NaN(), Dtype::float64)) {
    EXPECT_FALSE(row.near());
    EXPECT_EQ(row.gradients.front().error, INFINITY);
  }
}

}  // namespace
}  // namespace paradyse
