// A profile whose steps need more memory than was counted: that is written down, and all goes on;
// and what is measured of each.
#include "src/run/measure/profiler.h"

#include <atomic>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <unistd.h>

#include "paradyse/plan/batch_planner.h"
#include "paradyse/run/accountant.h"
#include "src/plan/model/stdit/stdit.h"
#include "src/plan/model/text/text_shape.h"
#include "src/plan/profile/fit.h"
#include "src/plan/search/layers/layer_costs.h"
#include "src/run/comm/observed.h"
#include "tests/support/backend_over.h"
#include "tests/support/grid_shapes.h"
#include "tests/support/models.h"
#include "tests/support/processes.h"

namespace paradyse {
namespace {

constexpr int kRanks = 3;

// Lacks memory before some of the operations that this rank's layers begin.
class Lacking final : public CommunicationObserver {
 public:
  explicit Lacking(std::set<int> operations) : strikes_(std::move(operations)) {}
  void enter(Moment moment, const Call& call) override {
    if (moment == Moment::operation && call.layer >= 0 && strikes_.contains(operations_++)) {
      throw OutOfMemory("rank 1: out of memory");
    }
  }
  void leave() override {}

 private:
  std::set<int> strikes_;
  int operations_ = 0;
};

class LackingBackend final : public test::BackendOver {
 public:
  using BackendOver::BackendOver;
  void run(int ranks, const Body& body) override {
    BackendOver::run(ranks, [&](Communicators& communicators) {
      Lacking lacking(communicators.rank() == 1 ? std::set<int>{3, 50} : std::set<int>{});
      ObservedCommunicators observed(communicators, lacking);
      body(observed);
    });
  }
};

void expect_profiled(Backend& backend) {
  const std::filesystem::path file =
      std::filesystem::temp_directory_path() /
      ("profiler_test." + backend.name() + "." + std::to_string(getpid()) + ".jsonl");
  std::atomic<bool> stop = false;  // after some more steps than lack memory
  constexpr std::size_t kSteps = 12;
  std::size_t steps = 0;
  const ProfileRequest request{
      .model = test::llama({.heads = 6, .kv_heads = 2, .ffn = 13, .vocab = 31}),
      .ranks = kRanks,
      .lengths = {7},
      .seconds = 100,  // of which collectives take a share
      .file = file,
      .backend = std::make_shared<LackingBackend>(backend),
      .progress = [&](const auto&) { stop = ++steps > kSteps; },
      .stop = &stop};
  const Profile found = profile(request);
  if (!backend.leads()) {
    return;
  }
  std::set<std::string> lacking;
  std::set<std::string> measured;
  for (const StepProbe& step : found.steps) {
    const std::string name =
        step.attention + " " + step.recompute + " " + std::to_string(step.length);
    ASSERT_NE(step.outcome, Outcome::time);
    (step.outcome == Outcome::memory ? lacking : measured).insert(name);
    if (step.outcome == Outcome::measured) {
      EXPECT_EQ(step.peak_bytes, step.counted_peak_bytes) << name;
    }
  }
  EXPECT_EQ(lacking.size(), 2U);
  EXPECT_EQ(lacking.size() + measured.size(), steps);
  for (const std::string& name : lacking) {
    EXPECT_FALSE(measured.contains(name)) << name;
  }
  EXPECT_EQ(read_profile(file), found);
  std::filesystem::remove(file);
}

// Counts the repeats of all steps that are measured.
class Counting final : public CommunicationObserver {
 public:
  explicit Counting(int& repeats) : repeats_(repeats) {}
  void enter(Moment moment, const Call& call) override {
    repeats_ += moment == Moment::operation && call.op == "profile: a repeat" ? 1 : 0;
  }
  void leave() override {}

 private:
  int& repeats_;
};

class CountingBackend final : public test::BackendOver {
 public:
  using BackendOver::BackendOver;
  int repeats = 0;  // of rank 0

