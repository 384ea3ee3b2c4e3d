// Batches of samples: all of them, within the budget, by the least that it takes.
#include <algorithm>
#include <memory>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "paradyse/plan/batch_planner.h"
#include "paradyse/plan/detail/index.h"
#include "paradyse/plan/detail/time_model.h"
#include "paradyse/plan/layout_planner.h"
#include "src/plan/model/stdit/stdit.h"
#include "src/plan/search/layouts/sample_plans.h"
#include "tests/plan/part_seconds.h"
#include "tests/support/grid_shapes.h"
#include "tests/support/sanitized.h"

namespace paradyse {
namespace {

using testing::HasSubstr;
using Lengths = std::vector<std::int64_t>;

constexpr const char* kAllRanks = "groups-of-all";

PlanningTask video_task(int ranks) {
  return {
      .model = test::small_stdit(3),
      .dims = {{"frames", 5}, {"patches", 9}},
      .ranks = ranks,
      .machine = {},
      .batch_planner = kAllRanks};
}

PlanningTask protein_task(int ranks) {
  return {
      .model = test::small_evoformer(2),
      .dims = {{"sequences", 8}, {"residues", 15}, {"i", 15}, {"j", 15}},
      .ranks = ranks,
      .machine = {},
      .batch_planner = kAllRanks};
}

std::int64_t peak(const Plan& plan) {
  std::int64_t most = 0;
  for (const PlanMicroBatch& micro : plan.micro_batches) {
    for (const PlanGroup& group : micro.groups) {
      most = std::max(most, group.predicted.bytes->total());
    }
  }
  return most;
}

Recompute level(const Plan& plan) {
  return choices(plan.programs.begin()->second).front().front().recompute;
}

void expect_whole(const Plan& plan, const PlanningTask& task, const Lengths& lengths) {
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
  EXPECT_TRUE(problems(plan, {.model = task.model}).empty());
}

// Samples of unlike sizes in groups of any sizes: whole, within memory, and predicted to take no
// longer than on all ranks in turn.
TEST(SamplePlanner, PutsGroupsSideBySide) {
  const auto video = [](std::int64_t frames, std::int64_t patches) {
    return DimSizes{{"frames", frames}, {"patches", patches}};
  };
  const auto protein = [](std::int64_t s, std::int64_t r) {
    return DimSizes{{"sequences", s}, {"residues", r}, {"i", r}, {"j", r}};
  };
  std::set<std::size_t> sizes_seen;
  for (auto& [task, dims] : std::vector<std::pair<PlanningTask, std::vector<DimSizes>>>{
           {video_task(0), {video(4, 9), video(16, 9), video(4, 9), video(2, 3), video(4, 9)}},
           {protein_task(0), {protein(3, 5), protein(8, 21), protein(3, 5), protein(2, 3)}}}) {
    BatchSizes batch{.lengths = {}, .dims = dims};
    for (const DimSizes& of : dims) {
      batch.lengths.push_back(task.model.rows(of));
    }
    task.dims = {};
    task.machine.cores = 16;
    for (const int ranks : test::kSanitized ? std::vector{3} : std::vector{1, 2, 3, 8}) {
      task.ranks = ranks;
      task.memory_per_rank = 0;
      task.batch_planner = kAllRanks;
      const std::int64_t free = peak(batch_planner(task)->plan(batch).plan.value());
      for (const double share : test::kSanitized ? std::vector{0.5} : std::vector{0.0, 0.5}) {
        task.memory_per_rank = static_cast<std::int64_t>(share * static_cast<double>(free));
        task.batch_planner = kAllRanks;
        const BatchPlanner::Answer in_turn = batch_planner(task)->plan(batch);
        for (const char* const name : {"borders", "groups", "groups-of-1"}) {
          task.batch_planner = name;
          const std::unique_ptr<BatchPlanner> planner = batch_planner(task);
          const BatchPlanner::Answer answer = planner->plan(batch);
          SCOPED_TRACE(std::to_string(ranks) + " ranks, " + name + ", " + std::to_string(share));
          if (!answer.plan) {
            EXPECT_TRUE(std::string(name) == "groups-of-1" || !in_turn.plan) << answer.why_not;
            EXPECT_FALSE(answer.why_not.empty());
            continue;
          }
          const Plan& plan = *answer.plan;
          EXPECT_EQ(sizes_of(plan), batch);
          EXPECT_TRUE(problems(plan, {.model = task.model}).empty());
          EXPECT_EQ(hash(batch_planner(task)->plan(batch).plan.value()), hash(plan));
          EXPECT_EQ(plan_from_json(to_json(plan), "again"), plan);
          if (in_turn.plan && std::string(name) != "groups-of-1") {
            EXPECT_LE(*plan.predicted.seconds, *in_turn.plan->predicted.seconds * (1 + 1e-9));
          }
          const std::vector<PredictedBytes> bytes =
              bytes_of_ranks(plan, task.model, task.precision, task.training);
          for (const PredictedBytes& of_rank : bytes) {
            EXPECT_LE(of_rank.total(), share > 0 ? task.memory_per_rank : peak(plan));
          }
          for (const PlanMicroBatch& micro : plan.micro_batches) {
            for (const PlanGroup& group : micro.groups) {
              sizes_seen.insert(group.ranks.size());
            }
          }
        }
      }
    }
  }
  EXPECT_GE(sizes_seen.size(), test::kSanitized ? 2U : 4U);
}

// Three frames on two nodes of a rank: the layout that sends least leaves two to one of them where
// patches would be shared evenly.  On one node it stays.
TEST(SamplePlanner, TakesTheFasterLayoutAcrossNodes) {
  PlanningTask task = video_task(2);
  task.ranks_per_node = 1;
  task.model = stdit_model({.depth = 3, .hidden = 64, .heads = 4, .kv_heads = 4});
  task.dims = {{"frames", 3}, {"patches", 64}};
  task.machine.cores = 2;
  const Lengths clips = {192};
  Documents documents = packed(clips, task.ranks, task.model.causal);
  documents.dims = task.dims;
  const LayoutTask layout{.model = &task.model, .documents = documents};
  SamplePlans model(task);
  const Plan plan = batch_planner(task)->plan(clips).plan.value();
  Plan least = plan;
  least.programs.begin()->second =
      runs_of(choices(layout, plan_layouts(layout, task.model.layers)));
  model.prediction().predict(least);
  EXPECT_NE(plan.programs, least.programs);
  EXPECT_LT(*plan.predicted.seconds, 0.97 * *least.predicted.seconds);
  task.ranks_per_node = 2;
  EXPECT_EQ(batch_planner(task)->plan(clips).plan.value().programs, least.programs);
}

// Seconds of strategies that were not measured say nothing beside those of strategies that were.
TEST(SamplePlanner, ComparesWhatIsMeasured) {
  class Knowing final : public TimeModel {
   public:
    explicit Knowing(std::set<std::string> strategies) : strategies_(std::move(strategies)) {}
    [[nodiscard]] std::string name() const override { return "knowing"; }
    [[nodiscard]] bool by_work() const override { return true; }
    [[nodiscard]] bool compares(const std::string&, const std::string& strategy) const override {
      return strategy.empty() || strategies_.contains(strategy);
    }
    [[nodiscard]] PartSeconds seconds(const PartQuestion& question) const override {
      PartSeconds found = closed_form({})->seconds(question);
      const double times = compares(question.part, question.strategy) ? 1 : 0.01;
      std::ranges::for_each(found.phases, [&](double& phase) { phase *= times; });
      return found;
    }

   private:
    std::set<std::string> strategies_;
  };
  PlanningTask task = protein_task(2);
  task.machine.cores = 2;
  task.ranks_per_node = 1;
  for (const std::string channels : {"gather", "channels"}) {
    task.seconds = std::make_shared<Knowing>(std::set<std::string>{"Local", "gather", channels});
    const Plan plan = batch_planner(task)->plan(Lengths{120}).plan.value();
    std::set<std::string> taken;
    for (const LayerChoice& layer : choices(plan.programs.begin()->second)) {
      for (const PartChoice& part : layer) {
        taken.insert(part.strategy);
      }
    }
    // "scatter" stands in the layout that sends least
    EXPECT_THAT(taken, testing::IsSubsetOf({"Local", "gather", channels.c_str(), "scatter"}));
  }
}

// What steps take decides among sizes of groups.
TEST(SamplePlanner, LearnsWhatGroupsTake) {
  PlanningTask task = video_task(4);
  task.batch_planner = "groups";
  task.machine.cores = 4;
  const Lengths clips(4, 45);
  const std::unique_ptr<BatchPlanner> planner = batch_planner(task);
  SamplePlans model(task);
  const Plan first = planner->plan(clips).plan.value();
  ASSERT_EQ(first.micro_batches.front().groups.size(), 4U);
  for (int step = 0; step < 12; ++step) {
    const Plan plan = planner->plan(clips).plan.value();
    const double slower = plan.micro_batches.front().groups.size() == 4 ? 20 : 1;
    planner->observe(plan, test::part_seconds(model.prediction(), plan, [&](const CostedPart&) {
                       return slower;
                     }));
  }
  EXPECT_FALSE(planner->learned().ratios.empty());
  const Plan last = planner->plan(clips).plan.value();
  EXPECT_LT(last.micro_batches.front().groups.size(), 4U);
  const std::unique_ptr<BatchPlanner> next = batch_planner(task);
  next->learn(planner->learned());
  EXPECT_EQ(hash(next->plan(clips).plan.value()), hash(last));
}

// Samples of a size run together, by one program; each group says what it has.
TEST(SamplePlanner, PlansSamplesOfUnlikeSizes) {
  PlanningTask task = video_task(3);
  task.dims = {};
  task.model = test::with_text(test::small_stdit(3));
  const auto video = [](std::int64_t frames, std::int64_t text) {
    return DimSizes{{"frames", frames}, {"patches", 9}, {"text", text}};
  };
  const BatchSizes batch{
      .lengths = {45, 45, 27, 45}, .dims = {video(5, 4), video(5, 7), video(3, 4), video(5, 4)}};
  const std::int64_t free = peak(batch_planner(task)->plan(batch).plan.value());
  for (const std::int64_t memory : {std::int64_t{0}, free - free / 5}) {
    task.memory_per_rank = memory;
    const std::unique_ptr<BatchPlanner> planner = batch_planner(task);
    const Plan plan = planner->plan(batch).plan.value();
    EXPECT_EQ(sizes_of(plan), batch);
    EXPECT_TRUE(problems(plan, {.model = task.model}).empty());
    EXPECT_EQ(plan_from_json(to_json(plan), "again"), plan);
    EXPECT_EQ(hash(planner->plan(batch).plan.value()), hash(plan));
    if (memory == 0) {
      ASSERT_EQ(plan.micro_batches.size(), 3U);
      EXPECT_EQ(plan.micro_batches[0].groups[0].documents, (Lengths{0, 3}));
      EXPECT_EQ(plan.micro_batches[1].groups[0].dims, batch.dims[1]);
    } else {
      EXPECT_LE(peak(plan), memory);
      const Plan less = planner->leaner(plan).value();
      EXPECT_EQ(sizes_of(less), batch);
      EXPECT_LT(peak(less), peak(plan));
    }
    Plan wrong = plan;
    wrong.lengths[2] = 28;
    EXPECT_THAT(
        problems(wrong, {.model = task.model}),
        testing::Contains(HasSubstr("lengths[2]: 28 rows, and by its dims the sample has 27")));
    wrong.micro_batches[1].groups[0].dims["frames"] = std::int64_t{1} << 60;
    EXPECT_THAT(
        problems(wrong, {.model = task.model}),
        testing::Contains(
            HasSubstr("micro_batches[1].groups[0].dims.frames: 1152921504606846976")));
    wrong.micro_batches[1].groups[0].dims["text"] = 0;
    wrong.micro_batches[1].groups[0].dims["words"] = 3;
    const std::vector<std::string> found = problems(wrong, {.model = task.model});
    EXPECT_THAT(found, testing::Contains(HasSubstr("micro_batches[1].groups[0].dims.text: 0")));
    EXPECT_THAT(found, testing::Contains(HasSubstr("micro_batches[1].groups[0].dims.words")));
  }
  task.memory_per_rank = 10;
  const std::string why = batch_planner(task)->plan(batch).why_not;
  EXPECT_THAT(why, HasSubstr("one sample needs"));
  EXPECT_THAT(why, HasSubstr("frames 5, patches 9, text 4"));
}

TEST(SamplePlanner, TakesAllAtOnceWhereNothingIsShort) {
  for (const int ranks : {1, 2, 3, 4}) {
    const Lengths clips(7, 45);
    const Plan video = batch_planner(video_task(ranks))->plan(clips).plan.value();
    expect_whole(video, video_task(ranks), clips);
    EXPECT_EQ(video.micro_batches.size(), 1U);
    EXPECT_EQ(level(video), Recompute::none);
    EXPECT_EQ(hash(video), hash(batch_planner(video_task(ranks))->plan(clips).plan.value()));

    const Lengths alignments(3, 120);  // a batch of this model is one
    const Plan protein = batch_planner(protein_task(ranks))->plan(alignments).plan.value();
    expect_whole(protein, protein_task(ranks), alignments);
    EXPECT_EQ(protein.micro_batches.size(), 3U);
  }
}

// Within any memory from all that is wanted down to where nothing fits: what is planned fits, and
// is by the same costs at most 1 % slower (of many ways of a layer some are looked at) than one
// level of recompute for all parts in any tiles.
TEST(SamplePlanner, IsHardlySlowerThanOneLevelForAll) {
  std::vector<PlanningTask> tasks = {protein_task(2), video_task(3)};
  tasks.resize(test::kSanitized ? 1 : tasks.size(), tasks[0]);
  for (PlanningTask task : tasks) {
    const Lengths samples(
        task.model.family == "stdit" ? 5 : 2, task.model.family == "stdit" ? 45 : 120);
    task.memory_per_rank = std::int64_t{1} << 40;  // without a limit weights would not be kept
    const Plan free = batch_planner(task)->plan(samples).plan.value();
    std::int64_t last = peak(free);
    double last_seconds = *free.predicted.seconds;
    int plans = 0;
    int mixed = 0;
    for (;; ++plans) {
      task.memory_per_rank = last - last / 10;
      const BatchPlanner::Answer answer = batch_planner(task)->plan(samples);
      std::vector<Plan> rivals;
      for (const Recompute level : {Recompute::light, Recompute::full}) {
        PlanningTask alike = task;
        alike.recompute = to_string(level);
        if (const auto rival = batch_planner(alike)->plan(samples); rival.plan) {
          rivals.push_back(*rival.plan);
        }
      }
      if (!answer.plan) {
        EXPECT_THAT(answer.why_not, HasSubstr("bytes more than the"));
        EXPECT_TRUE(rivals.empty());
        break;
      }
      expect_whole(*answer.plan, task, samples);
      EXPECT_LE(peak(*answer.plan), task.memory_per_rank);
      EXPECT_GE(*answer.plan->predicted.seconds, last_seconds * (1 - 1e-3));
      for (const Plan& rival : rivals) {
        EXPECT_LE(*answer.plan->predicted.seconds, *rival.predicted.seconds * 1.01);
      }
      std::set<Recompute> levels;
      for (const LayerChoice& layer : choices(answer.plan->programs.begin()->second)) {
        for (const PartChoice& part : layer) {
          levels.insert(part.recompute);
        }
      }
      mixed += levels.size() > 1 ? 1 : 0;
      last = peak(*answer.plan);
      last_seconds = *answer.plan->predicted.seconds;
    }
    EXPECT_GE(plans, 4);
    EXPECT_GE(mixed, 2);
    EXPECT_LT(last, peak(free) / 2);
  }
}

TEST(SamplePlanner, LeansAndLearns) {
  const Lengths clips(6, 45);
  const std::unique_ptr<BatchPlanner> planner = batch_planner(video_task(2));
  const Plan plan = planner->plan(clips).plan.value();
  const Plan less = planner->leaner(plan).value();
  EXPECT_LT(peak(less), 0.95 * static_cast<double>(peak(plan)));
  EXPECT_EQ(hash(planner->plan(clips).plan.value()), hash(less));
  const std::unique_ptr<BatchPlanner> other = batch_planner(video_task(2));
  other->learn(planner->learned());
  EXPECT_EQ(hash(other->plan(clips).plan.value()), hash(less));
  other->learn({});
  EXPECT_EQ(hash(other->plan(clips).plan.value()), hash(plan));
}

// Layers made again as a whole save less than every other level, and are found where memory is
// short as they are where they are asked for; with what waits on the host there is less still.
TEST(SamplePlanner, MakesLayersAgainAsAWhole) {
  PlanningTask video = video_task(2);
  video.model = test::small_stdit(8);
  PlanningTask protein = protein_task(2);
  protein.model = test::small_evoformer(8);
  PlanningTask extra = protein;  // layers of two kinds
  extra.model = test::with_extra_blocks(test::small_evoformer(5), 3);
  extra.dims["extra_sequences"] = 20;
  for (PlanningTask task : {video, protein, extra}) {
    const Lengths samples(1, task.model.family == "stdit" ? 45 : 120);
    const auto planned = [&](const std::string& recompute, std::int64_t memory) {
      task.recompute = recompute;
      task.memory_per_rank = memory;
      const BatchPlanner::Answer answer = batch_planner(task)->plan(samples);
      EXPECT_TRUE(answer.plan.has_value()) << answer.why_not;
      expect_whole(answer.plan.value(), task, samples);
      EXPECT_TRUE(memory == 0 || peak(*answer.plan) <= memory);
      return *answer.plan;
    };
    const auto whole = [](const Plan& plan) {
      return std::ranges::any_of(choices(plan.programs.begin()->second), made_again_whole);
    };
    const std::string every_layer = "layer+full";
    const std::int64_t by_parts = peak(planned("full", 0));
    const std::int64_t least = peak(planned(every_layer, 0));
    EXPECT_LT(least, by_parts);
    EXPECT_TRUE(whole(planned("", least)));
    const Plan asked = planned(every_layer, least);
    EXPECT_TRUE(std::ranges::all_of(choices(asked.programs.begin()->second), made_again_whole));
  }
}

TEST(SamplePlanner, GoesByTheLevelThatIsAsked) {
  PlanningTask task = protein_task(2);
  task.recompute = "full";
  const Plan plan = batch_planner(task)->plan({120}).plan.value();
  EXPECT_EQ(level(plan), Recompute::full);
  task.training = false;
  EXPECT_LT(peak(batch_planner(task)->plan({120}).plan.value()), peak(plan));
}

}  // namespace
}  // namespace paradyse
