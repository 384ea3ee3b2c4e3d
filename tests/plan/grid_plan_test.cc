// Plans of video and protein models as files: what the planner writes is sound, sends what it said,
// and is refused by name where somebody edited it.
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "paradyse/plan/batch_planner.h"
#include "paradyse/plan/detail/index.h"
#include "paradyse/plan/layout_planner.h"
#include "paradyse/plan/plan.h"
#include "paradyse/plan/simulate.h"
#include "src/plan/model/evoformer/evoformer.h"
#include "src/plan/model/stdit/stdit.h"
#include "src/plan/model/text/text_shape.h"
#include "src/plan/plan/group_timeline.h"
#include "tests/plan/small_cluster.h"
#include "tests/support/grid_layers.h"
#include "tests/support/grid_shapes.h"
#include "tests/support/refusal.h"

namespace paradyse {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;

struct Subject {
  Model shape;
  std::int64_t samples = 1;
  std::map<std::string, std::int64_t> dims;
};

// 5 frames and 6 patches, or 5 sequences of 7 residues.
Subject video(std::int64_t depth = 3) {
  return {.shape = test::small_stdit(depth), .samples = 2, .dims = {{"frames", 5}, {"patches", 6}}};
}

Subject protein(bool multimer = false) {
  EvoformerShape shape = test::small_evoformer(2);
  shape.multimer = multimer;
  return {.shape = shape, .dims = {{"sequences", 5}, {"residues", 7}, {"i", 7}, {"j", 7}}};
}

// Two blocks for 9 extra sequences before that.
Subject with_extra() {
  Subject subject = protein();
  subject.shape = test::with_extra_blocks(test::small_evoformer(2), 2);
  subject.dims["extra_sequences"] = 9;
  return subject;
}

LayoutTask task_of(const Subject& subject, const Model& model, int ranks) {
  LayoutTask task{.model = &model, .documents = {}, .seconds = {}};
  const std::int64_t rows = subject.dims.contains("frames") ? 30 : 35;
  task.documents = packed(std::vector<std::int64_t>(idx(subject.samples), rows), ranks, false);
  task.documents.dims = subject.dims;
  return task;
}

Plan plan_of(const Subject& subject, int ranks) {
  const Model model = Model(subject.shape);
  const LayoutTask task = task_of(subject, model, ranks);
  return checked_plan(task, plan_layouts(task, model.layers), 0.5);
}

TEST(GridPlan, IsSoundAndSendsWhatItSaid) {
  for (const Subject& subject : {video(), protein(), protein(true), with_extra()}) {
    const Model model = Model(subject.shape);
    for (const int ranks : {1, 2, 3, 4, 8}) {
      const LayoutTask task = task_of(subject, model, ranks);
      const LayoutPlan layouts = plan_layouts(task, model.layers);
      const Plan plan = checked_plan(task, layouts, 0.5);
      EXPECT_THAT(problems(plan, {.model = subject.shape}), IsEmpty());
      EXPECT_THAT(problems(plan), IsEmpty());
      EXPECT_EQ(plan_from_json(to_json(plan), "plan"), plan);
      const GroupTimeline built =
          group_timeline(plan, plan.micro_batches[0].groups[0], model, true);
      GroupElements sum;
      for (const ScheduledPart& part : built.parts) {
        for (const Seat seat : built.seats) {
          sum += sent_in_group(part, seat);  // ends send nothing
        }
      }
      EXPECT_NEAR(layouts.elements_forward, static_cast<double>(sum.forward) / ranks, 1e-9);
      EXPECT_NEAR(layouts.elements_backward, static_cast<double>(sum.backward) / ranks, 1e-9);
      // Where streams are made where they are wanted it costs no more than in a circle.
      EXPECT_LE(
          layouts.elements(),
          plan_layouts(task).elements() * static_cast<double>(model.layers) + 1e-9);
    }
  }
}

// Masks are drawn by query and key of a document, which lines have not got.
TEST(GridPlan, RefusesDropoutOfAttentionAlongLines) {
  for (const Subject& subject : {video(), protein()}) {
    Model model = subject.shape;
    const Plan plan = plan_of(subject, 2);
    for (ModelPart& one : model.parts) {
      Part part = *one.part;
      part.shape.attention_dropout = 0.1;
      one.part = std::make_shared<const Part>(std::move(part));
    }
    const auto built = [&](const Model& of, bool training) {
      return group_timeline(plan, plan.micro_batches[0].groups[0], of, training).parts.size();
    };
    EXPECT_THAT(
        test::refusal([&] { built(model, true); }),
        AllOf(HasSubstr("attention dropout"), HasSubstr("attention_dropout to 0")));
    EXPECT_EQ(built(model, false), built(without_dropout(model), true));
  }
}

// A layer runs the parts of its own kind, and a run of layers is of one kind.
TEST(GridPlan, IsRefusedWhereALayerHasOtherParts) {
  const Subject subject = with_extra();
  Plan plan = plan_of(subject, 2);
  std::vector<LayerChoice> layers = choices(plan.programs.at("layout"));
  ASSERT_EQ(layers.size(), 4U);
  EXPECT_EQ(layers[1].front().part, "extra_row_attention");
  EXPECT_EQ(layers[2].front().part, "row_attention");
  const auto found = [&](const LayerRuns& runs) {
    plan.programs["layout"] = runs;
    return problems(plan, {.model = subject.shape});
  };
  EXPECT_THAT(found(runs_of(layers)), IsEmpty());
  EXPECT_THAT(
      found({{.layers = 3, .choice = layers[0]}, {.layers = 1, .choice = layers[3]}}),
      Contains(AllOf(HasSubstr("[0].layers"), HasSubstr("only the first 2"))));
  std::swap(layers[1], layers[2]);
  const auto swapped = found(runs_of(layers));
  EXPECT_THAT(
      swapped,
      Contains(AllOf(HasSubstr("parts of a layer are"), HasSubstr("extra_row_attention"))));
  // without the model the plan alone says what kind each is
  EXPECT_EQ(plan_from_json(to_json(plan), "plan"), plan);
  const Model model = subject.shape;
  const LayoutTask task = task_of(subject, model, 2);
  EXPECT_THROW(plan_layouts(task, 3), std::invalid_argument);
}

// In a sharding group of two programs the weight modes of extra layers are compared, too.
TEST(GridPlan, RunsInLockStepInEveryKindOfLayer) {
  const Subject subject = with_extra();
  const Model model = subject.shape;
  Plan plan = plan_of(subject, 2);
  std::vector<LayerChoice> layers = choices(plan.programs.at("layout"));
  part_of(layers[1], "extra_msa_transition").strategy = "pass";
  plan.programs["other"] = runs_of(layers);
  plan.lengths.assign(2, 35);
  PlanGroup& first = plan.micro_batches.front().groups.front();
  first.ranks = {0};
  first.documents = {0};
  plan.micro_batches.front().groups.push_back({.ranks = {1}, .documents = {1}, .program = "other"});
  EXPECT_THAT(
      problems(plan, {.model = model}),
      Contains(
          AllOf(HasSubstr("in layer 1 its extra_msa_transition"), HasSubstr("same collectives"))));
}

TEST(GridPlan, IsRefusedByNameWhereItContradictsAPart) {
  const Subject subject = video(1);
  const auto found = [&](const std::function<void(Plan & plan, LayerChoice & layer)>& edit) {
    Plan plan = plan_of(subject, 2);
    edit(plan, plan.programs.at("layout").front().choice);
    return problems(plan, {.model = subject.shape});
  };
  EXPECT_THAT(found([](Plan&, LayerChoice&) {}), IsEmpty());
  EXPECT_THAT(
      found([](Plan&, LayerChoice& layer) { part_of(layer, "spatial_mlp").out["x"] = {"R"}; }),
      Contains(AllOf(HasSubstr("parts[1].out.x"), HasSubstr("expected R"))));
  EXPECT_THAT(
      found([](Plan&, LayerChoice& layer) {
        part_of(layer, "spatial_attention").in["x"] = {"S(patches)"};
        part_of(layer, "spatial_attention").strategy = "Local";
      }),
      Contains(HasSubstr("spatial_attention")));
  EXPECT_THAT(
      found([](Plan&, LayerChoice& layer) {
        part_of(layer, "temporal_mlp").in["x"] = {"S(sequences)"};
      }),
      Contains(AllOf(HasSubstr("parts[3].in.x"), HasSubstr("sequences"))));
  EXPECT_THAT(
      found([](Plan&, LayerChoice& layer) { part_of(layer, "temporal_mlp").strategy = "Local"; }),
      Contains(AllOf(HasSubstr("parts[3].strategy"), HasSubstr("Local"))));
  EXPECT_THAT(
      found([](Plan& plan, LayerChoice&) { plan.micro_batches[0].groups[0].ranks = {0}; }),
      Contains(AllOf(
          HasSubstr("ranks 1 are in no group"),
          HasSubstr("an idle rank is a group without documents"))));
  EXPECT_THAT(
      found([](Plan& plan, LayerChoice&) { plan.dims["residues"] = 3; }),
      Contains(AllOf(HasSubstr("dims.residues"), HasSubstr("frames, patches"))));
  EXPECT_THAT(
      found([](Plan& plan, LayerChoice&) { plan.dims.erase("patches"); }),
      Contains(HasSubstr("'patches' has no size")));
  EXPECT_THAT(
      found([](Plan& plan, LayerChoice&) { plan.model_sha256 = "1"; }),
      Contains(HasSubstr("model.sha256")));
  EXPECT_THAT(
      found([](Plan&, LayerChoice& layer) { layer.pop_back(); }),
      Contains(HasSubstr("spatial_attention, then spatial_mlp, then temporal_attention")));
}

// What a language model's plan may say and samples are not cut by; and sizes that contradict each
// other.
TEST(GridPlan, IsRefusedWhereAKeyWouldDoNothing) {
  for (const Subject& subject : {video(), protein()}) {
    const auto found = [&](const std::function<void(Plan & plan)>& edit) {
      Plan plan = plan_of(subject, 2);
      edit(plan);
      EXPECT_THAT(problems(plan), testing::Not(IsEmpty()));  // its name says as much as the model
      return problems(plan, {.model = subject.shape});
    };
    EXPECT_THAT(
        found([](Plan& plan) { plan.micro_batches[0].groups[0].shares = {3, 1}; }),
        testing::ElementsAre(AllOf(
            HasSubstr("micro_batches[0].groups[0].shares: "), HasSubstr("leave the key out"))));
    EXPECT_THAT(
        found([](Plan& plan) { plan.micro_batches[0].groups[0].documents = {}; }),
        Contains(HasSubstr("each idle rank is a group of its own")));
  }
}

TEST(GridPlan, IsRefusedWherePairsAreNotOfTheResidues) {
  const Subject subject = protein();
  for (const std::string dim : {"i", "j", "residues"}) {
    for (const bool of_group : {false, true}) {
      Plan plan = plan_of(subject, 2);
      PlanGroup& group = plan.micro_batches[0].groups[0];
      if (of_group) {
        group.dims = plan.dims;
      }
      DimSizes& dims = of_group ? group.dims : plan.dims;
      dims[dim] = 9;
      if (dim == "residues") {
        plan.lengths = {45};
      }
      const std::string at = of_group ? "micro_batches[0].groups[0].dims" : "dims";
      EXPECT_THAT(
          problems(plan, {.model = subject.shape}),
          Contains(AllOf(
              HasSubstr(at + (dim == "residues" ? ".i: 7" : "." + dim + ": 9")),
              HasSubstr(dim == "residues" ? "of 9 residues" : "of 7 residues"))));
    }
  }
}

// A sample of a protein model is a batch of its own.
TEST(GridPlan, IsRefusedWhereSamplesWouldBeLeftOut) {
  const Subject subject = protein();
  Plan plan = plan_of(subject, 2);
  plan.lengths.push_back(plan.lengths[0]);
  plan.micro_batches[0].groups[0].documents = {0, 1};
  EXPECT_THAT(
      problems(plan, {.model = subject.shape}),
      testing::ElementsAre(AllOf(
          HasSubstr("micro_batches[0].groups[0].documents: 2 samples"),
          HasSubstr("micro-batch of its own"))));
}

// Groups of unlike samples side by side, as the simulator plays them: bytes are those that are
// counted, no group is done before what it computes, and a slower link takes longer.
TEST(GridPlan, IsSimulatedInGroups) {
  const Model model = protein().shape;
  BatchSizes batch;
  for (const auto& [s, r] : std::vector<std::pair<std::int64_t, std::int64_t>>{
           {3, 5}, {9, 17}, {2, 4}, {3, 5}, {4, 6}}) {
    batch.dims.push_back({{"sequences", s}, {"residues", r}, {"i", r}, {"j", r}});
    batch.lengths.push_back(model.rows(batch.dims.back()));
  }
  for (const int ranks : {1, 2, 3, 4, 8}) {
    PlanningTask task{.model = model, .ranks = ranks, .machine = {}, .batch_planner = "groups"};
    task.machine.cores = ranks;
    const Plan plan = batch_planner(task)->plan(batch).plan.value();
    const SimulationOptions how{.precision = task.precision};
    const Cluster cluster = small_cluster(ranks, ranks % 2 == 0 ? 2 : 1);
    const Simulation simulation = simulate(plan, model, cluster, how);
    const std::vector<PredictedBytes> counted =
        bytes_of_ranks(plan, model, task.precision, /*training=*/true);
    ASSERT_EQ(simulation.ranks.size(), counted.size());
    for (std::size_t r = 0; r < counted.size(); ++r) {
      EXPECT_EQ(simulation.ranks[r].peak_bytes(), counted[r].total()) << "rank " << r;
      EXPECT_GE(simulation.seconds, simulation.ranks[r].compute_seconds);
    }
    Cluster slow = cluster;
    slow.inside_node.bytes_per_second /= 100;
    slow.between_nodes.bytes_per_second /= 100;
    const double slower = simulate(plan, model, slow, how).seconds;
    EXPECT_TRUE(ranks == 1 ? slower == simulation.seconds : slower > simulation.seconds);
    SimulationOptions sums = how;
    sums.additive = true;
    EXPECT_GE(simulate(plan, model, cluster, sums).seconds, simulation.seconds * 0.999);
  }
}

// What ranks hold and send, and how many kernels they call.
std::vector<std::int64_t> counted(const Task& task, const PartChoice& choice) {
  const Timeline built = linked({scheduled_part(task, choice)});
  std::vector<std::int64_t> numbers;
  for (int rank = 0; rank < task.documents.ranks(); ++rank) {
    const Seat seat{.group_rank = rank, .domain_rank = rank};
    const Totals all = totals(built, seat, {});
    const Footprint held = footprint(built, seat, {}, 0);
    for (const std::int64_t number :
         {held.peak_bytes, held.saved_bytes, all.traffic.bytes, all.forward.calls}) {
      numbers.push_back(number);
    }
  }
  return numbers;
}

// Every option of their strategies changes what is built, by some value, unless it has one value.
TEST(GridPlan, HasNoOptionThatDoesNothing) {
  const DimSizes clip = {{"frames", 5}, {"patches", 6}, {"text", 4}};
  const DimSizes alignment = {{"sequences", 5}, {"residues", 7}, {"i", 7}, {"j", 7}};
  std::set<std::string> seen;
  for (const auto& [shape, dims] : std::vector<std::pair<Model, DimSizes>>{
           {test::with_text(test::small_stdit(1)), clip},
           {test::small_extra_msa(1), alignment},
           {test::small_evoformer(1), alignment}}) {
    const Model model = Model(shape);
    const Documents documents =
        test::documents_of_samples(dims, shape.rows(dims), /*samples=*/1, /*ranks=*/4);
    for (const ModelPart& one : model.parts) {
      for (const Strategy& strategy : strategies(one.part->kind)) {
        for (const Option& option : strategy.options) {
          const auto ways = test::ways_of_strategy(model, one, strategy.name, dims);
          if (ways.empty() ||
              (std::string(option.name) == "branch_dim" && !dims.contains("text"))) {
            continue;  // it runs nowhere; there is one other dim
          }
          bool differs = false;
          for (PartChoice choice : ways) {
            const Task task{
                .part = one.part,
                .streams = streams_of(model, *one.part, choice, documents),
                .documents = documents,
                .domain = 4};
            const auto plain = counted(task, choice);
            for (const std::int64_t value : {1, 2, 3}) {
              choice.options[option.name] = value;
              differs |= misfits(task, choice).empty() && counted(task, choice) != plain;
            }
          }
          EXPECT_TRUE(differs) << one.part->name << ", " << strategy.name << ", " << option.name;
          seen.insert(option.name);
        }
      }
    }
  }
  EXPECT_EQ(seen, (std::set<std::string>{"branch_dim", "keep_gathered", "token_tiles"}));
}

TEST(GridPlan, IsRefusedForAModelOfAnotherFamily) {
  const Plan plan = plan_of(protein(), 2);
  const Subject other = video(2);
  EXPECT_THAT(
      problems(plan, {.model = other.shape}),
      Contains(AllOf(HasSubstr("model.name"), HasSubstr("evoformer"), HasSubstr("stdit"))));
  const TextShape text{
      .layers = 2, .hidden = 8, .heads = 2, .kv_heads = 2, .head_dim = 4, .ffn = 8, .vocab = 8};
  EXPECT_THAT(
      problems(plan, {.model = text}),
      Contains(AllOf(HasSubstr("model.name"), HasSubstr("evoformer"))));
  std::string json = to_json(plan);
  json.replace(json.find("row_attention"), 13, "col_attention");
  EXPECT_THAT(
      [&] { plan_from_json(json, "plan"); },
      testing::ThrowsMessage<std::invalid_argument>(AllOf(
          HasSubstr("parts[0].part"), HasSubstr("\"row_attention\", found \"col_attention\""))));
}

}  // namespace
}  // namespace paradyse
