// Ops on the device, forward and adjoint, against the same ops on the host in float64, which
// adjoint_test.cc holds against differences: the kernels that a step goes through, in every type.
#include <cmath>

#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

#include "paradyse/plan/detail/op_traits.h"
#include "src/plan/model/text/text_shape.h"
#include "src/run/device/device.h"
#include "tests/device/device.h"
#include "tests/support/models.h"
#include "tests/support/one_op.h"

namespace paradyse {
namespace {

using test::add_ops;
using test::add_value;
using test::large_sizes;
using test::Local;
using test::off;
using test::one_op;
using test::op_of;
using test::random_numbers;
using test::rounding;
using test::sums_of;

std::vector<at::ScalarType> all_types() {
  return {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf};
}

struct OpCase {
  std::string name;
  Program program;
  TextShape model = test::llama({});
  Local local;                        // in float64
  std::vector<ValueId> outputs = {};  // whose gradients are given
  std::vector<ValueId> inputs = {};   // whose gradients are looked at
  double loss_scale = 1;
  // What a result may be off, in roundings of the run's type: one where each number is rounded
  // once, more where what is rounded is computed with again.
  double roundings = 2;
  // The gradient of the weights is summed in the type of sums from what is given: nothing in it is
  // rounded to a narrow type.
  bool exact_weights = false;
  std::vector<at::ScalarType> types = all_types();
};

// float32 and float64 sum as many numbers as a row or column has, in any order.
double sum_roundings(at::ScalarType type) { return type == at::kDouble ? 500 : 60; }

struct Results {
  std::map<ValueId, at::Tensor> values;
  std::map<ValueId, at::Tensor> gradients;
  std::vector<at::Tensor> weights;
  std::vector<double> losses;
};

// What a run is given: the case's numbers and the gradients of its outputs.
struct Given {
  Local local;
  std::map<ValueId, at::Tensor> gradients;
};

// In float64; drawn once for all types.
Given given_to(const OpCase& c) {
  Given given{.local = c.local, .gradients = {}};
  for (const ValueId out : c.outputs) {
    const Extent extent = c.program.values[static_cast<std::size_t>(out)].layout.extent(0);
    given.gradients[out] = random_numbers({extent.rows, extent.cols}, 77);
  }
  return given;
}

Given converted(Given given, at::ScalarType type, c10::Device device) {
  const auto convert = [&](at::Tensor& tensor) { tensor = tensor.to(device, type); };
  for (auto& [id, tensor] : given.local.inputs) {
    convert(tensor);
  }
  if (given.local.stack.defined()) {
    convert(given.local.stack);
  }
  for (at::Tensor& vector : given.local.vectors) {
    convert(vector);
  }
  for (auto& [id, tensor] : given.gradients) {
    convert(tensor);
  }
  return given;
}

// From these numbers, converted to the run's type.
Results results_of(
    const OpCase& c, Communicator& group, const Given& numbers, const test::Types& types) {
  const Given given = converted(numbers, types.activation, types.device);
  test::OpRun run(c.program, c.model, group, given.local, c.loss_scale, types);
  Results results;
  for (const auto& [out, gradient] : given.gradients) {
    results.values[out] = run.value(out).clone();
    run.gradient(out) = gradient.clone();  // ops may work in place
  }
  run.backward();
  for (const ValueId in : c.inputs) {
    results.gradients[in] = run.gradient(in).clone();
  }
  if (given.local.stack.defined()) {
    results.weights.push_back(run.parameters().stack_grad.clone());
  }
  for (const at::Tensor& gradient : run.parameters().vector_grads) {
    results.weights.push_back(gradient.clone());
  }
  results.losses = run.losses().losses;
  return results;
}

void expect_as_in_float64(const OpCase& c) {
  run_local_ranks(1, {}, [&](Communicators& communicators) {
    const c10::InferenceMode no_autograd;
    Communicator& world = communicators.world();
    const c10::Device host(at::kCPU);
    const Given drawn = given_to(c);
    for (const at::ScalarType type : c.types) {
      SCOPED_TRACE(c.name + " in " + c10::toString(type));
      const Given rounded = converted(drawn, type, host);
      const Results expected = results_of(c, world, rounded, {});
      const DeviceScope streams(test::device());
      const Results results = results_of(c, world, rounded, {type, sums_of(type), test::device()});

      const double sums = sum_roundings(sums_of(type)) * rounding(sums_of(type));
      const double tolerance = std::max(sums, c.roundings * rounding(type));
      for (const auto& [id, value] : expected.values) {
        EXPECT_LE(off(results.values.at(id), value), tolerance) << "value " << id;
      }
      for (const auto& [id, gradient] : expected.gradients) {
        EXPECT_LE(off(results.gradients.at(id), gradient), tolerance) << "gradient of " << id;
      }
      for (std::size_t i = 0; i < expected.weights.size(); ++i) {
        EXPECT_LE(off(results.weights[i], expected.weights[i]), c.exact_weights ? sums : tolerance)
            << "gradient of weights " << i;
      }
      for (std::size_t d = 0; d < expected.losses.size(); ++d) {
        EXPECT_NEAR(results.losses[d], expected.losses[d], tolerance * std::abs(expected.losses[d]))
            << "loss of document " << d;
      }
    }
  });
}

struct Size {
  std::int64_t rows;
  std::int64_t cols;
};

// Widths that vectors of 16 bytes divide and others; more rows than a grid has blocks.
std::vector<Size> sizes() {
  std::vector<Size> all = {{1, 8}, {3, 33}, {70, 130}, {257, 64}, {5, 2048}};
  if (large_sizes()) {
    all.insert(all.end(), {{1024, 2048}, {70000, 64}, {100, 8192}, {129, 5003}});
  }
  return all;
}

// The host has the most work with many rows: they come in one wide type and a narrow one.
std::vector<at::ScalarType> types_of(Size size) {
  return size.rows > 10000 ? std::vector{at::kFloat, at::kBFloat16} : all_types();
}

Documents one_rank(std::vector<std::int64_t> lengths, bool causal = true) {
  return packed(std::move(lengths), 1, causal);
}

MicroBatch batch_of(const Documents& tokens, std::int64_t vocab) {
  const auto documents = test::random_documents(tokens.lengths, vocab, 3);
  return micro_batch(tokens, items_of(documents), 0);
}

// x goes through the norm and round it, so that its gradient is added to one that is there.
OpCase norm_case(Size size, bool layer_norm, bool around) {
  const auto [T, H] = size;
  OpCase c{
      .name = (layer_norm ? "layer norm " : "norm ") + std::to_string(T) + " x " +
              std::to_string(H) + (around ? " and a sum" : ""),
      .program = one_op(one_rank({T})),
      .local = {},
      .types = types_of(size)};
  const ValueId x = add_value(c.program, "x", matrix("tokens", {T, H}));
  const ValueId y = add_value(c.program, "y", matrix("tokens", {T, H}));
  Op norm = op_of(OpKind::norm, {x}, {y}, {x});
  c.local.vectors = {1 + 0.1 * random_numbers({H}, 2)};
  if (layer_norm) {
    norm.vectors = {0, 2};
    c.local.vectors.push_back(random_numbers({H}, 3));
  }
  add_ops(c.program, {norm});
  c.local.inputs = {{x, random_numbers({T, H}, 1)}};
  c.outputs = {y};
  c.inputs = {x};
  if (around) {
    const ValueId sum = add_value(c.program, "sum", matrix("tokens", {T, H}));
    Op add = op_of(OpKind::add, {x, y}, {sum});
    add.in_place = true;
    add.apart = true;
    add_ops(c.program, {add});
    c.outputs = {sum};
    c.roundings = 4;
  }
  return c;
}

TEST(Ops, Norm) {
  for (const Size size : sizes()) {
    for (const bool around : {false, true}) {
      expect_as_in_float64(norm_case(size, false, around));
    }
  }
}

TEST(Ops, LayerNorm) {
  for (const Size size : sizes()) {
    expect_as_in_float64(norm_case(size, true, false));
  }
}

// Columns of queries, keys and values of all heads.
struct Cores {
  std::int64_t heads;
  std::int64_t key_heads;
  std::int64_t width;
  std::vector<std::int64_t> lengths;
  bool causal = true;