  void run(int ranks, const Body& body) override {
    BackendOver::run(ranks, [&](Communicators& communicators) {
      int others = 0;
      Counting counting(communicators.rank() == 0 ? repeats : others);
      ObservedCommunicators observed(communicators, counting);
      body(observed);
    });
  }
};

TEST(Profiler, GoesOnWhereMemoryIsLackingOverGloo) {  // before there are threads
  test::expect_processes(kRanks, [](Backend& backend) { expect_profiled(backend); });
}

TEST(Profiler, GoesOnWhereMemoryIsLackingOnThreads) { expect_profiled(*local_backend()); }

// However long a step takes: one run that does not count, and two that do; or, with weights whole,
// micro-batches of one run.  Groups of two run side by side, so their parts have the work of all
// four ranks, and bytes are those that the fold counts.
TEST(Profiler, MeasuresTwiceInGroupsOfEverySize) {
  const std::filesystem::path file =
      std::filesystem::temp_directory_path() /
      ("profiler_test.groups." + std::to_string(getpid()) + ".jsonl");
  const std::shared_ptr<Backend> local = local_backend();
  const auto backend = std::make_shared<CountingBackend>(*local);
  std::atomic<bool> stop = false;  // after the levels of which all sizes are measured
  const ProfileRequest request{
      .model = test::llama({.heads = 4, .kv_heads = 2, .ffn = 12, .vocab = 31}),
      .ranks = 4,
      .lengths = {16},
      .seconds = 300,
      .probe_seconds = 0,
      .file = file,
      .backend = backend,
      .progress = [&](const ProfileProgress& now) { stop = now.probes >= 41; },
      .stop = &stop};
  const Profile found = profile(request);
  int repeats = 0;
  std::map<bool, std::map<int, std::set<std::string>>> strategies;  // by size of a group
  for (const StepProbe& step : found.steps) {
    ASSERT_EQ(step.outcome, Outcome::measured);
    EXPECT_EQ(step.peak_bytes, step.counted_peak_bytes) << step.attention << " " << step.ranks;
    strategies[step.reshard_after_backward][step.ranks].insert(step.attention);
    if (step.ranks == 2 || !step.reshard_after_backward) {
      EXPECT_EQ(step.mlp, "gather");
    }
    repeats += step.reshard_after_backward ? 3 : 1;
  }
  EXPECT_EQ(backend->repeats, repeats);
  for (const bool sharded : {true, false}) {
    EXPECT_EQ(strategies[sharded][1], std::set<std::string>{"DataZ"});
    EXPECT_TRUE(strategies[sharded][2].contains("UlyssesZ"));
    EXPECT_FALSE(strategies[sharded][2].contains("MegatronTS"));  // holds its weights on all ranks
    EXPECT_EQ(strategies[sharded][4].contains("MegatronTS"), sharded);
  }

  PlanningTask task;
  task.model = request.model;
  task.ranks = 4;
  task.machine.cores = found.header.cores;
  const Model model = task.model;
  for (const PartProbe& part : found.parts) {
    // Of a core, where ranks share some: no more than all that the wall's clock saw.
    if (part.part != "optimizer") {
      ASSERT_EQ(part.processor_seconds.has_value(), found.header.cores < 4) << part.part;
    }
    if (part.processor_seconds) {
      double used = 0;
      double wall = 0;
      for (std::size_t phase = 0; phase < kPartPhases; ++phase) {
        used += (*part.processor_seconds)[phase];
        wall += part.seconds[phase].most;
      }
      EXPECT_GT(used, 0) << part.part;
      constexpr double kApart = 1e-5;  // the two clocks are read one after the other
      EXPECT_LE(used, wall * 4 / found.header.cores + kApart) << part.part;
    }
    if (part.ranks != 2 || part.part != "attention") {
      continue;
    }
    const PartChoice choice{
        .part = "attention", .strategy = part.strategy, .recompute = recompute(part.recompute)};
    const int domain = part.reshard_after_backward ? 4 : 1;
    const ScheduledPart scheduled =
        scheduled_part(task_of(model, "attention", packed({16}, 2, model.causal), domain), choice);
    std::vector<PartWork> works;
    for (int rank = 0; rank < 4; ++rank) {
      works.push_back(part_work(
          scheduled, {.group_rank = rank % 2, .domain_rank = rank}, precision_of(Dtype::float32)));
    }
    const PartWork expected = together(works, found.header.cores);
    EXPECT_EQ(expected.phases[0].values[Amounts::weight_bytes] > 0, part.reshard_after_backward);
    for (std::size_t phase = 0; phase < kPartPhases; ++phase) {
      for (std::size_t i = 0; i < Amounts::kCount; ++i) {
        EXPECT_DOUBLE_EQ(part.work.phases[phase].values[i], expected.phases[phase].values[i])
            << part.strategy << " " << kPhaseNames[phase] << " " << Amounts::kNames[i];
      }
    }
  }
  EXPECT_EQ(read_profile(file), found);
  std::filesystem::remove(file);
}

// A fit takes three sizes, and time or memory may end a profile before the largest.
TEST(Profiler, HasSmallSizesOfLargeSamples) {
  const Model model = Model(test::small_evoformer(2));
  const auto sizes_up_to = [&](std::int64_t residues) {
    const DimSizes largest = {
        {"sequences", 16}, {"residues", residues}, {"i", residues}, {"j", residues}};
    return profile_sizes(model, {.lengths = {model.rows(largest)}, .dims = {largest}});
  };
  EXPECT_EQ(sizes_up_to(24).size(), 3U);
  const std::vector<DimSizes> sizes = sizes_up_to(600);
  ASSERT_EQ(sizes.size(), 5U);
  EXPECT_EQ(sizes.front().at("residues"), 37);
  EXPECT_TRUE(std::ranges::is_sorted(
      sizes, std::less_equal(), [&](const DimSizes& dims) { return model.rows(dims); }));
}

// The planned layout and every rival's, at three sizes; what is fitted to it predicts plans.
TEST(Profiler, MeasuresPartsOfVideoAndProteinModels) {
  for (const Model& shape : {Model(test::small_stdit(3)), Model(test::small_evoformer(2))}) {
    const std::filesystem::path file =
        std::filesystem::temp_directory_path() /
        ("profiler_test.grid." + std::to_string(getpid()) + ".jsonl");
    const bool video = shape.family == "stdit";
    const DimSizes largest =
        video ? DimSizes{{"frames", 8}, {"patches", 12}}
              : DimSizes{{"sequences", 8}, {"residues", 12}, {"i", 12}, {"j", 12}};
    const std::vector<DimSizes> sizes = profile_sizes(
        shape,
        {.lengths = {6, 96},
         .dims = {
             {video ? DimSizes{{"frames", 2}, {"patches", 3}}
                    : DimSizes{{"sequences", 2}, {"residues", 3}, {"i", 3}, {"j", 3}}},
             largest}});
    ASSERT_EQ(sizes.size(), 3U);
    EXPECT_EQ(sizes.back(), largest);
    const ProfileRequest request{
        .model = shape,
        .ranks = kRanks,
        .sizes = sizes,
        .seconds = 300,
        .probe_seconds = 0,
        .file = file};
    const Profile found = profile(request);
    EXPECT_EQ(read_profile(file), found);
    std::filesystem::remove(file);
    std::set<std::string> ways;
    for (const StepProbe& step : found.steps) {
      ASSERT_EQ(step.outcome, Outcome::measured);
      EXPECT_EQ(step.peak_bytes, step.counted_peak_bytes) << step.attention << step.mlp;
      ways.insert(step.attention);
    }
    EXPECT_EQ(ways.size(), video ? 7U : 2U);
    std::set<std::string> parts;
    for (const PartProbe& part : found.parts) {
      parts.insert(part.part);
    }
    for (const std::string& part : layer_kinds(shape.name).front()) {
      EXPECT_TRUE(parts.contains(part)) << part;
    }
    EXPECT_TRUE(parts.contains("move") && parts.contains("rest") && parts.contains("optimizer"));

    const Costs costs = fit(found);
    PlanningTask task{.model = shape, .dims = largest, .ranks = kRanks, .machine = {}};
    task.machine.cores = costs.header.cores;
    task.batch_planner = "groups-of-all";
    const Plan closed = batch_planner(task)->plan({96}).plan.value();
    task.seconds = costs.structured;
    const Plan measured = batch_planner(task)->plan({96}).plan.value();
    EXPECT_GT(measured.predicted.seconds, 0);
    EXPECT_NE(measured.predicted.seconds, closed.predicted.seconds);
    EXPECT_EQ(hash(measured), hash(closed));  // no memory is short
    task.batch_planner = "groups";
    EXPECT_LE(
        batch_planner(task)->plan({96}).plan.value().predicted.seconds, measured.predicted.seconds);
  }
}

}  // namespace
}  // namespace paradyse
