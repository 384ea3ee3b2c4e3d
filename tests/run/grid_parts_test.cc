// Parts of video and protein models, by every strategy and wherever their streams lie, against
// plain autograd on one rank: what they write and every gradient, float64.
#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include "paradyse/plan/detail/index.h"
#include "paradyse/plan/strategy.h"
#include "src/plan/model/evoformer/evoformer.h"
#include "src/plan/model/stdit/stdit.h"
#include "src/run/reference/reference.h"
#include "tests/support/grid_masks.h"
#include "tests/support/grid_shapes.h"
#include "tests/support/models.h"
#include "tests/support/one_op.h"

namespace paradyse {
namespace {

constexpr double kNear = 1e-10;

struct Subject {
  std::string name;
  Model shape;
  std::vector<std::int64_t> lengths;
  std::map<std::string, std::int64_t> dims;
};

Documents documents_of(const Subject& subject, int ranks, const std::vector<int>& mesh) {
  Documents documents = packed(subject.lengths, ranks, false);
  documents.dims = subject.dims;
  documents.mesh = mesh;
  return documents;
}

// What a rank holds of a tensor whose dims stand as in `natural`.
at::Tensor piece(const at::Tensor& whole, const Layout& natural, const Layout& layout, int rank) {
  at::Tensor held = whole;
  std::vector<std::int64_t> order;
  for (const Dim& dim : layout.dims) {
    order.push_back(static_cast<std::int64_t>(natural.place(dim.name)));
  }
  held = held.permute(order);
  for (std::size_t d = 0; d < layout.dims.size(); ++d) {
    std::vector<at::Tensor> runs = {held.narrow(static_cast<std::int64_t>(d), 0, 0)};
    for (const Interval run : layout.dims[d].piece(rank)) {
      runs.push_back(held.narrow(static_cast<std::int64_t>(d), run.begin, run.size()));
    }
    held = at::cat(runs, static_cast<std::int64_t>(d));
  }
  const Extent extent = layout.extent(rank);
  return held.contiguous().view({extent.rows, extent.cols});
}

// Adds a rank's piece to where it belongs in `whole`.
void add_piece(
    const at::Tensor& mine,
    const Layout& natural,
    const Layout& layout,
    int rank,
    at::Tensor& whole) {
  const at::Tensor places =
      piece(at::arange(whole.numel(), at::kLong).view(whole.sizes()), natural, layout, rank);
  whole.view({-1}).index_add_(0, places.view({-1}), mine.reshape({-1}));
}

Layout natural_layout(const Model& model, const std::string& stream, const Documents& documents) {
  return home(model.stream(stream), documents).whole();
}

std::vector<std::int64_t> sizes_of(const Layout& layout) {
  std::vector<std::int64_t> sizes;
  for (const Dim& dim : layout.dims) {
    sizes.push_back(dim.size);
  }
  return sizes;
}

// A part's weights by stored name, and as ranks of a domain store them.
struct Weights {
  reference::Weights stored;

  Weights(const PartWeights& part, std::mt19937& random) {
    test::add_random_weights(part, "", random, stored);
  }

