// Batches of samples: all of them, within the budget, by the least that it takes.
#include "paradyse/plan/sample_planner.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "paradyse/plan/index.h"
#include "tests/support/grid_shapes.h"

namespace paradyse {
namespace {

using testing::HasSubstr;
using Lengths = std::vector<std::int64_t>;

SampleTask video_task(int ranks) {
  return {
      .model = test::small_stdit(3),
      .dims = {{"frames", 5}, {"patches", 9}},
      .ranks = ranks,
      .machine = {}};
}

SampleTask protein_task(int ranks) {
  return {
      .model = test::small_evoformer(2),
      .dims = {{"sequences", 4}, {"residues", 7}, {"i", 7}, {"j", 7}},
      .ranks = ranks,
      .machine = {}};
}

std::int64_t peak(const Plan& plan) {
  std::int64_t most = 0;
  for (const PlanMicroBatch& micro : plan.micro_batches) {
    most = std::max(most, micro.groups.at(0).predicted.bytes->total());
  }
  return most;
}

Recompute level(const Plan& plan) {
  return choices(plan.programs.begin()->second).front().front().recompute;
}

void expect_whole(const Plan& plan, const SampleTask& task, const Lengths& lengths) {
  EXPECT_EQ(plan.lengths, lengths);
  EXPECT_EQ(plan.dims, task.dims);
  std::vector<std::int64_t> samples;
  for (const PlanMicroBatch& micro : plan.micro_batches) {
    ASSERT_EQ(micro.groups.size(), 1U);
    EXPECT_EQ(micro.groups[0].ranks.size(), idx(task.ranks));
    samples.insert(
        samples.end(), micro.groups[0].documents.begin(), micro.groups[0].documents.end());
    EXPECT_GT(*micro.predicted.seconds, 0);
  }
  Lengths all(lengths.size());
  std::iota(all.begin(), all.end(), 0);
  EXPECT_EQ(samples, all);
  EXPECT_TRUE(problems(plan, {.grid = &task.model}).empty());
}

TEST(SamplePlanner, TakesAllAtOnceWhereNothingIsShort) {
  for (const int ranks : {1, 2, 3, 4}) {
    const Lengths clips(7, 45);
    const Plan video = SamplePlanner(video_task(ranks)).plan(clips).plan.value();
    expect_whole(video, video_task(ranks), clips);
    EXPECT_EQ(video.micro_batches.size(), 1U);
    EXPECT_EQ(level(video), Recompute::none);
    EXPECT_EQ(hash(video), hash(SamplePlanner(video_task(ranks)).plan(clips).plan.value()));

    const Lengths alignments(3, 28);  // a batch of this model is one
    const Plan protein = SamplePlanner(protein_task(ranks)).plan(alignments).plan.value();
    expect_whole(protein, protein_task(ranks), alignments);
    EXPECT_EQ(protein.micro_batches.size(), 3U);
  }
}

TEST(SamplePlanner, NeedsLessAsMemoryGetsScarce) {
  const Lengths clips(7, 45);
  SampleTask task = video_task(3);
  std::int64_t last = peak(SamplePlanner(task).plan(clips).plan.value());
  std::size_t micro_batches = 1;
  Recompute last_level = Recompute::none;
  int plans = 0;
  for (;; ++plans) {
    task.memory_per_rank = last - 1;
    const BatchPlanner::Answer answer = SamplePlanner(task).plan(clips);
    if (!answer.plan) {
      EXPECT_THAT(answer.why_not, HasSubstr("1 bytes more than the"));
      break;
    }
    expect_whole(*answer.plan, task, clips);
    EXPECT_LE(peak(*answer.plan), task.memory_per_rank);
    EXPECT_TRUE(
        level(*answer.plan) > last_level ||
        (level(*answer.plan) == last_level && answer.plan->micro_batches.size() > micro_batches));
    last = peak(*answer.plan);
    micro_batches = answer.plan->micro_batches.size();
    last_level = level(*answer.plan);
  }
  EXPECT_GE(plans, 4);
  EXPECT_EQ(micro_batches, 7U);
  EXPECT_GT(last_level, Recompute::light);  // full need not save more
}

TEST(SamplePlanner, LeansAndLearns) {
  const Lengths clips(6, 45);
  SamplePlanner planner(video_task(2));
  const Plan plan = planner.plan(clips).plan.value();
  const Plan less = planner.leaner(plan).value();
  EXPECT_LT(peak(less), 0.95 * static_cast<double>(peak(plan)));
  EXPECT_EQ(hash(planner.plan(clips).plan.value()), hash(less));
  SamplePlanner other(video_task(2));
  other.learn(planner.learned());
  EXPECT_EQ(hash(other.plan(clips).plan.value()), hash(less));
  other.learn({});
  EXPECT_EQ(hash(other.plan(clips).plan.value()), hash(plan));
}

TEST(SamplePlanner, GoesByTheLevelThatIsAsked) {
  SampleTask task = protein_task(2);
  task.recompute = Recompute::full;
  const Plan plan = SamplePlanner(task).plan({28}).plan.value();
  EXPECT_EQ(level(plan), Recompute::full);
  task.training = false;
  EXPECT_LT(peak(SamplePlanner(task).plan({28}).plan.value()), peak(plan));
}

}  // namespace
}  // namespace paradyse
