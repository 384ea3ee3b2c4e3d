// The verbs of a grouping, what is wrong with one, and the table of planners.
#include "src/plan/search/grouping/grouping.h"

#include <functional>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lab/grouping/rivals.h"
#include "src/plan/search/grouping/bounds.h"
#include "src/plan/search/grouping/planners.h"
#include "tests/plan/random_grouping.h"
#include "tests/support/refusal.h"

namespace paradyse {
namespace {

const bool kWithRivals = (add_rivals(), true);  // are rows of the table

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// Groups of 1, 2 and 4 ranks, 10 tokens a rank, a token takes a second on one rank.
GroupingTask task() { return plain_task(4, {1, 2, 4}, 10, 0.5, {10, 4, 6, 30, 8}); }

Grouping sound() {
  return {
      .micro_batches =
          {{{.type = 2, .documents = {3}}},
           {{.type = 0, .documents = {0}},
            {.type = 0, .documents = {1, 2}},
            {.type = 1, .documents = {4}}}},
      .seconds = (30.0 / 4 + 0.5) + (10 + 0.5)};
}

TEST(Grouping, IsPricedAsTheFormulaSays) {
  const GroupingTask t = task();
  const Grouping g = sound();
  EXPECT_EQ(group_seconds(t, g.micro_batches[1][1]), 10);
  EXPECT_EQ(group_tokens(t, g.micro_batches[1][1]), 10);
  EXPECT_EQ(slowest_group(t, g.micro_batches[1]), 10);
  EXPECT_EQ(seconds_of(t, g), 8 + 10.5);
  EXPECT_EQ(seconds_of(t, {}), 0);
  GroupingTask fixed = t;
  fixed.types[0].fixed_seconds = 2;
  EXPECT_EQ(seconds_of(fixed, g), 8 + 12.5);
}

TEST(Grouping, HidesWhatIsOverlapped) {
  GroupingTask t = task();
  t.overlapped = true;
  EXPECT_EQ(seconds_of(t, sound()), 7.5 + 10);
  t.micro_batch_seconds = 9;
  EXPECT_EQ(seconds_of(t, sound()), 9 + 10);
}

TEST(Grouping, WithoutProblemsIsSound) {
  EXPECT_THAT(problems(task(), sound()), IsEmpty());
  const GroupingTask none = plain_task(2, {1, 2}, 10, 0.5, {});
  EXPECT_THAT(problems(none, {}), IsEmpty());
}

TEST(Grouping, SaysWhatIsWrong) {
  using Edit = std::function<void(Grouping&)>;
  const std::vector<std::pair<Edit, std::string>> cases = {
      {[](Grouping& g) { g.micro_batches[0][0].type = 3; },
       "micro-batch 0, group 0: there is no type 3"},
      {[](Grouping& g) { g.micro_batches[0][0].type = -1; }, "there is no type -1"},
      {[](Grouping& g) { g.micro_batches[1][2].documents = {}; },
       "micro-batch 1, group 2: no documents"},
      {[](Grouping& g) { g.micro_batches[1][2].documents = {4, 5}; }, "there is no document 5"},
      {[](Grouping& g) { g.micro_batches[1][2].documents = {-1, 4}; }, "there is no document -1"},
      {[](Grouping& g) { g.micro_batches[1][1].documents = {2, 1}; },
       "micro-batch 1, group 1: its documents do not ascend"},
      {[](Grouping& g) { g.micro_batches[0][0].type = 1; },
       "micro-batch 0, group 0: 30 tokens, and 2 ranks holds 20"},
      {[](Grouping& g) {
         g.micro_batches[0].push_back(g.micro_batches[1].back());
         g.micro_batches[1].pop_back();
       },
       "micro-batch 0: its groups have 6 ranks of 4"},
      {[](Grouping& g) { g.micro_batches[1].pop_back(); }, "document 4 is in 0 groups"},
      {[](Grouping& g) { g.micro_batches[1][2].documents = {1, 4}; }, "document 1 is in 2 groups"},
      {[](Grouping& g) { g.seconds *= 1 + 1e-6; }, "the plan says"},
      {[](Grouping& g) { g.seconds = std::nan(""); }, "the plan says"}};
  for (const auto& [edit, what] : cases) {
    Grouping g = sound();
    edit(g);
    EXPECT_THAT(problems(task(), g), testing::Contains(HasSubstr(what))) << what;
  }
}

TEST(GroupingTask, ThatIsNoneIsRefused) {
  using Edit = std::function<void(GroupingTask&)>;
  const std::vector<std::pair<Edit, std::string>> cases = {
      {[](GroupingTask& t) { t.ranks = 0; }, "0 ranks"},
      {[](GroupingTask& t) { t.types.clear(); }, "no type of group"},
      {[](GroupingTask& t) { t.types[1].ranks = 5; }, "type 2 ranks has 5 ranks"},
      {[](GroupingTask& t) { t.types[1].ranks = 0; }, "they ascend from 1 to 4"},
      {[](GroupingTask& t) { std::swap(t.types[0], t.types[1]); }, "they ascend"},
      {[](GroupingTask& t) { t.types[0].fixed_seconds = -1; }, "takes -1"},
      {[](GroupingTask& t) { t.lengths[2] = 0; }, "a document of 0 tokens"},
      {[](GroupingTask& t) { t.lengths[2] = -5; }, "a document of -5 tokens"},
      {[](GroupingTask& t) { t.seconds.pop_back(); }, "14 seconds for 3 types and 5 documents"},
      {[](GroupingTask& t) { t.seconds[3] = 0; }, "a document takes 0"},
      {[](GroupingTask& t) { t.seconds[3] = std::nan(""); }, "a document takes nan"},
      {[](GroupingTask& t) { t.micro_batch_seconds = -1; }, "a micro-batch takes -1"}};
  EXPECT_NO_THROW(check(task()));
  for (const auto& [edit, what] : cases) {
    GroupingTask t = task();
    edit(t);
    EXPECT_THAT(test::refusal([&] { check(t); }), HasSubstr(what));
  }
}

TEST(GroupingTask, NamesWhatIsTooLong) {
  EXPECT_THAT(too_long(task()), IsEmpty());
  GroupingTask t = task();
  t.lengths[1] = 41;
  t.lengths[3] = 1000;
  EXPECT_THAT(too_long(t), ElementsAre(1, 3));
}

TEST(AreaBound, IsTheFormula) {
  // Room for 40 tokens a micro-batch: 58 need two.  A document takes as much of all ranks in any
  // group.
  EXPECT_DOUBLE_EQ(area_bound(task()).seconds, 2 * 0.5 + 58.0 / 4);
  // One long document: nothing is faster than it on all ranks.
  EXPECT_DOUBLE_EQ(area_bound(plain_task(8, {1, 2}, 100, 0.5, {200})).seconds, 0.5 + 100);
  EXPECT_EQ(area_bound(plain_task(8, {1, 2}, 100, 0.5, {})).seconds, 0);
  EXPECT_EQ(area_bound(task()).name, "area");
}

TEST(GroupingPlanners, HaveOneNameEach) {
  std::set<std::string> names;
  for (const GroupingPlannerRow& row : grouping_planners()) {
    EXPECT_TRUE(names.insert(row.name).second) << row.name;
    EXPECT_STRNE(row.summary, "");
    EXPECT_EQ(&grouping_planner(row.name), &row);
  }
  EXPECT_THAT(
      test::refusal([&] { grouping_planner("homogenous"); }),
      testing::AllOf(HasSubstr("did you mean 'homogeneous'?"), HasSubstr("sorted")));
}

TEST(GroupingPlanners, SayWhatFitsNowhere) {
  GroupingTask t = task();
  t.lengths[3] = 47;
  t.lengths[1] = 41;
  for (const GroupingPlannerRow& row : grouping_planners()) {
    const GroupingAnswer answer = row.plan(t, {});
    EXPECT_FALSE(answer.grouping) << row.name;
    EXPECT_THAT(
        answer.why_not,
        HasSubstr("document 3 has 47 tokens, but the largest group, 4 ranks, holds 40"))
        << row.name;
    EXPECT_THAT(answer.why_not, HasSubstr("too many by 7")) << row.name;
    EXPECT_THAT(answer.why_not, HasSubstr("1 more")) << row.name;
  }
}

}  // namespace
}  // namespace paradyse
