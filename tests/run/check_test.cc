// `paradyse check` finds what is wrong: here the expectation is, by little more than the tolerance.
#include "src/run/check/check.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <limits>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "paradyse/plan/strategy.h"
#include "src/plan/model/text/text_shape.h"
#include "src/plan/plan/group_timeline.h"
#include "src/run/check/check_case.h"

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

// What check() says when an expected gradient is `factor` times the right one.
std::vector<CheckRow> with_gradient_times(
    double factor, Dtype dtype, const std::string& name = kName) {
  CheckRequest wrong = request(dtype);
  wrong.expected = [factor, name](const CheckSubject& subject, Dtype type) {
    reference::Answer answer = expected_answer(subject, type);
    answer.gradients.at(name).mul_(factor);
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
  std::erase_if(request.subjects, [](const CheckSubject& one) {
    return one.model.typical_part().heads != 2;
  });
  ASSERT_EQ(request.subjects.size(), 1U);
  for (const CheckRow& row : check(request)) {
    EXPECT_THAT(row.counts_differ, testing::IsEmpty());
    EXPECT_TRUE(row.near());
  }
}

// Of a gradient that rounding hardly moves: a twentieth, where any gradient could be off by a
// tenth.
TEST(Check, AWellConditionedGradientIsHeldToItsCondition) {
  for (const double factor : {0.95, 1.05}) {
    for (const CheckRow& row : with_gradient_times(factor, Dtype::bfloat16, "model.norm.weight")) {
      SCOPED_TRACE(row.way + " " + row.recompute);
      for (const CheckError& worst : row.gradients) {
        EXPECT_FALSE(worst.near()) << worst.error << " of " << worst.tolerance;
        EXPECT_LT(worst.tolerance, 0.045);
        EXPECT_THAT(worst.place, HasSubstr("gradient of model.norm.weight"));
      }
    }
  }
}

TEST(Check, AWrongGradientIsTooFar) {
  for (const Dtype dtype : {Dtype::float64, Dtype::float32, Dtype::bfloat16, Dtype::float16}) {
    const double tolerance = empty_row("", {}, dtype, 1).gradients.front().tolerance;
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

CheckRequest quick(std::vector<int> ranks, std::vector<Dtype> dtypes) {
  return {.ranks = std::move(ranks), .dtypes = std::move(dtypes), .quick = true};
}

// Kinds of ops that the cases run.
std::set<OpKind> kinds_of(const CheckRequest& request, const std::vector<CheckChoice>& cases) {
  std::set<OpKind> kinds;
  for (const CheckChoice& choice : cases) {
    const Plan plan = plan_of(request, choice);
    const Model model = request.subjects[choice.subject].model;
    for (const ScheduledPart& part :
         rank_part(plan, plan.micro_batches.front(), model, 0, true).timeline) {
      for (const Op& op : part.program().ops) {
        kinds.insert(op.kind);
      }
    }
  }
  return kinds;
}

TEST(QuickCheck, CoversEveryWayTypeNumberOfRanksLevelModelAndMessage) {
  using Dtypes = std::vector<Dtype>;
  const std::size_t ways = check_ways().size();
  for (const CheckRequest& request :
       {quick({1, 2, 4}, Dtypes{Dtype::float32, Dtype::bfloat16}),
        quick({1, 2, 3, 4}, Dtypes{Dtype::float64, Dtype::float32, Dtype::bfloat16}),
        quick({1}, Dtypes{Dtype::bfloat16})}) {
    const std::vector<CheckChoice> cases = check_cases(request);
    EXPECT_LE(cases.size(), 150U);
    EXPECT_GT(2 * cases.size(), 150U) << "there is room for more";
    std::set<std::vector<std::size_t>> lines;   // type and way
    std::set<std::vector<std::size_t>> sizes;   // strategy, or mixed layers, and number of ranks
    std::set<std::vector<std::size_t>> levels;  // type and level
    std::set<std::vector<std::size_t>> models;  // type and subject
    std::set<std::vector<std::size_t>> on;      // subject and number of ranks
    std::set<std::vector<bool>> messages;
    std::set<std::vector<std::size_t>> all;
    const std::vector<CheckWay> named = check_ways();
    std::set<std::string> strategies;
    for (const CheckChoice& one : cases) {
      const std::string& strategy = named[one.way].layers.front().first;
      strategies.insert(strategy);
      lines.insert({one.dtype, one.way});
      sizes.insert({std::hash<std::string>{}(strategy), one.ranks});
      levels.insert({one.dtype, one.level});
      models.insert({one.dtype, one.subject});
      on.insert({one.subject, one.ranks});
      messages.insert({one.messages.overlap, one.messages.reshard_after_forward});
      all.insert({one.dtype, one.way, one.level, one.ranks, one.subject});
    }
    const std::size_t types = request.dtypes.size();
    const std::size_t subjects = request.subjects.size();
    EXPECT_EQ(all.size(), cases.size()) << "none twice";
    EXPECT_EQ(lines.size(), types * ways);
    EXPECT_EQ(sizes.size(), strategies.size() * request.ranks.size());
    EXPECT_EQ(levels.size(), types * std::size(kCheckedLevels));
    EXPECT_EQ(models.size(), types * subjects);
    EXPECT_EQ(on.size(), subjects * request.ranks.size());
    EXPECT_EQ(messages.size(), 4U);
    EXPECT_EQ(strategies.size(), paradyse::strategies("attention").size());
  }
}

TEST(QuickCheck, CoversEveryKindOfOpThatAllCasesRun) {
  CheckRequest request = quick({1, 2, 4}, {Dtype::float32});
  const std::set<OpKind> found = kinds_of(request, check_cases(request));
  request.quick = false;
  EXPECT_EQ(found, kinds_of(request, check_cases(request)));
}

TEST(QuickCheck, TakesAllCasesWhereTheyAreFew) {
  CheckRequest request = quick({2}, {Dtype::float32});
  request.strategies = {"DataZ"};
  EXPECT_EQ(check_cases(request).size(), all_check_cases(request));
  request.quick = false;
  EXPECT_EQ(check_cases(request).size(), all_check_cases(request));
}

// As a wrong kernel of one architecture does.
TEST(QuickCheck, WhatIsWrongInOneModelIsTooFar) {
  for (const std::string wrong : {"gqa 6/2", "bert"}) {
    CheckRequest request = quick({2}, {Dtype::float32});
    request.strategies = {"MegatronTS", "METP"};
    request.expected = [&](const CheckSubject& subject, Dtype type) {
      reference::Answer answer = expected_answer(subject, type);
      answer.loss *= subject.name == wrong ? 1.01 : 1;
      return answer;
    };
    const std::vector<CheckRow> rows = check(request);
    EXPECT_TRUE(std::ranges::any_of(rows, [](const CheckRow& row) { return !row.near(); }))
        << wrong;
    for (const CheckRow& row : rows) {
      if (!row.near()) {
        EXPECT_THAT(row.losses.front().place, HasSubstr(wrong));
      }
    }
  }
}

}  // namespace
}  // namespace paradyse