  // The part's run of elements, of the weights or of their gradients.
  static at::Tensor stack(const PartWeights& part, const reference::Weights& from) {
    std::vector<at::Tensor> all;
    for (const Matrix& matrix : part.matrices) {
      const at::Tensor& one = from.at(matrix.stored_as);
      all.push_back((matrix.transposed ? one.t() : one.flatten(1))
                        .narrow(0, matrix.first, matrix.rows)
                        .reshape({-1}));
    }
    return at::cat(all);
  }
};

at::Tensor piece_of_stack(const at::Tensor& stack, const PartWeights& part, int rank) {
  std::vector<at::Tensor> runs = {stack.narrow(0, 0, 0)};
  for (const Interval run : part.stack().dims.front().piece(rank)) {
    runs.push_back(stack.narrow(0, run.begin, run.size()));
  }
  const at::Tensor mine = at::cat(runs);
  return mine;
}

// One part, one choice, so many ranks.
struct Case {
  const Subject& subject;
  const Model& model;
  std::shared_ptr<const Part> part;
  PartChoice choice;
  int ranks;
  std::vector<int> mesh = {};
};

// False: the strategy cannot run so, and says why.
bool expect_as_reference(const Case& c) {
  const Documents documents = documents_of(c.subject, c.ranks, c.mesh);
  Task task{.part = c.part, .choice = {}, .streams = {}, .documents = documents, .domain = c.ranks};
  ScheduledPart built;
  try {
    task.streams = streams_of(c.model, *c.part, c.choice, documents);
    built = scheduled_part(task, c.choice);
  } catch (const std::invalid_argument& error) {
    EXPECT_STRNE(error.what(), "");
    return false;
  }
  const Program& program = built.program();
  SCOPED_TRACE(
      testing::Message() << c.subject.name << " " << c.part->name << " by " << name({c.choice})
                         << " on " << c.ranks << " ranks");

  std::mt19937 random(static_cast<unsigned>(7 + c.ranks));
  const PartWeights part_weights = c.part->weights(c.ranks);
  Weights weights(part_weights, random);
  std::map<std::string, at::Tensor> streams;
  for (const std::string& stream : c.part->reads) {
    streams[stream] =
        test::normal_numbers(sizes_of(natural_layout(c.model, stream, documents)), random);
  }
  Sample sample;  // of a part with a mask
  const std::string mask = c.part->shape.mask;
  if (!mask.empty()) {
    const auto of = std::ranges::find(c.model.streams, mask, &Stream::mask);
    std::vector<std::int64_t> sizes = sizes_of(natural_layout(c.model, of->name, documents));
    sizes.back() = 1;
    sample.inputs[mask] = test::random_mask(sizes, random);
  }
  const std::string written = c.part->writes.front();
  const Layout natural = natural_layout(c.model, written, documents);
  const at::Tensor grad_out = test::normal_numbers(sizes_of(natural), random);

  // the judge
  at::Tensor expected;
  {
    const at::AutoGradMode on(true);
    for (auto* all : {&weights.stored, &streams}) {
      for (auto& [of, tensor] : *all) {
        tensor.set_requires_grad(true);
      }
    }
    std::map<std::string, at::Tensor> given = streams;
    for (const auto& [name, input] : sample.inputs) {
      given[name] = input.whole();
    }
    expected = reference::part(c.subject.shape, c.part->name, weights.stored, given);
    (expected * grad_out).sum().backward();
  }
  reference::Weights weight_grads;
  for (auto& [of, tensor] : weights.stored) {
    weight_grads[of] = tensor.grad();
    tensor = tensor.detach();
  }
  std::map<std::string, at::Tensor> stream_grads;
  for (auto& [of, tensor] : streams) {
    stream_grads[of] = tensor.grad();
    tensor = tensor.detach();
  }
  expected = expected.detach();

  struct Result {
    at::Tensor out;
    std::map<std::string, at::Tensor> streams;
    at::Tensor stack;
    std::vector<at::Tensor> vectors;
  };
  std::vector<Result> results(idx(c.ranks));
  const at::Tensor stack = Weights::stack(part_weights, weights.stored);
  const ValueId out = program.writes.front().value;
  const Layout& of_out = program.values[idx(out)].layout;
  // The gradient of copies is a sum: each rank that has one gives a term of it, none like
  // another's.
  at::Tensor weights_of_holders = at::zeros_like(grad_out);
  for (int rank = 0; rank < c.ranks; ++rank) {
    const Extent extent = of_out.extent(rank);
    add_piece(
        at::full({extent.rows, extent.cols}, 1.0 + rank, at::kDouble),
        natural,
        of_out,
        rank,
        weights_of_holders);
  }
  run_local_ranks(c.ranks, {}, [&](Communicators& communicators) {
    const c10::InferenceMode no_autograd;
    const int rank = communicators.world().rank();
    test::Local local;
    for (const Port& read : program.reads) {
      local.inputs[read.value] = piece(
          streams.at(read.stream),
          natural_layout(c.model, read.stream, documents),
          program.values[idx(read.value)].layout,
          rank);
    }
    local.stack = piece_of_stack(stack, part_weights, rank);
    for (const Vector& vector : part_weights.vectors) {
      local.vectors.push_back(
          test::stored_elements(vector, weights.stored.at(vector.name)).clone());
    }
    if (!mask.empty()) {
      local.batch.samples = {sample};
      local.batch.inputs = c.model.inputs();
    }
    test::OpRun run(program, communicators.world(), local);
    Result& result = results[idx(rank)];
    result.out = run.value(out).clone();
    run.gradient(out) = piece(grad_out * (1.0 + rank) / weights_of_holders, natural, of_out, rank);
    run.backward();
    for (const Port& read : program.reads) {
      ASSERT_TRUE(run.gradient(read.value).defined())
          << c.part->name << " by " << name({c.choice}) << ": " << read.stream << " on rank "
          << rank << " of " << c.ranks;
      result.streams[read.stream] = run.gradient(read.value).clone();
    }
    result.stack = run.parameters().stack_grad.clone();
    for (const at::Tensor& vector : run.parameters().vector_grads) {
      result.vectors.push_back(vector.clone());
    }
  });

  const auto near = [](const at::Tensor& a, const at::Tensor& b, const std::string& what) {
    ASSERT_EQ(a.sizes(), b.sizes()) << what;
    if (a.numel() > 0) {
      const double scale = std::max(1.0, b.abs().max().item<double>());
      EXPECT_LE((a - b).abs().max().item<double>(), kNear * scale) << what;
    }
  };
  const at::Tensor stack_grad = Weights::stack(part_weights, weight_grads);
  std::map<std::string, at::Tensor> sums;
  for (int rank = 0; rank < c.ranks; ++rank) {
    const Result& result = results[idx(rank)];
    near(
        result.out,
        piece(expected, natural, of_out, rank),
        "what rank " + std::to_string(rank) + " writes");
    near(result.stack, piece_of_stack(stack_grad, part_weights, rank), "weights");
    for (const Port& read : program.reads) {
      at::Tensor& sum = sums[read.stream];
      if (!sum.defined()) {
        sum = at::zeros_like(streams.at(read.stream));
      }
      add_piece(
          result.streams.at(read.stream),
          natural_layout(c.model, read.stream, documents),
          program.values[idx(read.value)].layout,
          rank,
          sum);
    }
  }
  for (const auto& [stream, sum] : sums) {
    near(sum, stream_grads.at(stream), "the gradient of " + stream);
  }
  for (std::size_t v = 0; v < part_weights.vectors.size(); ++v) {
    at::Tensor sum = at::zeros_like(results.front().vectors[v]);
    for (const Result& result : results) {
      sum += result.vectors[v];
    }
    const Vector& vector = part_weights.vectors[v];
    near(sum, test::stored_elements(vector, weight_grads.at(vector.name)), vector.name);
  }
  return true;
}

// Dims that few ranks divide, two samples, heads that share keys.
std::vector<Subject> subjects() {
  return {
      {.name = "stdit",
       .shape = test::small_stdit(1),
       .lengths = {15, 15},
       .dims = {{"frames", 5}, {"patches", 3}}},
      {.name = "stdit with text",
       .shape = test::with_text(test::small_stdit(1)),
       .lengths = {6, 6, 6},
       .dims = {{"frames", 3}, {"patches", 2}, {"text", 4}}},
      {.name = "STDiT3",
       .shape = test::small_stdit3(1),
       .lengths = {15, 15},
       .dims = {{"frames", 5}, {"patches", 3}, {"text", 4}}},
      {.name = "evoformer",
       .shape = test::small_evoformer(1),
       .lengths = {20},
       .dims = {{"sequences", 5}, {"residues", 4}, {"i", 4}, {"j", 4}}},
      {.name = "extra MSA",
       .shape = test::small_extra_msa(1),
       .lengths = {20},
       .dims = {{"sequences", 5}, {"residues", 4}, {"i", 4}, {"j", 4}}},
      {.name = "evoformer of OpenFold",
       .shape = test::in_openfold(test::small_evoformer(1)),
       .lengths = {6},
       .dims = {{"sequences", 2}, {"residues", 3}, {"i", 3}, {"j", 3}}},
      {.name = "OpenFold with extra blocks",
       .shape = test::with_extra_blocks(test::small_evoformer(1), 1),
       .lengths = {6},
       .dims = {{"sequences", 2}, {"extra_sequences", 5}, {"residues", 3}, {"i", 3}, {"j", 3}}},
      {.name = "extra MSA of one sequence",
       .shape = test::small_extra_msa(1),
       .lengths = {3},
       .dims = {{"sequences", 1}, {"residues", 3}, {"i", 3}, {"j", 3}}}};
}

// Of these only the parts run that read a mask.
std::vector<Subject> masked_subjects() {
  return {
      {.name = "evoformer",
       .shape = test::with_masks(test::small_evoformer(1)),
       .lengths = {20},
       .dims = {{"sequences", 5}, {"residues", 4}, {"i", 4}, {"j", 4}}},
      {.name = "OpenFold with extra blocks",
       .shape = test::with_masks(test::with_extra_blocks(test::small_evoformer(1), 1)),
       .lengths = {6},
       .dims = {{"sequences", 2}, {"extra_sequences", 5}, {"residues", 3}, {"i", 3}, {"j", 3}}},
      {.name = "extra MSA of one sequence",
       .shape = test::with_masks(test::small_extra_msa(1)),
       .lengths = {3},
       .dims = {{"sequences", 1}, {"residues", 3}, {"i", 3}, {"j", 3}}}};
}

// Each stream that the part reads at each of its dims and whole, on every axis.
std::vector<std::map<std::string, Placement>> all_places(
    const Model& model, const Part& part, std::size_t axes) {
  std::vector<std::map<std::string, Placement>> all = {{}};
  for (const std::string& name : part.reads) {
    const Stream& stream = model.stream(name);
    if (stream.home.empty()) {
      continue;
    }
    std::vector<std::map<std::string, Placement>> more;
    for (const auto& places : all) {
      std::vector<Placement> options = {{}};
      for (std::size_t axis = 0; axis < axes; ++axis) {
        std::vector<Placement> longer;
        for (const Placement& before : options) {
          longer.push_back(before);
          longer.back().emplace_back("R");
          for (const std::string& dim : stream.rows) {
            longer.push_back(before);
            longer.back().push_back("S(" + dim + ")");  // a dim twice is refused
          }
        }
        options = std::move(longer);
      }
      for (const Placement& option : options) {
        more.push_back(places);
        more.back()[name] = option;
      }
    }
    all = std::move(more);
  }
  return all;
}

TEST(GridParts, RunInTilesWhereAnAxisIsABatch) {
  std::set<std::pair<std::string, std::string>> tiled;
  for (const char* kind :
       {"axial_attention",
        "cross_attention",
        "global_attention",
        "mlp",
        "outer_product",
        "triangle"}) {
    for (const Strategy& strategy : strategies(kind)) {
      if (takes(kind, strategy.name, kTilesOption)) {
        tiled.insert({kind, strategy.name});
      }
    }
  }
  EXPECT_EQ(
      tiled,
      (std::set<std::pair<std::string, std::string>>{
          {"axial_attention", "Local"},
          {"axial_attention", "Branch"},
          {"global_attention", "Local"},
          {"mlp", "hold"},
          {"mlp", "gather"},
          {"mlp", "pass"},
          {"outer_product", "gather"},
          {"outer_product", "scatter"}}));
}

void expect_as_reference(const std::vector<Subject>& subjects, bool with_masks) {
  for (const Subject& subject : subjects) {
    const Model model = Model(subject.shape);
    for (const ModelPart& model_part : model.parts) {
      const Part& part = *model_part.part;
      if (model_part.layer < 0 || part.shape.mask.empty() == with_masks) {
        continue;  // shown in whole models, or of other subjects
      }
      std::map<std::string, int> ran;  // by strategy
      for (const auto& [ranks, mesh] : std::vector<std::pair<int, std::vector<int>>>{
               {1, {}}, {2, {}}, {3, {}}, {4, {}}, {6, {}}, {4, {2, 2}}, {6, {2, 3}}}) {
        for (const auto& places : all_places(model, part, std::max<std::size_t>(1, mesh.size()))) {
          for (const Strategy& strategy : strategies(part.kind)) {
            const Case c{
                .subject = subject,
                .model = model,
                .part = model_part.part,
                .choice = {.part = part.name, .strategy = strategy.name, .in = places},
                .ranks = ranks,
                .mesh = mesh};
            const bool runs = expect_as_reference(c);
            ran[strategy.name] += runs ? 1 : 0;
            if (runs && mesh.empty() && takes(part.kind, strategy.name, kTilesOption)) {
              Case in_tiles = c;
              in_tiles.choice.options[kTilesOption] = ranks % 2 == 0 ? 2 : ranks == 3 ? 4 : 3;
              EXPECT_TRUE(expect_as_reference(in_tiles));
            }
            if (testing::Test::HasFailure()) {
              return;
            }
          }
        }
      }
      for (const Strategy& strategy : strategies(part.kind)) {
        const bool refuses = !part.shape.pair.empty() && part.kind == "axial_attention" &&
                             (strategy.name == "MegatronTS" || strategy.name == "MegatronCZ");
        EXPECT_EQ(ran[strategy.name] > 0, !refuses) << part.name << " by " << strategy.name;
      }
    }
  }
}

TEST(GridParts, EqualTheReferenceByEveryStrategyAndPlace) {
  expect_as_reference(subjects(), /*with_masks=*/false);
}

TEST(GridParts, EqualTheReferenceWithMasksOfLetters) {
  expect_as_reference(masked_subjects(), /*with_masks=*/true);
}

}  // namespace
}  // namespace paradyse
