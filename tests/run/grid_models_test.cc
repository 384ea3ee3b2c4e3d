// Whole video and protein models on placed streams: random plans give the loss and every gradient
// of plain single-rank autograd (float64), with memory and traffic as the folds say.
#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "paradyse/plan/batch_planner.h"
#include "paradyse/plan/detail/index.h"
#include "paradyse/plan/layout_planner.h"
#include "paradyse/run/gradients.h"
#include "paradyse/run/session.h"
#include "src/plan/model/evoformer/evoformer.h"
#include "src/plan/model/stdit/stdit.h"
#include "src/run/data/synthetic_items.h"
#include "src/run/reference/reference.h"
#include "tests/support/grid_masks.h"
#include "tests/support/grid_shapes.h"
#include "tests/support/models.h"

namespace paradyse {
namespace {

constexpr double kNear = 1e-10;

struct Subject {
  std::string name;
  Model shape;
  std::int64_t samples = 1;
  std::map<std::string, std::int64_t> dims;
};

std::vector<Subject> subjects() {
  StditShape video = test::small_stdit(2);
  video.channels = 1;
  EvoformerShape protein = test::small_evoformer(2);
  std::vector<Subject> all = {
      {.name = "stdit", .shape = video, .samples = 2, .dims = {{"frames", 5}, {"patches", 4}}},
      {.name = "stdit, few frames",
       .shape = video,
       .samples = 1,
       .dims = {{"frames", 3}, {"patches", 7}}},
      {.name = "stdit with text",
       .shape = test::with_text(video),
       .samples = 3,
       .dims = {{"frames", 4}, {"patches", 3}, {"text", 5}}},
      {.name = "evoformer",
       .shape = protein,
       .dims = {{"sequences", 5}, {"residues", 4}, {"i", 4}, {"j", 4}}}};
  all.push_back(
      {.name = "STDiT3",
       .shape = test::small_stdit3(2),
       .samples = 2,
       .dims = {{"frames", 5}, {"patches", 4}, {"text", 3}}});
  all.push_back(
      {.name = "evoformer of OpenFold",
       .shape = test::in_openfold(protein),
       .dims = {{"sequences", 3}, {"residues", 4}, {"i", 4}, {"j", 4}}});
  all.push_back(
      {.name = "extra MSA",
       .shape = test::small_extra_msa(2),
       .dims = {{"sequences", 7}, {"residues", 3}, {"i", 3}, {"j", 3}}});
  all.push_back(
      {.name = "OpenFold with extra blocks",
       .shape = test::with_extra_blocks(protein, 2),
       .dims = {{"sequences", 3}, {"extra_sequences", 5}, {"residues", 4}, {"i", 4}, {"j", 4}}});
  EvoformerShape extra_first = test::with_extra_blocks(test::small_evoformer(1), 1);
  extra_first.multimer = true;
  extra_first.msa_dropout = 0.15;
  extra_first.pair_dropout = 0.25;
  all.push_back(
      {.name = "multimer with extra blocks and dropout",
       .shape = extra_first,
       .dims = {{"sequences", 5}, {"extra_sequences", 2}, {"residues", 3}, {"i", 3}, {"j", 3}}});
  EvoformerShape dropping = protein;
  dropping.msa_dropout = 0.15;
  dropping.pair_dropout = 0.25;
  all.push_back(
      {.name = "evoformer with dropout",
       .shape = dropping,
       .dims = {{"sequences", 5}, {"residues", 4}, {"i", 4}, {"j", 4}}});
  protein.multimer = true;
  all.push_back(
      {.name = "multimer",
       .shape = protein,
       .dims = {{"sequences", 3}, {"residues", 7}, {"i", 7}, {"j", 7}}});
  return all;
}

// A batch says which letters count.
std::vector<Subject> masked_subjects() {
  EvoformerShape dropping = test::with_masks(test::small_evoformer(2));
  dropping.msa_dropout = 0.15;
  dropping.pair_dropout = 0.25;
  EvoformerShape multimer = test::with_masks(test::small_evoformer(1));
  multimer.multimer = true;
  return {
      {.name = "evoformer with dropout",
       .shape = dropping,
       .dims = {{"sequences", 5}, {"residues", 4}, {"i", 4}, {"j", 4}}},
      {.name = "OpenFold with extra blocks",
       .shape = test::with_masks(test::with_extra_blocks(test::small_evoformer(1), 2)),
       .dims = {{"sequences", 3}, {"extra_sequences", 7}, {"residues", 5}, {"i", 5}, {"j", 5}}},
      {.name = "extra MSA",
       .shape = test::with_masks(test::small_extra_msa(2)),
       .dims = {{"sequences", 7}, {"residues", 3}, {"i", 3}, {"j", 3}}},
      {.name = "multimer",
       .shape = multimer,
       .dims = {{"sequences", 2}, {"residues", 7}, {"i", 7}, {"j", 7}}}};
}

template <typename T>
const T& any(const std::vector<T>& all, std::mt19937& random) {
  return all[random() % all.size()];
}

// A choice that the part can run so on these ranks.
PartChoice random_choice(
    const Model& model,
    const Part& part,
    const Documents& documents,
    int domain,
    std::mt19937& random,
    std::optional<Verb> only = {}) {
  std::vector<Strategy> known(strategies(part.kind).begin(), strategies(part.kind).end());
  if (only) {
    std::erase_if(known, [&](const Strategy& one) { return one.verb != *only; });
  }
  for (;;) {
    PartChoice choice{
        .part = part.name,
        .strategy = known[random() % known.size()].name,
        .recompute = kRecomputeLevels[random() % std::size(kRecomputeLevels)],
        .offload = random() % 4 == 0};
    if (takes(part.kind, choice.strategy, kTilesOption) && random() % 2 == 0) {
      choice.options[kTilesOption] = static_cast<std::int64_t>(1 + random() % 6);
    }
    for (const std::string& name : part.reads) {
      const Stream& stream = model.stream(name);
      if (stream.home.empty() || random() % 8 == 0) {
        continue;
      }
      std::vector<std::string> places = {"R"};
      for (const std::string& dim : stream.rows) {
        places.push_back("S(" + dim + ")");
      }
      Placement& placement = choice.in[name];
      for (std::size_t axis = 0; axis < std::max<std::size_t>(1, documents.mesh.size()); ++axis) {
        placement.push_back(any(places, random));  // a dim twice is refused
      }
    }
    try {
      const Task task{
          .part = model.part(part.name),
          .choice = {},
          .streams = streams_of(model, part, choice, documents),
          .documents = documents,
          .domain = domain};
      scheduled_part(task, choice);
      return choice;
    } catch (const std::invalid_argument&) {
      continue;  // another
    }
  }
}

Plan random_plan(const Subject& subject, const Model& model, int ranks, std::mt19937& random) {
  std::int64_t rows = 1;
  for (const auto& [dim, size] : subject.dims) {
    rows *= dim == "i" || dim == "j" || dim == "text" || dim == "extra_sequences" ? 1 : size;
  }
  Plan plan;
  plan.layers = model.layers;
  plan.ranks = ranks;
  plan.weight_domain = ranks;
  plan.lengths.assign(idx(subject.samples), rows);
  plan.dims = subject.dims;
  Documents documents = packed(plan.lengths, ranks, model.causal);
  documents.dims = plan.dims;
  if (ranks % 2 == 0 && random() % 2 == 0) {
    documents.mesh = {2, ranks / 2};
  }
  std::vector<LayerChoice> layers(idx(model.layers));
  for (std::size_t layer = 0; layer < layers.size(); ++layer) {
    for (const ModelPart& one : model.parts) {
      if (one.layer == static_cast<std::int64_t>(layer)) {
        layers[layer].push_back(random_choice(model, *one.part, documents, ranks, random));
      }
    }
    const bool whole = random() % 2 == 0;
    for (PartChoice& part : layers[layer]) {
      part.with_layer = whole;
    }
  }
  plan.programs["random"] = runs_of(layers);
  PlanGroup group{.ranks = {}, .documents = {}, .program = "random", .mesh = documents.mesh};
  for (int rank = 0; rank < ranks; ++rank) {
    group.ranks.push_back(rank);
  }
  for (std::int64_t sample = 0; sample < subject.samples; ++sample) {
    group.documents.push_back(sample);
  }
  plan.micro_batches = {{.groups = {group}, .predicted = {}}};
  return plan;
}

// What the folds say of a rank that holds its weights and their gradients.
RankReport predicted_of(const Plan& plan, const Model& model, int rank, Dtype dtype) {
  return predicted_report(plan, model, rank, precision_of(dtype));
}

// By a plan, loss and gradients of the reference, and on every rank what the folds say.
void expect_equal(
    const GradientRequest& request, const reference::Answer& expected, std::size_t samples) {
  const GradientAnswer answer = gradients(request);
  EXPECT_NEAR(answer.batch.loss, expected.loss, kNear * expected.loss);
  for (std::size_t s = 0; s < samples; ++s) {
    EXPECT_EQ(answer.batch.counts[s], expected.documents[s].count);
    EXPECT_NEAR(
        answer.batch.loss_sums[s], expected.documents[s].sum, kNear * expected.documents[s].sum);
  }
  const GradientError error = compare_gradients(answer.gradients, expected.gradients);
  EXPECT_LE(error.worst, kNear) << error.worst_name;
  for (int r = 0; r < request.plan->ranks; ++r) {
    const RankReport predicted = predicted_of(*request.plan, request.model, r, Dtype::float64);
    const RankReport& measured = answer.ranks[idx(r)];
    EXPECT_EQ(measured.saved_bytes, predicted.saved_bytes) << "rank " << r;
    EXPECT_EQ(measured.bytes_sent, predicted.bytes_sent) << "rank " << r;
    EXPECT_EQ(measured.messages, predicted.messages) << "rank " << r;
    EXPECT_EQ(measured.peak_bytes, predicted.peak_bytes) << "rank " << r;
  }
}

void expect_equal(
    const Model& model,
    const Plan& plan,
    const std::vector<Sample>& samples,
    const reference::Weights& weights,
    std::uint64_t dropout_seed,
    const reference::Answer& expected) {
  GradientRequest request{
      .model = model, .plan = &plan, .items = items_of(samples), .dtype = Dtype::float64};
  request.dropout_seed = dropout_seed;
  request.fill = [&](Parameters& parameters) { test::fill(parameters, weights); };
  expect_equal(request, expected, samples.size());
}

void expect_equal_by_random_plans(const std::vector<Subject>& subjects) {
  for (const Subject& subject : subjects) {
    const Model model = subject.shape;
    std::vector<Sample> samples = synthetic_samples(model, subject.dims, subject.samples);
    test::set_random_masks(model, samples, 3);
    const reference::Weights weights = test::random_weights(model, 5);
    const std::uint64_t seed = 11;  // of dropout, where there is any
    const reference::Answer expected = reference::answer(
        subject.shape, weights, {.items = items_of(samples), .dropout_seed = seed});
    for (const int ranks : {1, 2, 3, 4, 6}) {
      for (unsigned number = 0; number < 6; ++number) {
        std::mt19937 random(number * 100 + static_cast<unsigned>(ranks));
        const Plan plan = random_plan(subject, model, ranks, random);
        SCOPED_TRACE(subject.name + "\n" + to_json(plan));
        expect_equal(model, plan, samples, weights, seed, expected);
        if (testing::Test::HasFailure()) {
          return;
        }
      }
    }
  }
}

TEST(GridModels, EqualTheReferenceByRandomPlans) { expect_equal_by_random_plans(subjects()); }

TEST(GridModels, EqualTheReferenceWithMasksOfLetters) {
  expect_equal_by_random_plans(masked_subjects());
}

// Texts and alignments of several sizes in a batch.
TEST(GridModels, EqualTheReferenceOnSamplesOfUnlikeSizes) {
  const auto video = [](std::int64_t frames, std::int64_t text) {
    return DimSizes{{"frames", frames}, {"patches", 3}, {"text", text}};
  };
  const auto protein = [](std::int64_t s, std::int64_t r) {
    return DimSizes{{"sequences", s}, {"residues", r}, {"i", r}, {"j", r}};
  };
  const auto with_extra = [&](std::int64_t s, std::int64_t r, std::int64_t extra) {
    DimSizes dims = protein(s, r);
    dims["extra_sequences"] = extra;
    return dims;
  };
  for (const auto& [shape, batch] : std::vector<std::pair<Model, BatchSizes>>{
           {test::with_text(test::small_stdit(2)),
            {.lengths = {12, 12, 15, 12},
             .dims = {video(4, 5), video(4, 1), video(5, 2), video(4, 5)}}},
           {test::small_extra_msa(2),
            {.lengths = {15, 8, 15}, .dims = {protein(5, 3), protein(2, 4), protein(3, 5)}}},
           {test::with_extra_blocks(test::small_evoformer(1), 1),
            {.lengths = {9, 8, 9},
             .dims = {with_extra(3, 3, 7), with_extra(2, 4, 1), with_extra(3, 3, 2)}}}}) {
    const Model model = shape;
    std::vector<Sample> samples;
    for (const DimSizes& dims : batch.dims) {
      samples.push_back(synthetic_samples(model, dims, 1).front());
    }
    const reference::Weights weights = test::random_weights(model, 5);
    const reference::Answer expected =
        reference::answer(shape, weights, {.items = items_of(samples)});
    for (const int ranks : {1, 2, 3, 4, 6}) {
      const std::unique_ptr<BatchPlanner> planner =
          batch_planner({.model = shape, .ranks = ranks, .machine = {}});
      const Plan plan = planner->plan(batch).plan.value();
      GradientRequest request{
          .model = model, .plan = &plan, .items = items_of(samples), .dtype = Dtype::float64};
      request.fill = [&](Parameters& parameters) { test::fill(parameters, weights); };
      const GradientAnswer answer = gradients(request);
      EXPECT_NEAR(answer.batch.loss, expected.loss, kNear * expected.loss);
      for (std::size_t s = 0; s < samples.size(); ++s) {
        EXPECT_NEAR(
            answer.batch.loss_sums[s],
            expected.documents[s].sum,
            kNear * expected.documents[s].sum);
      }
      const GradientError error = compare_gradients(answer.gradients, expected.gradients);
      EXPECT_LE(error.worst, kNear) << error.worst_name;
      for (int r = 0; r < ranks; ++r) {
        const RankReport predicted = predicted_of(plan, model, r, Dtype::float64);
        EXPECT_EQ(answer.ranks[idx(r)].bytes_sent, predicted.bytes_sent);
        EXPECT_EQ(answer.ranks[idx(r)].peak_bytes, predicted.peak_bytes);
      }
      std::swap(request.items[0], request.items[1]);  // of another size
      EXPECT_THROW(gradients(request), std::invalid_argument);
    }
  }
}

// By layouts that planners take across nodes, because they are faster than those that send least.
TEST(GridModels, EqualTheReferenceByFasterLayouts) {
  int others = 0;
  for (const Subject& subject : subjects()) {
    const Model model = subject.shape;
    const std::vector<Sample> samples = synthetic_samples(model, subject.dims, subject.samples);
    const reference::Weights weights = test::random_weights(model, 5);
    const std::uint64_t seed = 11;
    const reference::Answer expected = reference::answer(
        subject.shape, weights, {.items = items_of(samples), .dropout_seed = seed});
    for (const int ranks : {2, 3, 4}) {
      PlanningTask task{
          .model = model,
          .dims = subject.dims,
          .ranks = ranks,
          .ranks_per_node = 1,
          .machine = {},
          .batch_planner = "groups-of-all"};
      task.machine.cores = ranks;
      const std::vector<std::int64_t> lengths(samples.size(), model.rows(subject.dims));
      const Plan plan = batch_planner(task)->plan(lengths).plan.value();
      Documents documents = packed(lengths, ranks, model.causal);
      documents.dims = subject.dims;
      const LayoutTask layout{.model = &model, .documents = documents};
      others += plan.programs.begin()->second !=
                        runs_of(choices(layout, plan_layouts(layout, model.layers)))
                    ? 1
                    : 0;
      SCOPED_TRACE(subject.name + "\n" + to_json(plan));
      expect_equal(model, plan, samples, weights, seed, expected);
    }
  }
  EXPECT_GE(others, 10);
}

Plan grouped_plan(const Model& model, const BatchSizes& batch, int ranks, std::mt19937& random) {
  Plan plan;
  plan.model_name = model.name;
  plan.model_sha256 = model.sha256;
  plan.layers = model.layers;
  plan.cluster_name = "local-" + std::to_string(ranks);
  plan.ranks = ranks;
  plan.lengths = batch.lengths;
  do {
    plan.weight_domain = 1 + static_cast<int>(random() % static_cast<unsigned>(ranks));
  } while (ranks % plan.weight_domain != 0);
  if (random() % 3 == 0) {
    plan.messages = {.reshard_after_forward = false, .reshard_after_backward = false};
  }
  const int gather_from = gathers_from(plan);
  std::vector<std::int64_t> waiting(batch.lengths.size());
  std::iota(waiting.begin(), waiting.end(), 0);
  std::ranges::shuffle(waiting, random);
  std::vector<bool> whole;  // [layer] of a micro-batch's domain
  bool held = false;        // its groups are alike, and their MLPs hold weights
  const auto add_group = [&](std::vector<int> of, PlanMicroBatch& micro, bool idle) {
    std::ranges::sort(of);
    PlanGroup group{.ranks = of, .documents = {}, .program = {}};
    const auto take = [&](auto which) {
      group.documents.push_back(*which);
      waiting.erase(which);
    };
    if (!waiting.empty() && !idle) {
      take(waiting.begin());
      group.dims = batch.dims[idx(group.documents.front())];
      const auto alike = [&](std::int64_t d) { return batch.dims[idx(d)] == group.dims; };
      if (const auto more = std::ranges::find_if(waiting, alike);
          more != waiting.end() && model.has_dim("batch")) {
        take(more);
      }
      std::ranges::sort(group.documents);
    }
    std::vector<std::int64_t> lengths;
    for (const std::int64_t d : group.documents) {
      lengths.push_back(batch.lengths[idx(d)]);
    }
    Documents documents = packed(lengths, static_cast<int>(of.size()), model.causal);
    documents.dims = group.dims;
    if (of.size() % 2 == 0 && random() % 2 == 0) {
      documents.mesh = {2, static_cast<int>(of.size()) / 2};
    }
    group.mesh = documents.mesh;
    std::vector<LayerChoice> layers(idx(model.layers));
    for (const ModelPart& one : model.parts) {
      if (one.layer >= 0) {
        LayerChoice& layer = layers[idx(one.layer)];
        const bool holds = held && one.part->kind == "mlp";
        const bool any_verb = whole_weights(plan) || std::ssize(of) == plan.weight_domain;
        const auto verb = any_verb ? std::optional<Verb>{} : holds ? Verb::hold : Verb::gather;
        layer.push_back(random_choice(model, *one.part, documents, gather_from, random, verb));
        layer.back().with_layer = whole[idx(one.layer)];
      }
    }
    group.program = std::to_string(plan.programs.size());
    plan.programs[group.program] = runs_of(layers);
    micro.groups.push_back(std::move(group));
  };
  while (!waiting.empty()) {
    PlanMicroBatch& micro = plan.micro_batches.emplace_back();
    for (int first = 0; first < ranks; first += ranks_that_meet(plan)) {
      std::vector<int> domain(idx(ranks_that_meet(plan)));
      std::iota(domain.begin(), domain.end(), first);
      std::ranges::shuffle(domain, random);
      whole.clear();
      for (std::int64_t layer = 0; layer < model.layers; ++layer) {
        whole.push_back(random() % 2 == 0);
      }
      const std::size_t half = domain.size() / 2;
      held = domain.size() % 2 == 0 && waiting.size() > 2 && random() % 2 == 0;
      if (held) {
        std::ranges::sort(domain);
        const auto middle = domain.begin() + static_cast<std::ptrdiff_t>(half);
        add_group({domain.begin(), middle}, micro, false);
        add_group({middle, domain.end()}, micro, false);
        continue;
      }
      while (!domain.empty()) {
        // without samples ranks are idle, each by itself
        const bool idle = waiting.empty() || random() % 5 == 0;
        const auto size = idle ? 1 : static_cast<std::ptrdiff_t>(1 + random() % domain.size());
        add_group({domain.end() - size, domain.end()}, micro, idle);
        domain.erase(domain.end() - size, domain.end());
      }
    }
  }
  return plan;
}

// Samples of unlike sizes side by side, in groups of any sizes and ranks, some idle.
TEST(GridModels, EqualTheReferenceInGroups) {
  int held = 0;   // plans whose groups hold weights in a part of their domain
  int whole = 0;  // plans of groups of several ranks that leave weights whole
  const auto video = [](std::int64_t frames, std::int64_t patches, std::int64_t text) {
    return DimSizes{{"frames", frames}, {"patches", patches}, {"text", text}};
  };
  const auto protein = [](std::int64_t s, std::int64_t r) {
    return DimSizes{{"sequences", s}, {"residues", r}, {"i", r}, {"j", r}};
  };
  const auto with_extra = [&](std::int64_t s, std::int64_t r, std::int64_t extra) {
    DimSizes dims = protein(s, r);
    dims["extra_sequences"] = extra;
    return dims;
  };
  EvoformerShape multimer = test::small_evoformer(2);
  multimer.multimer = true;
  EvoformerShape openfold = test::in_openfold(test::small_evoformer(1));
  openfold.msa_dropout = 0.15;
  openfold.pair_dropout = 0.25;
  for (const auto& [model, dims] : std::vector<std::pair<Model, std::vector<DimSizes>>>{
           {test::with_text(test::small_stdit(2)),
            {video(4, 3, 5), video(1, 2, 1), video(5, 4, 2), video(4, 3, 5), video(7, 1, 3)}},
           {test::small_stdit3(1), {video(3, 4, 2), video(1, 4, 3), video(5, 4, 2)}},
           {test::small_evoformer(2), {protein(5, 3), protein(2, 4), protein(1, 1)}},
           {multimer, {protein(3, 5), protein(4, 2), protein(3, 5)}},
           {openfold, {protein(5, 3), protein(2, 4), protein(3, 3)}},
           {test::small_extra_msa(2), {protein(5, 3), protein(2, 4), protein(7, 2)}},
           {test::with_extra_blocks(test::small_evoformer(1), 1),
            {with_extra(2, 3, 5), with_extra(2, 3, 1), with_extra(3, 2, 4)}},
           {test::with_masks(test::with_extra_blocks(test::small_evoformer(1), 1)),
            {with_extra(4, 3, 5), with_extra(2, 3, 1), with_extra(3, 2, 4)}}}) {
    BatchSizes batch{.lengths = {}, .dims = dims};
    std::vector<Sample> samples;
    for (const DimSizes& of : dims) {
      batch.lengths.push_back(model.rows(of));
      samples.push_back(synthetic_samples(model, of, 1).front());
    }
    test::set_random_masks(model, samples, 3);
    const reference::Weights weights = test::random_weights(model, 5);
    const reference::Answer expected =
        reference::answer(model, weights, {.items = items_of(samples), .dropout_seed = 3});
    for (const int ranks : {1, 2, 3, 4, 5, 6, 7, 8}) {
      for (unsigned number = 0; number < 2; ++number) {
        std::mt19937 random(number * 100 + static_cast<unsigned>(ranks));
        const Plan plan = grouped_plan(model, batch, ranks, random);
        held += std::ranges::any_of(plan.micro_batches, [&](const PlanMicroBatch& micro) {
          const PlanGroup& group = micro.groups.front();
          return std::ssize(group.ranks) < plan.weight_domain &&
                 name(plan.programs.at(group.program).front().choice).find("+hold") !=
                     std::string::npos;
        });
        whole += whole_weights(plan) &&
                 std::ranges::any_of(plan.micro_batches, [](const PlanMicroBatch& micro) {
                   return micro.groups.front().ranks.size() > 1;
                 });
        SCOPED_TRACE(to_json(plan));
        EXPECT_THAT(problems(plan, {.model = model}), testing::IsEmpty());
        GradientRequest request{
            .model = model, .plan = &plan, .items = items_of(samples), .dtype = Dtype::float64};
        request.dropout_seed = 3;
        request.fill = [&](Parameters& parameters) { test::fill(parameters, weights); };
        expect_equal(request, expected, samples.size());
        if (HasFailure()) {
          return;
        }
      }
    }
  }
  EXPECT_GT(held, 5);
  EXPECT_GT(whole, 5);
}

// Several alignments in a batch, one a micro-batch: each draws its own masks, on any ranks.
TEST(GridModels, DropRowsAndColumnsOfEachSample) {
  EvoformerShape shape = test::in_openfold(test::small_evoformer(1));
  shape.msa_dropout = 0.15;
  shape.pair_dropout = 0.25;
  const Model model = shape;
  const DimSizes dims = {{"sequences", 3}, {"residues", 4}, {"i", 4}, {"j", 4}};
  const std::vector<Sample> samples(2, synthetic_samples(model, dims, 1).front());
  const reference::Weights weights = test::random_weights(model, 5);
  const reference::Answer expected =
      reference::answer(model, weights, {.items = items_of(samples), .dropout_seed = 3});
  EXPECT_NE(expected.documents[0].sum, expected.documents[1].sum);
  for (const int ranks : {1, 2, 3, 4}) {
    const std::unique_ptr<BatchPlanner> planner =
        batch_planner({.model = model, .ranks = ranks, .machine = {}});
    const Plan plan = planner->plan({.lengths = {12, 12}, .dims = {dims, dims}}).plan.value();
    GradientRequest request{
        .model = model, .plan = &plan, .items = items_of(samples), .dtype = Dtype::float64};
    request.dropout_seed = 3;
    request.fill = [&](Parameters& parameters) { test::fill(parameters, weights); };
    const GradientAnswer answer = gradients(request);
    for (std::size_t s = 0; s < samples.size(); ++s) {
      EXPECT_NEAR(
          answer.batch.loss_sums[s], expected.documents[s].sum, kNear * expected.documents[s].sum);
    }
    const GradientError error = compare_gradients(answer.gradients, expected.gradients);
    EXPECT_LE(error.worst, kNear) << error.worst_name;
  }
}

void expect_counted_in_narrow_types(const EvoformerShape& shape) {
  const Subject subject{
      .name = "many heads",
      .shape = shape,
      .dims = {{"sequences", 6}, {"residues", 24}, {"i", 24}, {"j", 24}}};
  const Model model = shape;
  const std::vector<Sample> samples = synthetic_samples(model, subject.dims, 1);
  for (const Dtype dtype : {Dtype::bfloat16, Dtype::float16}) {
    for (const int ranks : {1, 2, 3}) {
      std::mt19937 random(static_cast<unsigned>(ranks));
      Plan plan = random_plan(subject, model, ranks, random);
      PlanGroup& group = plan.micro_batches.front().groups.front();
      group.mesh.clear();
      LayerChoice layer;
      for (const ModelPart& one : model.parts) {
        if (one.layer == 0) {
          const Part& part = *one.part;
          PartChoice choice{.part = part.name, .strategy = strategies(part.kind).front().name};
          if (part.kind == kAxialAttention || part.kind == kGlobalAttention) {
            choice.strategy = "Local";
            const Stream& stream = model.stream(part.reads.front());
            for (const std::string& dim : stream.rows) {
              if (dim != part.along) {
                choice.in[stream.name] = {"S(" + dim + ")"};
              }
            }
          } else if (part.kind == "triangle" || part.kind == "outer_product") {
            choice.strategy = part.kind == "triangle" ? "channels" : "gather";
          }
          if (takes(part.kind, choice.strategy, kTilesOption)) {
            choice.options[kTilesOption] = 2;
          }
          layer.push_back(choice);
        }
      }
      plan.programs["random"] = {{.layers = model.layers, .choice = layer}};
      GradientRequest request{
          .model = model, .plan = &plan, .items = items_of(samples), .dtype = dtype};
      request.fill = [](Parameters& parameters) { parameters.initialize(3); };
      const GradientAnswer answer = gradients(request);
      for (int r = 0; r < ranks; ++r) {
        const RankReport predicted = predicted_of(plan, model, r, dtype);
        EXPECT_EQ(answer.ranks[idx(r)].peak_bytes, predicted.peak_bytes) << "rank " << r;
      }
    }
  }
}

// A bias of scores with many heads, which is what there is most of, in tiles: its gradient is added
// up in the type of sums, and rounded in place.
TEST(GridModels, HoldInNarrowTypesWhatIsCounted) {
  EvoformerShape shape = test::small_evoformer(2);
  shape.msa_heads = 24;
  expect_counted_in_narrow_types(shape);
  expect_counted_in_narrow_types(test::with_masks(shape));
}

// Most of all for its masks, of pairs and of columns.
TEST(GridModels, HoldInNarrowTypesTheMasksThatAreCounted) {
  EvoformerShape narrow = test::with_masks(test::small_extra_msa(1));
  narrow.msa_hidden = narrow.pair_hidden = 1;
  narrow.msa_heads = narrow.pair_heads = narrow.head_dim = narrow.pair_head_dim = 1;
  narrow.outer_channels = narrow.triangle_channels = narrow.transition = 1;
  expect_counted_in_narrow_types(narrow);
}

// What the loss compares with is predicted row for row, and whole on every rank.
TEST(GridModels, SayWhatTheyPredict) {
  const Subject subject = subjects().front();
  const Model model = subject.shape;
  const reference::Weights weights = test::random_weights(model, 5);
  const std::vector<Sample> samples = synthetic_samples(model, subject.dims, subject.samples);
  for (const int ranks : {1, 2, 3, 4}) {
    std::mt19937 random(static_cast<unsigned>(ranks));
    for (int number = 0; number < 4; ++number) {
      const Plan plan = random_plan(subject, model, ranks, random);
      SCOPED_TRACE(to_json(plan));
      local_backend()->run(ranks, [&](Communicators& communicators) {
        RankSession session(communicators, model, {.dtype = Dtype::float64, .gradients = false});
        test::fill(session.parameters(), weights);
        const std::vector<Item> items = items_of(samples);
        std::vector<at::Tensor> predictions;
        for (const Sample& sample : samples) {
          const HostScope host;
          predictions.push_back(at::ones_like(sample.inputs.at("velocity").tensor()));
        }
        const BatchResult result =
            session.play(plan, {.items = items, .predictions = predictions}, false);
        const HostScope host;
        for (std::size_t s = 0; s < samples.size(); ++s) {
          const at::Tensor difference = predictions[s] - samples[s].inputs.at("velocity").tensor();
          EXPECT_NEAR(difference.square().sum().item<double>(), result.loss_sums[s], kNear);
        }
        EXPECT_THROW(
            session.play(plan, {.items = items, .predictions = {predictions.data(), 1}}, false),
            std::invalid_argument);
      });
    }
  }
}

}  // namespace
}  // namespace paradyse