  [[nodiscard]] std::int64_t columns() const { return (heads + 2 * key_heads) * width; }
  [[nodiscard]] TextShape model() const {
    TextShape model = test::llama({.heads = heads, .kv_heads = key_heads, .head_dim = width});
    model.causal = causal;
    return model;
  }
  [[nodiscard]] std::string name() const {
    std::string text = std::to_string(heads) + "/" + std::to_string(key_heads) + " heads of " +
                       std::to_string(width) + (causal ? "" : ", not causal") + ", documents of";
    for (const std::int64_t n : lengths) {
      text += " " + std::to_string(n);
    }
    return text;
  }
};

TEST(Ops, RopeAndItsNorm) {
  for (const Cores& cores :
       {Cores{4, 2, 8, {5, 1, 30}},
        Cores{3, 1, 10, {17}},
        Cores{16, 8, 128, {large_sizes() ? std::int64_t{1000} : 40, 9}}}) {
    for (const bool normed : {false, true}) {
      OpCase c{
          .name = "rope, " + cores.name(),
          .program = one_op(one_rank(cores.lengths), cores.width),
          .model = cores.model(),
          .local = {}};
      const std::int64_t T = c.program.documents.tokens();
      const std::vector<Heads> heads = all_heads(Model(c.model).typical_part(), 1);
      const Layout laid = matrix("tokens", {T, cores.columns()});
      const ValueId x = add_value(c.program, "qkv", laid);
      ValueId y = x;
      if (normed) {
        y = add_value(c.program, "normed", laid);
        Op norm = op_of(OpKind::qk_norm, {x}, {y}, {x});
        norm.vectors = {0, 2};
        norm.heads = heads;
        add_ops(c.program, {norm});
        c.local.vectors = {
            1 + 0.1 * random_numbers({cores.width}, 5), 1 + 0.1 * random_numbers({cores.width}, 6)};
        c.roundings = 4;
      }
      const ValueId z = add_value(c.program, "rotated", laid);
      Op rope = op_of(OpKind::rope, {y}, {z});
      rope.in_place = true;
      rope.heads = heads;
      add_ops(c.program, {rope});
      c.local.inputs = {{x, random_numbers({T, cores.columns()}, 1)}};
      c.local.batch = batch_of(c.program.documents, 30);
      c.outputs = {z};
      c.inputs = {x};
      expect_as_in_float64(c);
    }
  }
}

// Far from zero, too, where exponentials would overflow.
TEST(Ops, Swiglu) {
  for (const Size size : sizes()) {
    const auto [T, F] = size;
    for (const double height : {1.0, 30.0}) {
      OpCase c{
          .name = "swiglu " + std::to_string(T) + " x " + std::to_string(F),
          .program = one_op(one_rank({T})),
          .local = {},
          .types = types_of(size)};
      const ValueId h = add_value(c.program, "h", matrix("tokens", {T, 2 * F}));
      const ValueId a = add_value(c.program, "a", matrix("tokens", {T, F}));
      add_ops(c.program, {op_of(OpKind::swiglu, {h}, {a}, {h})});
      c.local.inputs = {{h, height * random_numbers({T, 2 * F}, 1)}};
      c.outputs = {a};
      c.inputs = {h};
      c.roundings = 3;
      expect_as_in_float64(c);
    }
  }
}

// The same elements are dropped on every device.
TEST(Ops, Dropout) {
  OpCase c{.name = "dropout", .program = one_op(one_rank({90, 37})), .local = {}};
  const ValueId y = add_value(c.program, "y", matrix("tokens", {127, 65}));
  const ValueId yd = add_value(c.program, "yd", matrix("tokens", {127, 65}));
  add_ops(c.program, {op_of(OpKind::dropout, {y}, {yd})});
  c.program.ops[0].probability = 0.4;
  c.program.ops[0].in_place = true;
  c.local.inputs = {{y, random_numbers({127, 65}, 1)}};
  c.local.batch = batch_of(c.program.documents, 30);
  c.local.batch.dropout_seed = 0xFEDCBA9876543210;
  c.outputs = {yd};
  c.inputs = {y};
  expect_as_in_float64(c);
}

// Of narrow factors into sums in float32: nothing on the way is rounded to the narrow type.
TEST(Ops, ProductsWithHeldWeights) {
  for (const std::int64_t tokens :
       {std::int64_t{1},
        std::int64_t{70},
        large_sizes() ? std::int64_t{5000} : std::int64_t{300}}) {
    const std::int64_t in = 96;
    const std::int64_t rows = 120;  // of the stack; the last 24 are not read
    OpCase c{
        .name = "linear of " + std::to_string(tokens) + " tokens",
        .program = one_op(one_rank({tokens})),
        .local = {},
        .exact_weights = true};
    const ValueId w = add_value(c.program, "w", matrix("rows", {rows, in}));
    c.program.values.back().over_domain = true;
    const ValueId x = add_value(c.program, "x", matrix("tokens", {tokens, in}));
    const ValueId y = add_value(c.program, "y", matrix("tokens", {tokens, rows - 24}));
    add_ops(c.program, {op_of(OpKind::hold_weights, {}, {w})});
    Op linear = op_of(OpKind::linear, {x, w}, {y}, {x, w});
    linear.terms = {
        {{.first = 56 * in, .rows = 40, .cols = in}, {.first = 0, .rows = 56, .cols = in}}};
    append(c.program, linear);
    c.local.inputs = {{x, random_numbers({tokens, in}, 1)}};
    c.local.stack = random_numbers({rows, in}, 2);
    c.outputs = {y};
    c.inputs = {x};
    expect_as_in_float64(c);
  }
}

std::vector<Redistribution> tiles_of(std::int64_t vocab, std::int64_t cols, std::int64_t tiles) {
  std::vector<Redistribution> all;
  for (std::int64_t i = 0; i < tiles; ++i) {
    const Cuts rows(1, {{vocab * i / tiles, vocab * (i + 1) / tiles}});
    const Layout stored = matrix("rows", {vocab, cols}, even_cuts(vocab, 1));
    all.emplace_back(stored, stored.cut("rows", rows), 1);
  }
  return all;
}

TEST(Ops, EmbeddingAddsUpWhatIsReadTwice) {
  OpCase c{.name = "embed", .program = one_op(one_rank({300, 41})), .local = {}};
  const ValueId x = add_value(c.program, "x", matrix("tokens", {341, 24}));
  Op embed = op_of(OpKind::embed, {}, {x});
  embed.copies = tiles_of(50, 24, 2);
  add_ops(c.program, {embed});
  c.local.stack = random_numbers({50, 24}, 1);
  c.local.batch = batch_of(c.program.documents, 50);
  c.outputs = {x};
  expect_as_in_float64(c);
}

// With the whole vocabulary in one tile and in three; labels that do not count.
TEST(Ops, CrossEntropy) {
  struct Head {
    std::int64_t vocab;
    std::int64_t hidden;
    std::vector<std::int64_t> lengths;
  };
  std::vector<Head> heads = {{7, 8, {4, 1, 3}}, {1003, 64, {200, 57}}};
  if (large_sizes()) {
    heads.push_back({32000, 64, {250, 60}});
  }
  for (const Head& head : heads) {
    for (const std::int64_t tiles : {1, 3}) {
      OpCase c{
          .name = "cross_entropy over " + std::to_string(head.vocab) + " ids, tiles " +
                  std::to_string(tiles),
          .program = one_op(one_rank(head.lengths)),
          .local = {},
          .loss_scale = 0.37,
          .roundings = 4};
      const std::int64_t T = c.program.documents.tokens();
      const Layout tokens = matrix("tokens", {T, head.hidden});
      const ValueId x = add_value(c.program, "xn", tokens);
      const ValueId d = add_value(c.program, "d", tokens);
      Op loss = op_of(OpKind::cross_entropy, {x}, {d}, {d});
      loss.copies = tiles_of(head.vocab, head.hidden, tiles);
      add_ops(c.program, {loss});
      c.local.inputs = {{x, random_numbers({T, head.hidden}, 1)}};
      c.local.stack = 0.3 * random_numbers({head.vocab, head.hidden}, 2);
      c.local.batch = batch_of(c.program.documents, head.vocab);
      for (std::size_t t = 0; t < c.local.batch.labels.size(); t += 5) {
        c.local.batch.labels[t] = -1;
      }
      c.inputs = {x};
      expect_as_in_float64(c);
    }
  }
}

void expect_attention(
    const Cores& cores,
    double dropout = 0,
    const std::vector<at::ScalarType>& types = all_types()) {
  OpCase c{
      .name = "attention, " + cores.name(),
      .program = one_op(one_rank(cores.lengths, cores.causal), cores.width),
      .model = cores.model(),
      .local = {},
      .roundings = 6,
      .types = types};
  const std::int64_t T = c.program.documents.tokens();
  const ValueId qkv = add_value(c.program, "qkv", matrix("tokens", {T, cores.columns()}));
  const ValueId o = add_value(c.program, "o", matrix("tokens", {T, cores.heads * cores.width}));
  const ValueId l =
      add_value(c.program, "l", matrix("tokens", {T, cores.heads}), Element::statistic);
  Op attention = op_of(OpKind::attention, {qkv}, {o, l}, {qkv, o, l});
  attention.heads = all_heads(Model(c.model).typical_part(), 1);
  attention.probability = dropout;
  add_ops(c.program, {attention});
  c.local.inputs = {{qkv, random_numbers({T, cores.columns()}, 1)}};
  c.local.batch = batch_of(c.program.documents, 30);
  c.local.batch.dropout_seed = 0xFEDCBA9876543210;
  c.outputs = {o};
  c.inputs = {qkv};
  expect_as_in_float64(c);
}

// Short documents among longer ones, in one pack.
TEST(Ops, AttentionOfPacks) {
  for (const bool causal : {true, false}) {
    expect_attention({4, 2, 8, {1, 70, 2, 33}, causal});
    expect_attention({6, 2, 64, {130, 5, 200}, causal});
    expect_attention({3, 1, 5, {40, 7}, causal});  // no kernel of torch's takes this width
  }
}

// The same probabilities are dropped on every device.
TEST(Ops, AttentionWithDropout) {
  for (const bool causal : {true, false}) {
    expect_attention({4, 2, 8, {1, 70, 2, 33}, causal}, 0.3);
    expect_attention({2, 1, 64, {300, 5}, causal}, 0.1);
  }
}

// Documents so long that they are computed one by one, and not of a length that is a multiple of
// anything, between others.
TEST(Ops, AttentionOfLongDocuments) {
  const std::vector<at::ScalarType> types = {at::kFloat, at::kBFloat16};
  if (large_sizes()) {
    expect_attention({2, 1, 128, {4100, 300}}, 0, types);
    expect_attention({2, 1, 64, {77, 4097, 12}}, 0, types);
    expect_attention({1, 1, 64, {4200}, false}, 0, types);
  } else {
    expect_attention({2, 1, 16, {30, 533, 12}}, 0, types);
  }
}

}  // namespace
}  // namespace paradyse
