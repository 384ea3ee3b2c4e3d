// Plans of video and protein models against closed forms: elements sent a rank, by plan and rival.
#include "paradyse/plan/layout_planner.h"

#include <array>
#include <cmath>
#include <map>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "paradyse/plan/detail/index.h"
#include "src/plan/model/evoformer/evoformer.h"
#include "src/plan/model/stdit/stdit.h"
#include "src/plan/model/text/text_shape.h"
#include "src/plan/plan/group_timeline.h"
#include "src/plan/simulate/additive.h"
#include "tests/support/odd_seconds.h"

namespace paradyse {
namespace {

struct Video {
  std::int64_t frames = 64;
  std::int64_t patches = 4096;
  std::int64_t batch = 1;
  StditShape shape = {};
};

Documents documents_of(const Video& video, int ranks) {
  Documents documents = packed(
      std::vector<std::int64_t>(idx(video.batch), video.frames * video.patches), ranks, false);
  documents.dims = {{"frames", video.frames}, {"patches", video.patches}};
  return documents;
}

Documents documents_of(std::int64_t sequences, std::int64_t residues, int ranks) {
  Documents documents = packed({sequences * residues}, ranks, false);
  documents.dims = {
      {"sequences", sequences}, {"residues", residues}, {"i", residues}, {"j", residues}};
  return documents;
}

std::map<std::string, LayoutPlan> rivals_of(const LayoutTask& task) {
  std::map<std::string, LayoutPlan> all;
  for (const LayoutRival& rival : layout_rivals(*task.model)) {
    all.emplace(rival.name, cost_of(task, rival));
  }
  return all;
}

double elements(const Video& video) {
  return static_cast<double>(video.batch * video.frames * video.patches * video.shape.hidden);
}

// A batch is never attended along: with its dim on one axis only ranks of the other switch.
TEST(LayoutPlanner, SwitchesOnOneAxisOfTwo) {
  Video video{.frames = 32, .patches = 64, .batch = 2, .shape = {.depth = 2}};
  const Model model = stdit_model(video.shape);
  LayoutTask task{.model = &model, .documents = documents_of(video, 8)};
  const double M = elements(video);
  EXPECT_NEAR(plan_layouts(task).elements_forward, 2 * 7.0 / 8 * M / 8, 1e-6 * M);
  task.documents.mesh = {2, 4};
  const LayoutPlan plan = plan_layouts(task);
  EXPECT_NEAR(plan.elements_forward, 2 * 3.0 / 4 * M / 8, 1e-6 * M);
  EXPECT_NEAR(plan.elements_backward, 2 * 3.0 / 4 * M / 8, 1e-6 * M);
  for (const PlannedPart& part : plan.layers.front()) {
    EXPECT_THAT(part.choice.in.at("x"), testing::Contains("S(batch)"));
  }
  EXPECT_TRUE(problems(checked_plan(task, plan_layouts(task, 2), 0), {}).empty());
}

// Zhao et al. (2024), table 1: M elements of x, f = (p - 1) / p.
TEST(LayoutPlanner, CountsVideoModelsByTheirClosedForms) {
  for (const int p : {2, 4, 8}) {
    for (const std::int64_t kv_heads : {16, 4}) {
      Video video{.shape = {.depth = 2}};
      video.shape.kv_heads = kv_heads;
      const double rho = static_cast<double>(kv_heads) / 16;
      const Model model = stdit_model(video.shape);
      const LayoutTask task{.model = &model, .documents = documents_of(video, p)};
      const double f = (p - 1.0) / p;
      const double M = elements(video);
      const auto rivals = rivals_of(task);
      const auto expect = [&](const char* name, double forward, double backward) {
        EXPECT_NEAR(rivals.at(name).elements_forward / forward, 1, 1e-9) << name << " on " << p;
        EXPECT_NEAR(rivals.at(name).elements_backward / backward, 1, 1e-9) << name << " on " << p;
      };
      const double u = f * M / p;
      expect("dsp", 2 * u, 2 * u);
      if (kv_heads % p == 0) {
        expect("ulysses", (2 + 2 * rho) * u, (2 + 2 * rho) * u);
        expect("ulysses-both", 2 * (2 + 2 * rho) * u, 2 * (2 + 2 * rho) * u);
      }
      // going back keys and values go round again, and so do their gradients
      expect("ring", 2 * rho * f * M, 4 * rho * f * M);
      if (kv_heads % p == 0) {
        // the gathered rows are made again for the backward pass
        expect("megatron-sp", 8 * f * M, 12 * f * M);
        expect("megatron-lm", 8 * f * M, 8 * f * M);
      }
      const LayoutPlan ours = plan_layouts(task);
      EXPECT_LE(ours.elements_forward + ours.elements_backward, 4 * u * (1 + 1e-9)) << p;
      for (const auto& [name, rival] : rivals) {
        EXPECT_LE(ours.elements(), rival.elements() * (1 + 1e-9)) << name << " on " << p;
      }
    }
  }
}

// The stream is switched twice a pair, and nothing more often when all is made again.
TEST(LayoutPlanner, SwitchesTheStream) {
  const Video video{.shape = {.depth = 2}};
  const Model model = stdit_model(video.shape);
  for (const Recompute level : kRecomputeLevels) {
    const LayoutPlan plan = plan_layouts(
        {.model = &model, .documents = documents_of(video, 8), .recompute = {.parts = level}});
    const double u = 7.0 / 64 * elements(video);
    EXPECT_NEAR(plan.elements_forward, 2 * u, 1e-6 * u);
    EXPECT_NEAR(plan.elements_backward, 2 * u, 1e-6 * u);
    ASSERT_EQ(plan.layers.size(), 1U);
    int exchanges = 0;
    for (const PlannedPart& part : plan.layers.front()) {
      exchanges +=
          static_cast<int>(std::ranges::count(part.moves, "all_to_all", &PlannedMove::collective));
      if (part.choice.part.ends_with("attention")) {
        EXPECT_EQ(part.choice.strategy, "Local") << part.choice.part;
      }
      EXPECT_GE(part.otherwise, 0) << part.choice.part;
    }
    EXPECT_EQ(exchanges, 2);
  }
}

// Samples that the ranks divide need no exchange; frames that no rank divides are cut unevenly.
TEST(LayoutPlanner, CutsWhatIsThere) {
  Video video{
      .frames = 5,
      .patches = 64,
      .batch = 4,
      .shape = {.depth = 2, .hidden = 32, .mlp_hidden = 64}};
  const Model model = stdit_model(video.shape);
  EXPECT_EQ(plan_layouts({.model = &model, .documents = documents_of(video, 4)}).elements(), 0);
  video.batch = 1;
  const LayoutPlan uneven = plan_layouts({.model = &model, .documents = documents_of(video, 4)});
  EXPECT_GT(uneven.elements(), 0);
  EXPECT_LE(uneven.elements(), 4 * 0.75 / 4 * elements(video) * (1 + 1e-9));
}

struct Alignment {
  std::int64_t sequences = 0;
  std::int64_t residues = 0;
  int ranks = 0;
  double ratio = 0;  // of the published schedule to ours, asked
};

// Cheng et al. (2022) with adjoints that are adjoints, and what a plan over layouts needs less.
TEST(LayoutPlanner, NeedsLessThanDynamicAxialParallelism) {
  for (const bool multimer : {false, true}) {
    const Model model = evoformer_model({.blocks = 2, .multimer = multimer});
    for (const auto& [s, r, p, ratio] :
         {Alignment{128, 256, 2, 1.23},
          Alignment{128, 256, 8, 2.0},
          Alignment{128, 256, 16, 2.9},
          Alignment{512, 384, 8, 1.7},
          Alignment{128, 1024, 8, 2.2}}) {
      SCOPED_TRACE(testing::Message() << s << " x " << r << " on " << p);
      const LayoutTask task{.model = &model, .documents = documents_of(s, r, p)};
      const LayoutPlan dap = rivals_of(task).at("dap");
      const double f = (p - 1.0) / p;
      const auto rr = static_cast<double>(r * r);
      const auto sr = static_cast<double>(s * r);
      const double published =
          f * (16 * rr + 32 * sr) + 2 * f * 256 * sr / p + 2 * f * 128 * rr + 4 * f * 128 * rr / p;
      EXPECT_NEAR(dap.elements_forward / published, 1, 1e-9);
      EXPECT_NEAR(dap.elements_backward / published, 1, 1e-9);
      const LayoutPlan ours = plan_layouts(task);
      EXPECT_GE(dap.elements() / ours.elements(), ratio - 0.005);
    }
  }
}

// Blocks of a deep trunk run alike but for the first or the last: plans stay short.
TEST(LayoutPlanner, WritesADeepTrunkInFewRuns) {
  const Model model = evoformer_model({.blocks = 48});
  for (const auto& [s, r, p] :
       {std::array{8, 30, 4}, std::array{32, 45, 4}, std::array{64, 120, 2}}) {
    SCOPED_TRACE(testing::Message() << s << " x " << r << " on " << p);
    const LayoutTask task{.model = &model, .documents = documents_of(s, r, p)};
    EXPECT_LE(runs_of(choices(task, plan_layouts(task, 48))).size(), 2U);
  }
}

Cluster eight_h100() {
  return {
      .name = "H100",
      .ranks_per_node = 8,
      .devices =
          {{.name = "H100",
            .count = 8,
            .matmul_flops_per_second = 989e12,
            .float32_flops_per_second = 67e12,
            .matmul_fraction = 0.6,
            .attention_fraction = 0.5,
            .memory_bytes_per_second = 3350e9,
            .memory_bytes = std::int64_t{80} << 30,
            .launch_seconds = 4e-6,
            .host_bytes_per_second = 50e9}},
      .inside_node = {.bytes_per_second = 400e9, .latency_seconds = 8e-6},
      .between_nodes = {.bytes_per_second = 50e9, .latency_seconds = 15e-6}};
}

TEST(LayoutPlanner, PlansSecondsOnACluster) {
  const Cluster cluster = eight_h100();
  const Video video{.shape = {.depth = 2}};
  const Model model = stdit_model(video.shape);
  LayoutTask task{
      .model = &model,
      .documents = documents_of(video, 8),
      .objective = LayoutTask::Objective::seconds,
      .seconds = part_seconds(cluster, 8, {})};
  const LayoutPlan plan = plan_layouts(task);
  EXPECT_GT(plan.seconds, 0);
  for (const auto& [name, rival] : rivals_of(task)) {
    EXPECT_LE(plan.seconds, rival.seconds * (1 + 1e-9)) << name;
  }
  task.seconds = {};
  EXPECT_THROW(plan_layouts(task), std::invalid_argument);
}

// A language model whose query heads share key and value heads, rho of them a query head.
TextShape grouped_text() {
  TextShape shape;
  shape.hidden = 256;
  shape.layers = 3;
  shape.heads = 16;
  shape.kv_heads = 8;
  shape.head_dim = 16;
  shape.ffn = 512;
  shape.vocab = 64;
  return shape;
}

// M elements of x, f = (p - 1) / p; on ranks that the key and value heads are shared out to.
TEST(LayoutPlanner, CountsLanguageModelsByTheirClosedForms) {
  const Model model = text_model(grouped_text());
  const double rho = 0.5;
  for (const int p : {2, 4, 8}) {
    const LayoutTask task{.model = &model, .documents = packed({4096, 1024}, p, true)};
    const double f = (p - 1.0) / p;
    const double M = (4096 + 1024) * 256.0;
    const auto rivals = rivals_of(task);
    const auto expect = [&](const char* name, double forward, double backward) {
      EXPECT_NEAR(rivals.at(name).elements_forward / forward, 1, 1e-9) << name << " on " << p;
      EXPECT_NEAR(rivals.at(name).elements_backward / backward, 1, 1e-9) << name << " on " << p;
    };
    expect("ulysses", (2 + 2 * rho) * f * M / p, (2 + 2 * rho) * f * M / p);
    // going back keys and values are gathered, or go round, again
    expect("ring", 2 * rho * f * M, 4 * rho * f * M);
    expect("all-gather-kv", 2 * rho * f * M, 4 * rho * f * M);
    expect("metp", 2 * rho * f * M, 4 * rho * f * M);
    expect("megatron-sp", 4 * f * M, 6 * f * M);
    expect("megatron-lm", 4 * f * M, 4 * f * M);
    const LayoutPlan ours = plan_layouts(task);
    for (const auto& [name, rival] : rivals) {
      EXPECT_LE(ours.elements(), rival.elements() * (1 + 1e-9)) << name << " on " << p;
    }
  }
}

// Sharded by tokens, keys and values gathered, in attention; by the width in the MLP, whose weights
// stay where they are: faster than any strategy alone.
TEST(LayoutPlanner, MixesSequenceAndHeadShards) {
  const Cluster cluster = eight_h100();
  TextShape shape = grouped_text();
  shape.hidden = 8192;
  shape.heads = 64;
  shape.head_dim = 128;
  shape.ffn = 28672;
  const Model model = text_model(shape);
  const auto gain = [&](std::int64_t tokens) {
    const LayoutTask task{
        .model = &model,
        .documents = packed({tokens}, 8, true),
        .objective = LayoutTask::Objective::seconds,
        .seconds = part_seconds(cluster, 8, {})};
    const LayoutPlan plan = plan_layouts(task);
    double best = 1e9;
    for (const auto& [name, rival] : rivals_of(task)) {
      EXPECT_LE(plan.seconds, rival.seconds * (1 + 1e-9)) << name;
      best = std::min(best, rival.seconds);
    }
    return best / plan.seconds;
  };
  double most = 1;
  for (std::int64_t tokens = 4096; tokens <= 65536; tokens *= 2) {
    most = std::max(most, gain(tokens));
  }
  EXPECT_GT(most, 1.05);
}

// Whatever is planned, its moves to and from where the ends have x included, is what its programs
// come to.
TEST(LayoutPlanner, SaysOfLanguageModelsWhatTheyComeTo) {
  const TextShape shape = grouped_text();
  const Model model = text_model(shape);
  int moved = 0;
  for (const int ranks : {1, 2, 3, 4, 8}) {
    for (std::uint64_t seed = 0; seed < 6; ++seed) {
      LayoutTask task{
          .model = &model,
          .documents = packed({33, 7}, ranks, true),
          .recompute = {.layer = seed % 2 == 1},
          .seconds = {}};
      if (seed > 0) {
        task.objective = LayoutTask::Objective::seconds;
        task.seconds = test::odd_seconds(seed);
      }
      const LayoutPlan layouts = plan_layouts(task, model.layers);
      const Plan plan = checked_plan(task, layouts, 0.5);
      const GroupTimeline built =
          group_timeline(plan, plan.micro_batches[0].groups[0], model, true);
      GroupElements sum;
      double seconds = 0;
      for (const ScheduledPart& part : built.parts) {
        const bool is_move = part.weights < 0;
        moved += static_cast<int>(is_move);
        if (seed > 0 && (is_move || part.layer >= 0)) {
          seconds += task.seconds(part);
        }
        for (const Seat seat : built.seats) {
          sum += sent_in_group(part, seat);
        }
      }
      EXPECT_NEAR(layouts.elements_forward, static_cast<double>(sum.forward) / ranks, 1e-9);
      EXPECT_NEAR(layouts.elements_backward, static_cast<double>(sum.backward) / ranks, 1e-9);
      EXPECT_NEAR(layouts.seconds, seconds, 1e-9 * (1 + seconds));
    }
  }
  EXPECT_GT(moved, 0);
}

TEST(LayoutPlanner, SaysWhatCannotBe) {
  const Video video{
      .frames = 1,
      .patches = 1,
      .shape = {.depth = 2, .hidden = 16, .heads = 1, .kv_heads = 1, .mlp_hidden = 32}};
  const Model model = stdit_model(video.shape);
  // one row, one head: whatever is cut, a rank is without work; copies are all there is
  const LayoutPlan plan = plan_layouts({.model = &model, .documents = documents_of(video, 4)});
  EXPECT_EQ(plan.elements(), 0);
  Model own = model;
  own.family.clear();
  EXPECT_THAT(layout_rivals(own), testing::IsEmpty());
  const Model text = text_model(grouped_text());
  LayoutTask on_a_mesh{.model = &text, .documents = packed({64}, 4, true)};
  on_a_mesh.documents.mesh = {2, 2};
  EXPECT_THROW(plan_layouts(on_a_mesh), std::invalid_argument);
}

}  // namespace
}  // namespace paradyse
