// Every op's adjoint against central differences in float64, and the kernels' narrower types
// against float64.
#include <cmath>

#include <gtest/gtest.h>

#include "paradyse/strategy.h"
#include "src/run/ops/kernels.h"
#include "tests/support/models.h"
#include "tests/support/one_op.h"
#include "tests/support/placements.h"

namespace paradyse {
namespace {

using test::add_value;
using test::AdjointCase;
using test::expect_adjoint;
using test::Local;
using test::one_op;
using test::op_of;

// Fixed, generic numbers around zero; another rank or salt gives others.
at::Tensor numbers(std::vector<std::int64_t> sizes, int salt) {
  std::int64_t count = 1;
  for (const std::int64_t size : sizes) {
    count *= size;
  }
  const at::Tensor i = at::arange(count, at::kDouble);
  return (at::sin(i * 1.3 + salt) + 0.5 * at::cos(i * i * 0.7 + 3 * salt)).view(sizes);
}

at::Tensor numbers_of(Extent extent, int salt) { return numbers({extent.rows, extent.cols}, salt); }

MicroBatch batch_of(const TokenLayout& tokens, int rank, std::int64_t vocab) {
  const auto documents = test::random_documents(tokens.lengths, vocab, 3);
  std::vector<const std::vector<std::int32_t>*> pointers;
  for (const auto& document : documents) {
    pointers.push_back(&document);
  }
  return micro_batch(tokens, pointers, rank);
}

TokenLayout one_rank(std::vector<std::int64_t> lengths, bool causal = true) {
  return token_layout(std::move(lengths), 1, causal);
}

TEST(Adjoint, Norm) {
  for (const bool accumulate : {false, true}) {
    AdjointCase c{.name = "norm", .program = one_op(one_rank({5})), .model = test::llama({})};
    c.model.norm_eps = 0.1;  // large enough to matter
    const ValueId x = add_value(c.program, "x", {5, 7}, replicate());
    const ValueId y = add_value(c.program, "y", {5, 7}, replicate());
    c.program.ops = {op_of(OpKind::norm, {x}, {y}, {x})};
    c.local = [=](int) {
      return Local{.inputs = {{x, numbers({5, 7}, 1)}}, .vectors = {numbers({7}, 2)}};
    };
    c.outputs = {y};
    c.inputs = {x};
    c.accumulating = accumulate ? std::vector<ValueId>{x} : std::vector<ValueId>{};
    expect_adjoint(c, 1);
  }
}

// Terms out of the held stack, in another order than the stack's, plain and transposed.
TEST(Adjoint, LinearWithHeldWeights) {
  for (const bool transposed : {false, true}) {
    for (const bool accumulate : {false, true}) {
      AdjointCase c{
          .name = transposed ? "transposed linear" : "linear",
          .program = one_op(one_rank({3})),
          .model = test::llama({})};
      const std::int64_t in = transposed ? 4 : 5;
      const std::int64_t out = transposed ? 5 : 6;
      const ValueId w = add_value(c.program, "w", {9, 5}, replicate());
      c.program.values.back().over_domain = true;
      const ValueId x = add_value(c.program, "x", {3, in}, replicate());
      const ValueId y = add_value(c.program, "y", {3, out}, replicate());
      c.program.ops = {op_of(OpKind::hold_weights, {}, {w})};
      Op linear = op_of(OpKind::linear, {x, w}, {y}, {x, w});
      linear.transposed = transposed;
      linear.terms = {
          transposed ? std::vector<Term>{{.rows = {2, 6}}}
                     : std::vector<Term>{{.rows = {5, 9}}, {.rows = {2, 2}}, {.rows = {0, 2}}}};
      c.program.ops.push_back(linear);
      c.local = [=](int) {
        return Local{.inputs = {{x, numbers({3, in}, 1)}}, .stack = numbers({9, 5}, 2)};
      };
      c.outputs = {y};
      c.inputs = {x};
      c.accumulating = accumulate ? std::vector<ValueId>{x} : std::vector<ValueId>{};
      expect_adjoint(c, 1);
    }
  }
}

// Weights gathered from the domain: two linears read parts of them (and leave some unread), ranks
// read different rows, some of them none; gradients go back where the rows came from.
TEST(Adjoint, GatheredWeights) {
  for (const int p : {1, 2, 3}) {
    for (const bool covered : {true, false}) {
      AdjointCase c{
          .name = covered ? "gather" : "gather, rows left over",
          .program = one_op(token_layout({7}, p, true)),
          .model = test::llama({})};
      const Cuts stored = even_cuts(10, p);
      const Cuts wanted(static_cast<std::size_t>(p), {{1, 9}});
      const ValueId w = add_value(c.program, "w", {10, 3}, shard(0, wanted));
      c.program.values.back().over_domain = true;
      const Placement tokens = shard(0, c.program.tokens.cuts);
      const ValueId x = add_value(c.program, "x", {7, 3}, tokens);
      const ValueId y = add_value(c.program, "y", {7, 4}, tokens);
      const ValueId z = add_value(c.program, "z", {7, 3}, tokens);
      Op gather = op_of(OpKind::gather_weights, {}, {w});
      gather.transfers = {transfer({10, 3}, shard(0, stored), shard(0, wanted), p)};
      Op in = op_of(OpKind::linear, {x, w}, {y}, {x, w});
      in.terms.assign(static_cast<std::size_t>(p), {{.rows = {0, 2}}, {.rows = {6, 8}}});
      Op out = op_of(OpKind::linear, {y, w}, {z}, {y, w});
      out.transposed = true;
      out.terms.assign(static_cast<std::size_t>(p), {{.rows = {2, 6}}});
      c.program.ops = {gather, in, out};
      if (!covered) {
        c.program.ops.pop_back();
      }
      c.local = [=](int rank) {
        return Local{
            .inputs = {{x, numbers_of(local_extent({7, 3}, tokens, rank), rank)}},
            .stack = numbers_of(local_extent({10, 3}, shard(0, stored), rank), 7 + rank)};
      };
      c.outputs = {covered ? z : y};
      c.inputs = {x};
      expect_adjoint(c, p);
    }
  }
}

TEST(Adjoint, Rope) {
  for (const int p : {1, 2, 3}) {
    for (const bool by_tokens : {true, false}) {
      ModelShape model = test::llama({.heads = 4, .kv_heads = 2, .head_dim = 4});
      model.rope_theta = 5.0;
      AdjointCase c{
          .name = by_tokens ? "rope by tokens" : "rope by heads",
          .program = one_op(token_layout({5, 1, 3}, p, true), 4),
          .model = model};
      const std::vector<Heads> heads = by_tokens ? all_heads(model, p) : own_heads(model, p);
      Placement placement = shard(0, c.program.tokens.cuts);
      if (!by_tokens) {
        Cuts columns;
        for (const Heads& h : heads) {
          Piece piece;
          append(piece, {h.query.begin * 4, h.query.end * 4});
          append(piece, {16 + h.key.begin * 4, 16 + h.key.end * 4});
          append(piece, {24 + h.key.begin * 4, 24 + h.key.end * 4});
          columns.push_back(piece);
        }
        placement = shard(1, columns);
      }
      const ValueId x = add_value(c.program, "qkv", {9, 32}, placement);
      const ValueId y = add_value(c.program, "rotated", {9, 32}, placement);
      Op rope = op_of(OpKind::rope, {x}, {y});
      rope.in_place = true;
      rope.heads = heads;
      c.program.ops = {rope};
      const TokenLayout tokens = c.program.tokens;
      c.local = [=](int rank) {
        return Local{
            .inputs = {{x, numbers_of(local_extent({9, 32}, placement, rank), rank)}},
            .batch = batch_of(tokens, rank, 30)};
      };
      c.outputs = {y};
      c.inputs = {x};
      expect_adjoint(c, p, 40);
    }
  }
}

// The log-sum-exp is an output that the adjoint reads, not one that has a gradient.
TEST(Adjoint, Attention) {
  struct Shape {
    std::int64_t heads;
    std::int64_t kv_heads;
    std::vector<std::int64_t> lengths;
  };
  for (const Shape& shape :
       {Shape{2, 2, {6}},
        Shape{6, 2, {5}},
        Shape{6, 2, {3, 1, 4}},
        Shape{5, 1, {2, 3}},
        Shape{6, 3, {4, 2}},
        Shape{8, 2, {3, 2}}}) {
    for (const bool causal : {true, false}) {
      for (const int p : {1, 2, 3, 4}) {  // heads begin and end in the middle of a group
        const ModelShape model =
            test::llama({.heads = shape.heads, .kv_heads = shape.kv_heads, .head_dim = 2});
        AdjointCase c{
            .name = "attention of " + std::to_string(shape.heads) + "/" +
                    std::to_string(shape.kv_heads) + " heads" + (causal ? "" : ", not causal"),
            .program = one_op(token_layout(shape.lengths, p, causal), 2),
            .model = model};
        const std::int64_t T = c.program.tokens.tokens();
        const std::vector<Heads> heads = own_heads(model, p);
        Cuts in;
        Cuts out;
        Cuts statistics;
        const std::int64_t keys = shape.heads * 2;
        const std::int64_t values = keys + shape.kv_heads * 2;
        for (const Heads& h : heads) {
          Piece piece;
          append(piece, {h.query.begin * 2, h.query.end * 2});
          append(piece, {keys + h.key.begin * 2, keys + h.key.end * 2});
          append(piece, {values + h.key.begin * 2, values + h.key.end * 2});
          in.push_back(piece);
          piece.clear();
          append(piece, {h.query.begin * 2, h.query.end * 2});
          out.push_back(piece);
          piece.clear();
          append(piece, h.query);
          statistics.push_back(piece);
        }
        const Extent whole{T, (shape.heads + 2 * shape.kv_heads) * 2};
        const ValueId qkv = add_value(c.program, "qkv", whole, shard(1, in));
        const ValueId o = add_value(c.program, "o", {T, keys}, shard(1, out));
        const ValueId l =
            add_value(c.program, "l", {T, shape.heads}, shard(1, statistics), Element::statistic);
        Op attention = op_of(OpKind::attention, {qkv}, {o, l}, {qkv, o, l});
        attention.heads = heads;
        c.program.ops = {attention};
        c.local = [=](int rank) {
          return Local{
              .inputs = {{qkv, numbers_of(local_extent(whole, shard(1, in), rank), rank)}}};
        };
        c.outputs = {o};
        c.inputs = {qkv};
        expect_adjoint(c, p, p == 1 ? 150 : 40);
      }
    }
  }
}

TEST(Adjoint, Swiglu) {
  AdjointCase c{.name = "swiglu", .program = one_op(one_rank({4})), .model = test::llama({})};
  const ValueId h = add_value(c.program, "h", {4, 10}, replicate());
  const ValueId a = add_value(c.program, "a", {4, 5}, replicate());
  c.program.ops = {op_of(OpKind::swiglu, {h}, {a}, {h})};
  c.local = [=](int) { return Local{.inputs = {{h, 3 * numbers({4, 10}, 1)}}}; };
  c.outputs = {a};
  c.inputs = {h};
  expect_adjoint(c, 1);
}

// A residual: x goes round the norm, so its gradient is added to after the sum's was handed on.
TEST(Adjoint, AddAroundANorm) {
  AdjointCase c{.name = "add", .program = one_op(one_rank({3})), .model = test::llama({})};
  const ValueId x = add_value(c.program, "x", {3, 4}, replicate());
  const ValueId y = add_value(c.program, "y", {3, 4}, replicate());
  const ValueId out = add_value(c.program, "out", {3, 4}, replicate());
  c.program.ops = {op_of(OpKind::norm, {x}, {y}, {x}), op_of(OpKind::add, {x, y}, {out})};
  c.program.ops[1].in_place = true;
  c.local = [=](int) {
    return Local{.inputs = {{x, numbers({3, 4}, 1)}}, .vectors = {numbers({4}, 2)}};
  };
  c.outputs = {out};
  c.inputs = {x};
  expect_adjoint(c, 1);
}

std::vector<Transfer> vocabulary_tiles(std::int64_t vocab, std::int64_t cols, int ranks) {
  std::vector<Transfer> tiles;
  for (std::int64_t begin = 0; begin < vocab; begin += kVocabularyTile) {
    const Cuts rows(
        static_cast<std::size_t>(ranks), {{begin, std::min(vocab, begin + kVocabularyTile)}});
    tiles.push_back(
        transfer({vocab, cols}, shard(0, even_cuts(vocab, ranks)), shard(0, rows), ranks));
  }
  return tiles;
}

TEST(Adjoint, Embed) {
  for (const int p : {1, 2, 3}) {
    for (const std::int64_t vocab : {std::int64_t{11}, kVocabularyTile + 3}) {
      AdjointCase c{
          .name = "embed, vocabulary " + std::to_string(vocab),
          .program = one_op(token_layout({6, 1, 8}, p, true)),
          .model = test::llama({})};
      const Placement tokens = shard(0, c.program.tokens.cuts);
      const ValueId x = add_value(c.program, "x", {15, 3}, tokens);
      Op embed = op_of(OpKind::embed, {}, {x});
      embed.transfers = vocabulary_tiles(vocab, 3, p);
      c.program.ops = {embed};
      const TokenLayout layout = c.program.tokens;
      c.local = [=](int rank) {
        Local local{
            .stack =
                numbers_of(local_extent({vocab, 3}, shard(0, even_cuts(vocab, p)), rank), rank),
            .batch = batch_of(layout, rank, vocab)};
        if (!local.batch.ids.empty()) {  // the ends of tiles, and one id twice
          local.batch.ids.front() = static_cast<std::int32_t>(vocab - 1);
          local.batch.ids.back() = static_cast<std::int32_t>(vocab - 1);
          local.batch.ids[local.batch.ids.size() / 2] = 0;
        }
        return local;
      };
      c.outputs = {x};
      expect_adjoint(c, p, 60);
    }
  }
}

TEST(Adjoint, CrossEntropy) {
  struct Size {
    std::int64_t vocab;
    std::int64_t hidden;
    std::vector<std::int64_t> lengths;
  };
  // one tile; several token tiles in one vocabulary tile (262144 / 8000 = 32 tokens); three
  // vocabulary tiles
  for (const Size& size :
       {Size{7, 5, {4, 1, 3}},
        Size{8000, 2, {50, 20}},
        Size{2 * kVocabularyTile + 5, 2, {30, 5}}}) {
    for (const int p : {1, 2, 3}) {
      AdjointCase c{
          .name = "cross_entropy, vocabulary " + std::to_string(size.vocab),
          .program = one_op(token_layout(size.lengths, p, true)),
          .model = test::llama({}),
          .loss_scale = 0.37};
      const std::int64_t T = c.program.tokens.tokens();
      const Placement tokens = shard(0, c.program.tokens.cuts);
      const ValueId x = add_value(c.program, "xn", {T, size.hidden}, tokens);
      const ValueId d = add_value(c.program, "d", {T, size.hidden}, tokens);
      Op loss = op_of(OpKind::cross_entropy, {x}, {d}, {d});
      loss.transfers = vocabulary_tiles(size.vocab, size.hidden, p);
      c.program.ops = {loss};
      const TokenLayout layout = c.program.tokens;
      c.local = [=](int rank) {
        Local local{
            .inputs = {{x, numbers_of(local_extent({T, size.hidden}, tokens, rank), rank)}},
            .stack =
                2 * numbers_of(
                        local_extent(
                            {size.vocab, size.hidden}, shard(0, even_cuts(size.vocab, p)), rank),
                        5 + rank),
            .batch = batch_of(layout, rank, size.vocab)};
        for (std::int32_t& label : local.batch.labels) {  // the last id of the last tile
          if (label >= 0 && label % 3 == 0) {
            label = static_cast<std::int32_t>(size.vocab - 1);
          }
        }
        return local;
      };
      c.inputs = {x};
      expect_adjoint(c, p, size.vocab > 100 ? 12 : 60);
    }
  }
}

// Large logits: the running maximum keeps the sums finite, whichever tile it is in.
TEST(CrossEntropy, LargeLogitsStayFinite) {
  for (const std::int64_t vocab : {std::int64_t{50}, kVocabularyTile + 50}) {
    run_local_ranks(1, {}, [&](Communicators& communicators) {
      const c10::InferenceMode no_autograd;
      Program program = one_op(one_rank({6}));
      const ValueId x = add_value(program, "xn", {6, 2}, replicate());
      const ValueId d = add_value(program, "d", {6, 2}, replicate());
      Op loss = op_of(OpKind::cross_entropy, {x}, {d}, {d});
      loss.transfers = vocabulary_tiles(vocab, 2, 1);
      program.ops = {loss};
      const Local local{
          .inputs = {{x, 100 * numbers({6, 2}, 1)}},
          .stack = 30 * numbers({vocab, 2}, 2),
          .batch = batch_of(program.tokens, 0, vocab)};
      test::OpRun run(program, test::llama({}), communicators.world(), local);
      const at::Tensor logits = at::mm(local.inputs.at(x), local.stack.t());
      double expected = 0;
      for (std::int64_t t = 0; t < 5; ++t) {
        const std::int64_t label = local.batch.labels[static_cast<std::size_t>(t)];
        expected += (at::logsumexp(logits[t], 0) - logits[t][label]).item<double>();
      }
      EXPECT_NEAR(run.result().loss_sums[0], expected, 1e-9 * expected);
      EXPECT_TRUE(run.value(d).isfinite().all().item<bool>());
      EXPECT_TRUE(run.parameters().stack_grad.isfinite().all().item<bool>());
      EXPECT_EQ(run.result().counts[0], 5);
    });
  }
}

// --- float32 and bfloat16 against float64 --------------------------------------------------------

double worst(const at::Tensor& got, const at::Tensor& expected) {
  return ((got.to(at::kDouble) - expected).norm() / expected.norm()).item<double>();
}

struct Width {
  at::ScalarType type;
  at::ScalarType statistic;
  double tolerance;
};
constexpr Width kWidths[] = {{at::kFloat, at::kFloat, 5e-7}, {at::kBFloat16, at::kFloat, 5e-3}};

TEST(Kernels, NarrowTypesFollowFloat64) {
  for (const Width& width : kWidths) {
    for (const std::int64_t H : {1, 8, 33, 256}) {
      const at::Tensor x = numbers({9, H}, 1).to(width.type).to(at::kDouble);
      const at::Tensor w = numbers({H}, 2).to(width.type).to(at::kDouble);
      const at::Tensor g = numbers({9, H}, 3).to(width.type).to(at::kDouble);
      const at::Tensor start = numbers({9, H}, 4).to(width.type).to(at::kDouble);
      const at::Tensor y = at::empty_like(x);
      kernels::rms_norm(x, w, 1e-5, y);
      const at::Tensor root = (x.square().mean(1, true) + 1e-5).rsqrt();
      EXPECT_LT(worst(y, x * root * w), 1e-13);
      const at::Tensor narrow = at::empty({9, H}, width.type);
      kernels::rms_norm(x.to(width.type), w.to(width.type), 1e-5, narrow);
      EXPECT_LT(worst(narrow, y), width.tolerance);
      for (const bool accumulate : {false, true}) {
        const at::Tensor grad = start.clone();
        const at::Tensor grad_w = at::ones({H}, at::kDouble);
        kernels::rms_norm_adjoint(x, w, 1e-5, g, grad, accumulate, grad_w);
        const at::Tensor wg = w * g;
        at::Tensor expected = root * (wg - x * root.square() * (wg * x).mean(1, true));
        expected = accumulate ? expected + start : expected;
        // the exact gradient is (nearly) zero for a row of one element
        const double floor = H == 1 ? 1e-4 : 0;
        EXPECT_LT(worst(grad, expected), 1e-12 + floor);
        EXPECT_LT(worst(grad_w, 1 + (g * x * root).sum(0)), 1e-13);
        const at::Tensor narrow_grad = start.to(width.type);
        const at::Tensor narrow_w = at::ones({H}, width.statistic);
        kernels::rms_norm_adjoint(
            x.to(width.type),
            w.to(width.type),
            1e-5,
            g.to(width.type),
            narrow_grad,
            accumulate,
            narrow_w);
        if (H > 1) {
          EXPECT_LT(worst(narrow_grad, expected), width.tolerance) << H << accumulate;
        }
        EXPECT_LT(worst(narrow_w, grad_w), 5e-7);  // summed in float32 from the same narrow values
      }
    }
  }
}

TEST(Kernels, RotationsAreInverseAndKeepLengths) {
  ModelShape model = test::llama({.head_dim = 8});
  const std::vector<std::int64_t> positions = {0, 16000, 3, 7, 7};
  const std::int64_t rows = 5;
  for (const Width& width : kWidths) {
    const at::Tensor x = numbers({rows, 40}, 1).to(width.type).to(at::kDouble);
    const RopeTable table = rope_table(model, 16001, at::kDouble);
    const at::Tensor turned = x.clone();
    kernels::rotate(turned, 3, 8, table.cosines, table.sines, positions, false);
    EXPECT_TRUE(at::equal(turned.narrow(1, 24, 16), x.narrow(1, 24, 16)));  // only 3 of 5 heads
    EXPECT_TRUE(at::equal(turned[0], x[0]));
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t i = 0; i < 4; ++i) {  // as complex numbers
        const double angle = static_cast<double>(positions[static_cast<std::size_t>(r)]) *
                             std::pow(model.rope_theta, -2.0 * static_cast<double>(i) / 8);
        const double a = x[r][8 + i].item<double>();
        const double b = x[r][12 + i].item<double>();
        EXPECT_NEAR(
            turned[r][8 + i].item<double>(), a * std::cos(angle) - b * std::sin(angle), 1e-10);
        EXPECT_NEAR(
            turned[r][12 + i].item<double>(), b * std::cos(angle) + a * std::sin(angle), 1e-10);
      }
    }
    const RopeTable narrow_table = rope_table(model, 16001, width.statistic);
    const at::Tensor narrow = x.to(width.type).clone();
    kernels::rotate(narrow, 3, 8, narrow_table.cosines, narrow_table.sines, positions, false);
    EXPECT_LT(worst(narrow, turned), width.tolerance);
    kernels::rotate(turned, 3, 8, table.cosines, table.sines, positions, true);
    EXPECT_LT(worst(turned, x), 1e-14);
  }
}

}  // namespace
}  // namespace paradyse
