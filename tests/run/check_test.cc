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
CheckRequest request(const std::string& dtype) {
  CheckRequest request{.ranks = {1, 3}, .dtypes = {dtype}, .strategies = {"UlyssesZ"}};
  request.subjects = {request.subjects.front()};
  return request;
}

constexpr const char* kName = "model.layers.1.self_attn.o_proj.weight";

// What check() says when the expected gradient kName is `factor` times the right one.
std::vector<CheckRow> with_gradient_times(double factor, const std::string& dtype) {
  CheckRequest wrong = request(dtype);
  wrong.expected = [factor](const CheckSubject& subject, const std::string& type) {
    reference::Answer answer = expected_answer(subject, type);
    answer.gradients.at(kName).mul_(factor);
    return answer;
  };
  return check(wrong);
}

TEST(Check, WhatIsRightIsWithinTheTolerance) {
  for (const std::string dtype : {"float64", "float32"}) {
    const std::vector<CheckRow> rows = check(request(dtype));
    ASSERT_EQ(rows.size(), 4 * std::size(kRecomputeLevels))
        << "MLPs hold, gather and pass; layers differ";
    for (const CheckRow& row : rows) {
      SCOPED_TRACE(row.way + " " + row.recompute + " " + dtype);
      EXPECT_TRUE(row.near()) << row.worst.back().error << " in " << row.worst.back().place;
      EXPECT_THAT(row.counts_differ, testing::IsEmpty());
      EXPECT_TRUE(row.right());
      ASSERT_EQ(row.worst.size(), 2U);
      EXPECT_GT(row.worst[1].error, 0) << "nothing was compared";
    }
  }
}

TEST(Check, AWrongGradientIsTooFar) {
  for (const std::string dtype : {"float64", "float32"}) {
    const double tolerance = check(request(dtype)).front().tolerance;
    for (const CheckRow& row : with_gradient_times(1 + 2 * tolerance, dtype)) {
      SCOPED_TRACE(row.way + " " + row.recompute + " " + dtype);
      EXPECT_FALSE(row.near());
      EXPECT_FALSE(row.right());
      for (const CheckError& worst : row.worst) {
        EXPECT_GT(worst.error, row.tolerance);
        EXPECT_THAT(worst.place, HasSubstr(kName));
      }
    }
  }
}

TEST(Check, AWrongLossIsTooFar) {
  CheckRequest wrong = request("float64");
  wrong.expected = [](const CheckSubject& subject, const std::string& dtype) {
    reference::Answer answer = expected_answer(subject, dtype);
    answer.loss *= 1 + 1e-9;
    return answer;
  };
  for (const CheckRow& row : check(wrong)) {
    EXPECT_FALSE(row.near());
    EXPECT_THAT(row.worst.front().place, testing::EndsWith(", 1 ranks, loss"));
  }
}

TEST(Check, WhatIsNoNumberIsTooFar) {
  for (const CheckRow& row :
       with_gradient_times(std::numeric_limits<double>::quiet_NaN(), "float64")) {
    EXPECT_FALSE(row.near());
    EXPECT_EQ(row.worst.front().error, INFINITY);
  }
}

}  // namespace
}  // namespace paradyse
