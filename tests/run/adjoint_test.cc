// Every op's adjoint against central differences in float64, and the kernels' narrower types
// against float64.
#include <cmath>
#include <numeric>
#include <set>

#include <ATen/core/PhiloxRNGEngine.h>
#include <gtest/gtest.h>

#include "paradyse/plan/detail/op_traits.h"
#include "paradyse/plan/strategy.h"
#include "src/plan/model/text/text_shape.h"
#include "src/run/kernels/kernels.h"
#include "tests/support/layouts.h"
#include "tests/support/models.h"
#include "tests/support/one_op.h"

namespace paradyse {
namespace {

using test::add_ops;
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

MicroBatch batch_of(const Documents& tokens, int rank, std::int64_t vocab) {
  const auto documents = test::random_documents(tokens.lengths, vocab, 3);
  return micro_batch(tokens, items_of(documents), rank);
}

Documents one_rank(std::vector<std::int64_t> lengths, bool causal = true) {
  return packed(std::move(lengths), 1, causal);
}

TEST(Adjoint, Norm) {
  for (const bool accumulate : {false, true}) {
    AdjointCase c{.name = "norm", .program = one_op(one_rank({5})), .model = test::llama({})};
    c.model.norm_eps = 0.1;  // large enough to matter
    c.model.norm_offset = accumulate ? 1 : 0;
    const ValueId x = add_value(c.program, "x", matrix("tokens", {5, 7}));
    const ValueId y = add_value(c.program, "y", matrix("tokens", {5, 7}));
    add_ops(c.program, {op_of(OpKind::norm, {x}, {y}, {x})});
    c.local = [=](int) {
      return Local{.inputs = {{x, numbers({5, 7}, 1)}}, .vectors = {numbers({7}, 2)}};
    };
    c.outputs = {y};
    c.inputs = {x};
    c.accumulating = accumulate ? std::vector<ValueId>{x} : std::vector<ValueId>{};
    expect_adjoint(c, 1);
  }
}

TEST(Adjoint, LayerNorm) {
  for (const bool accumulate : {false, true}) {
    AdjointCase c{.name = "layer norm", .program = one_op(one_rank({5})), .model = test::llama({})};
    c.model.norm_eps = 0.1;
    const ValueId x = add_value(c.program, "x", matrix("tokens", {5, 7}));
    const ValueId y = add_value(c.program, "y", matrix("tokens", {5, 7}));
    add_ops(c.program, {op_of(OpKind::norm, {x}, {y}, {x})});
    c.program.ops[0].vectors = {1, 3};  // the second and third of the part's
    c.local = [=](int) {
      return Local{
          .inputs = {{x, numbers({5, 7}, 1)}},
          .vectors = {numbers({4}, 2), numbers({7}, 3), numbers({7}, 4)}};
    };
    c.outputs = {y};
    c.inputs = {x};
    c.accumulating = accumulate ? std::vector<ValueId>{x} : std::vector<ValueId>{};
    expect_adjoint(c, 1);
  }
}

// Three vectors side by side; ranks have all columns of some tokens, or some columns of all, among
// them the end of one vector and the beginning of the next, and none at all.
TEST(Adjoint, Bias) {
  for (const int p : {1, 2, 3}) {
    for (const bool by_tokens : {true, false}) {
      AdjointCase c{
          .name = by_tokens ? "bias by tokens" : "bias by columns",
          .program = one_op(packed({4}, p, true)),
          .model = test::llama({})};
      Cuts columns(static_cast<std::size_t>(p));
      append(columns[0], {1, 4});
      append(columns[0], {6, 9});
      if (p > 1) {
        append(columns[1], {0, 1});
        append(columns[1], {4, 10});
      }
      const Layout laid = by_tokens ? matrix("tokens", {4, 10}, c.program.documents.cuts)
                                    : matrix("tokens", {4, 10}, {}, columns);
      const ValueId y = add_value(c.program, "y", laid);
      const ValueId out = add_value(c.program, "yb", laid);
      Op bias = op_of(OpKind::bias, {y}, {out});
      bias.in_place = true;
      bias.vectors = {1, 4};
      bias.scale = by_tokens ? 1 : 0.3;
      bias.entries = by_tokens ? Cuts(static_cast<std::size_t>(p), {{0, 10}}) : columns;
      add_ops(c.program, {bias});
      c.local = [=](int rank) {
        return Local{
            .inputs = {{y, numbers_of(laid.extent(rank), rank)}},
            .vectors = {
                numbers({2}, rank),
                numbers({3}, 10 + rank),
                numbers({5}, 20 + rank),
                numbers({2}, 30 + rank)}};
      };
      c.outputs = {out};
      c.inputs = {y};
      expect_adjoint(c, p);
    }
  }
}

TEST(Adjoint, QkNorm) {
  for (const int p : {1, 2, 3}) {
    TextShape model = test::llama({.heads = 3, .kv_heads = 1, .head_dim = 4});
    model.norm_eps = 0.1;
    model.norm_offset = p - 1;
    AdjointCase c{.name = "qk_norm", .program = one_op(packed({3, 2}, p, true), 4), .model = model};
    const std::vector<Heads> heads = own_heads(Model(model).typical_part(), p);
    Cuts columns;
    for (const Heads& h : heads) {
      Piece piece;
      append(piece, {h.query.begin * 4, h.query.end * 4});
      append(piece, {12 + h.key.begin * 4, 12 + h.key.end * 4});
      append(piece, {16 + h.key.begin * 4, 16 + h.key.end * 4});
      columns.push_back(piece);
    }
    const Layout laid = matrix("tokens", {5, 20}, {}, columns);
    const ValueId x = add_value(c.program, "qkv", laid);
    const ValueId y = add_value(c.program, "normed", laid);
    Op norm = op_of(OpKind::qk_norm, {x}, {y}, {x});
    norm.vectors = {0, 2};
    norm.heads = heads;
    add_ops(c.program, {norm});
    c.local = [=](int rank) {
      return Local{
          .inputs = {{x, numbers_of(laid.extent(rank), rank)}},
          .vectors = {numbers({4}, 5 + rank), numbers({4}, 9 + rank)}};
    };
    c.outputs = {y};
    c.inputs = {x};
    expect_adjoint(c, p, 60);
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
      const ValueId w = add_value(c.program, "w", matrix("rows", {9, 5}));
      c.program.values.back().over_domain = true;
      const ValueId x = add_value(c.program, "x", matrix("tokens", {3, in}));
      const ValueId y = add_value(c.program, "y", matrix("tokens", {3, out}));
      add_ops(c.program, {op_of(OpKind::hold_weights, {}, {w})});
      Op linear = op_of(OpKind::linear, {x, w}, {y}, {x, w});
      linear.transposed = transposed;
      linear.terms = {
          transposed ? std::vector<Term>{{.first = 2 * 5, .rows = 4, .cols = 5}}
                     : std::vector<Term>{
                           {.first = 5 * 5, .rows = 4, .cols = 5},
                           {.first = 2 * 5, .rows = 0, .cols = 5},
                           {.first = 0, .rows = 2, .cols = 5}}};
      append(c.program, linear);
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
          .program = one_op(packed({7}, p, true)),
          .model = test::llama({})};
      const Cuts stored = even_cuts(10, p);
      const Cuts wanted(static_cast<std::size_t>(p), {{1, 9}});
      const ValueId w = add_value(c.program, "w", matrix("rows", {10, 3}, wanted));
      c.program.values.back().over_domain = true;
      const Layout tokens = matrix("tokens", {7, 3}, c.program.documents.cuts);
      const ValueId x = add_value(c.program, "x", tokens);
      const ValueId y = add_value(c.program, "y", tokens.with_columns(4));
      const ValueId z = add_value(c.program, "z", tokens);
      Op gather = op_of(OpKind::gather_weights, {}, {w});
      gather.copies = {
          Redistribution(matrix("rows", {10, 3}, stored), matrix("rows", {10, 3}, wanted), p)};
      Op in = op_of(OpKind::linear, {x, w}, {y}, {x, w});
      in.terms.assign(
          static_cast<std::size_t>(p),
          {{.first = 0, .rows = 2, .cols = 3}, {.first = 6 * 3, .rows = 2, .cols = 3}});
      Op out = op_of(OpKind::linear, {y, w}, {z}, {y, w});
      out.transposed = true;
      out.terms.assign(static_cast<std::size_t>(p), {{.first = 2 * 3, .rows = 4, .cols = 3}});
      add_ops(c.program, {gather, in, out});
      if (!covered) {
        c.program.ops.pop_back();
      }
      c.local = [=](int rank) {
        return Local{
            .inputs = {{x, numbers_of(tokens.extent(rank), rank)}},
            .stack = numbers_of(matrix("rows", {10, 3}, stored).extent(rank), 7 + rank)};
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
      TextShape model = test::llama({.heads = 4, .kv_heads = 2, .head_dim = 4});
      model.rope_theta = 5.0;
      AdjointCase c{
          .name = by_tokens ? "rope by tokens" : "rope by heads",
          .program = one_op(packed({5, 1, 3}, p, true), 4),
          .model = model};
      const std::vector<Heads> heads = by_tokens ? all_heads(Model(model).typical_part(), p)
                                                 : own_heads(Model(model).typical_part(), p);
      Layout laid = matrix("tokens", {9, 32}, c.program.documents.cuts);
      if (!by_tokens) {
        Cuts columns;
        for (const Heads& h : heads) {
          Piece piece;
          append(piece, {h.query.begin * 4, h.query.end * 4});
          append(piece, {16 + h.key.begin * 4, 16 + h.key.end * 4});
          append(piece, {24 + h.key.begin * 4, 24 + h.key.end * 4});
          columns.push_back(piece);
        }
        laid = matrix("tokens", {9, 32}, {}, columns);
      }
      const ValueId x = add_value(c.program, "qkv", laid);
      const ValueId y = add_value(c.program, "rotated", laid);
      Op rope = op_of(OpKind::rope, {x}, {y});
      rope.in_place = true;
      rope.heads = heads;
      add_ops(c.program, {rope});
      const Documents tokens = c.program.documents;
      c.local = [=](int rank) {
        return Local{
            .inputs = {{x, numbers_of(laid.extent(rank), rank)}},
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
        const TextShape model =
            test::llama({.heads = shape.heads, .kv_heads = shape.kv_heads, .head_dim = 2});
        AdjointCase c{
            .name = "attention of " + std::to_string(shape.heads) + "/" +
                    std::to_string(shape.kv_heads) + " heads" + (causal ? "" : ", not causal"),
            .program = one_op(packed(shape.lengths, p, causal), 2),
            .model = model};
        const std::int64_t T = c.program.documents.tokens();
        const std::vector<Heads> heads = own_heads(Model(model).typical_part(), p);
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
        const ValueId qkv = add_value(c.program, "qkv", matrix("tokens", whole, {}, in));
        const ValueId o = add_value(c.program, "o", matrix("tokens", {T, keys}, {}, out));
        const ValueId l = add_value(
            c.program, "l", matrix("tokens", {T, shape.heads}, {}, statistics), Element::statistic);
        Op attention = op_of(OpKind::attention, {qkv}, {o, l}, {qkv, o, l});
        attention.heads = heads;
        add_ops(c.program, {attention});
        c.local = [=](int rank) {
          return Local{
              .inputs = {{qkv, numbers_of(matrix("tokens", whole, {}, in).extent(rank), rank)}}};
        };
        c.outputs = {o};
        c.inputs = {qkv};
        expect_adjoint(c, p, p == 1 ? 150 : 40);
      }
    }
  }
}

// What moves may be sent for ahead, and its adjoint may end later than it begins, as that of
// products may.
TEST(Table, BeginsWhatTheScheduleBegins) {
  for (int i = 0; i < static_cast<int>(OpKind::count); ++i) {
    const OpImplementation& run = implementation(static_cast<OpKind>(i));
    EXPECT_NE(run.forward, nullptr);
    EXPECT_NE(run.adjoint, nullptr);
    const OpTraits& of_kind = traits(run.kind);
    const bool moves = of_kind.only_moves && of_kind.meets != OpTraits::Meets::nobody;
    EXPECT_EQ(run.issue != nullptr, moves) << to_string(run.kind);
    EXPECT_EQ(run.begin_adjoint != nullptr, moves || of_kind.operands_first) << to_string(run.kind);
    EXPECT_EQ(run.end_adjoint != nullptr, run.begin_adjoint != nullptr) << to_string(run.kind);
  }
}

// The cores of attention as strategies write them: queries and keys apart, keys and values going
// round a ring of all ranks or of some, by head groups, all probabilities kept.
TEST(Adjoint, AttentionOfEveryStrategy) {
  struct Shape {
    std::int64_t heads;
    std::int64_t kv_heads;
    std::vector<std::int64_t> lengths;
  };
  std::set<OpKind> seen;
  for (const Shape& shape : {Shape{4, 2, {3, 1, 5}}, Shape{5, 1, {7}}, Shape{3, 3, {2, 4}}}) {
    for (const bool causal : {true, false}) {
      for (const int p : {1, 2, 3, 4}) {
        TextShape model =
            test::llama({.heads = shape.heads, .kv_heads = shape.kv_heads, .head_dim = 2});
        model.causal = causal;
        for (const Strategy& strategy : strategies("attention")) {
          if (strategy.one_rank && p > 1) {
            continue;
          }
          const ScheduledPart part = scheduled_part(
              task_of(text_model(model), "attention", packed(shape.lengths, p, causal), p),
              {.part = "attention", .strategy = strategy.name});
          for (Op op : part.program().ops) {
            if (!traits(op.kind).core) {
              continue;
            }
            seen.insert(op.kind);
            op.probability = p % 2 == 0 ? 0 : 0.4;
            AdjointCase c{
                .name = strategy.name + " " + std::to_string(shape.heads) + "/" +
                        std::to_string(shape.kv_heads) + (causal ? "" : ", not causal"),
                .program = part.program(),
                .model = model};
            c.program.ops.clear();  // its operands become inputs
            for (Value& value : c.program.values) {
              value.maker = -1;
            }
            append(c.program, op);
            c.outputs = {op.out[0]};
            c.inputs = op.in;
            c.local = [&](int rank) {
              Local local;
              for (const ValueId in : op.in) {
                const Value& value = c.program.values[static_cast<std::size_t>(in)];
                local.inputs[in] = numbers_of(value.layout.extent(rank), 3 * in + rank);
              }
              local.batch = batch_of(c.program.documents, rank, 30);
              return local;
            };
            expect_adjoint(c, p, 8);
          }
        }
      }
    }
  }
  EXPECT_EQ(seen.size(), 3);  // in one place, in a ring, with probabilities
}

TEST(Adjoint, Swiglu) {
  for (const Activation function :
       {Activation::swiglu, Activation::geglu, Activation::geglu_exact}) {
    AdjointCase c{.name = "swiglu", .program = one_op(one_rank({4})), .model = test::llama({})};
    c.model.activation = function;
    const ValueId h = add_value(c.program, "h", matrix("tokens", {4, 10}));
    const ValueId a = add_value(c.program, "a", matrix("tokens", {4, 5}));
    add_ops(c.program, {op_of(OpKind::swiglu, {h}, {a}, {h})});
    c.local = [=](int) { return Local{.inputs = {{h, 3 * numbers({4, 10}, 1)}}}; };
    c.outputs = {a};
    c.inputs = {h};
    expect_adjoint(c, 1);
  }
}

TEST(Adjoint, ActivationFunctions) {
  for (const auto function :
       {Activation::gelu, Activation::gelu_tanh, Activation::relu, Activation::silu}) {
    AdjointCase c{
        .name = "activation " + std::to_string(static_cast<int>(function)),
        .program = one_op(one_rank({4})),
        .model = test::llama({})};
    c.model.activation = function;
    const ValueId h = add_value(c.program, "h", matrix("tokens", {4, 10}));
    const ValueId a = add_value(c.program, "a", matrix("tokens", {4, 10}));
    add_ops(c.program, {op_of(OpKind::activation, {h}, {a}, {h})});
    c.local = [=](int) { return Local{.inputs = {{h, 3 * numbers({4, 10}, 1)}}}; };
    c.outputs = {a};
    c.inputs = {h};
    expect_adjoint(c, 1);
  }
}

// The adjoint draws the same mask, and leaves the gradient that the residual sum shares alone.
TEST(Adjoint, DropoutBesideAResidual) {
  for (const int p : {1, 3}) {
    AdjointCase c{
        .name = "dropout", .program = one_op(packed({5, 2}, p, true)), .model = test::llama({})};
    const Layout tokens = matrix("tokens", {7, 9}, c.program.documents.cuts);
    const ValueId x = add_value(c.program, "x", tokens);
    const ValueId y = add_value(c.program, "y", tokens);
    const ValueId yd = add_value(c.program, "yd", tokens);
    const ValueId out = add_value(c.program, "out", tokens);
    add_ops(
        c.program,
        {op_of(OpKind::norm, {x}, {y}, {x}),
         op_of(OpKind::dropout, {y}, {yd}),
         op_of(OpKind::add, {x, yd}, {out})});
    c.program.ops[1].probability = 0.4;
    c.program.ops[1].in_place = c.program.ops[2].in_place = true;
    const Documents layout = c.program.documents;
    c.local = [=](int rank) {
      return Local{
          .inputs = {{x, numbers_of(tokens.extent(rank), rank)}},
          .vectors = {numbers({9}, 2)},
          .batch = batch_of(layout, rank, 30)};
    };
    c.outputs = {out};
    c.inputs = {x};
    expect_adjoint(c, p);
  }
}

// A residual: x goes round the norm, so its gradient is added to after the sum's was handed on.
TEST(Adjoint, AddAroundANorm) {
  AdjointCase c{.name = "add", .program = one_op(one_rank({3})), .model = test::llama({})};
  const ValueId x = add_value(c.program, "x", matrix("tokens", {3, 4}));
  const ValueId y = add_value(c.program, "y", matrix("tokens", {3, 4}));
  const ValueId out = add_value(c.program, "out", matrix("tokens", {3, 4}));
  add_ops(c.program, {op_of(OpKind::norm, {x}, {y}, {x}), op_of(OpKind::add, {x, y}, {out})});
  c.program.ops[1].in_place = true;
  c.local = [=](int) {
    return Local{.inputs = {{x, numbers({3, 4}, 1)}}, .vectors = {numbers({4}, 2)}};
  };
  c.outputs = {out};
  c.inputs = {x};
  expect_adjoint(c, 1);
}

std::vector<Redistribution> vocabulary_tiles(std::int64_t vocab, std::int64_t cols, int ranks) {
  std::vector<Redistribution> tiles;
  for (std::int64_t begin = 0; begin < vocab; begin += Tiles().vocabulary) {
    const Cuts rows(
        static_cast<std::size_t>(ranks), {{begin, std::min(vocab, begin + Tiles().vocabulary)}});
    const Layout stored = matrix("rows", {vocab, cols}, even_cuts(vocab, ranks));
    tiles.emplace_back(stored, stored.cut("rows", rows), ranks);
  }
  return tiles;
}

TEST(Adjoint, Embed) {
  for (const int p : {1, 2, 3}) {
    for (const std::int64_t vocab : {std::int64_t{11}, Tiles().vocabulary + 3}) {
      AdjointCase c{
          .name = "embed, vocabulary " + std::to_string(vocab),
          .program = one_op(packed({6, 1, 8}, p, true)),
          .model = test::llama({})};
      c.model.scaled_embedding = p > 1;
      const Layout tokens = matrix("tokens", {15, 3}, c.program.documents.cuts);
      const ValueId x = add_value(c.program, "x", tokens);
      Op embed = op_of(OpKind::embed, {}, {x});
      embed.copies = vocabulary_tiles(vocab, 3, p);
      add_ops(c.program, {embed});
      const Documents layout = c.program.documents;
      c.local = [=](int rank) {
        Local local{
            .stack = numbers_of(matrix("rows", {vocab, 3}, even_cuts(vocab, p)).extent(rank), rank),
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

// Positions and segments are rows of the same table, below the vocabulary, here in a tile of their
// own or beside it.
TEST(Adjoint, EmbedWithPositionsAndSegments) {
  for (const int p : {1, 2, 3}) {
    for (const std::int64_t vocab : {std::int64_t{11}, Tiles().vocabulary}) {
      AdjointCase c{
          .name = "embed, positions, vocabulary " + std::to_string(vocab),
          .program = one_op(packed({6, 1, 4}, p, false)),
          .model = test::llama({})};
      c.model.vocab = vocab;
      c.model.learned_positions = true;
      c.model.max_positions = 6;
      c.model.position_offset = 2;
      c.model.segments = 2;
      const std::int64_t rows = vocab + 8 + 2;
      const Layout tokens = matrix("tokens", {11, 3}, c.program.documents.cuts);
      const ValueId x = add_value(c.program, "x", tokens);
      Op embed = op_of(OpKind::embed, {}, {x});
      embed.copies = vocabulary_tiles(rows, 3, p);
      add_ops(c.program, {embed});
      const Documents layout = c.program.documents;
      c.local = [=](int rank) {
        const Cuts cuts = even_cuts(rows, p);
        return Local{
            .stack = numbers_of(matrix("rows", {rows, 3}, cuts).extent(rank), rank),
            .batch = batch_of(layout, rank, 11)};
      };
      c.outputs = {x};
      expect_adjoint(c, p, 60);
      if (vocab > 100) {  // what the sample above may have missed: the last rows
        run_local_ranks(1, {}, [&](Communicators& communicators) {
          const c10::InferenceMode no_autograd;
          const Documents whole = one_rank({6, 1, 4}, false);
          Program program = one_op(whole);
          const ValueId out = add_value(program, "x", matrix("tokens", {11, 3}));
          Op op = op_of(OpKind::embed, {}, {out});
          op.copies = vocabulary_tiles(rows, 3, 1);
          add_ops(program, {op});
          test::OpRun run(
              program,
              c.model,
              communicators.world(),
              {.stack = numbers({rows, 3}, 0), .batch = batch_of(whole, 0, 11)});
          run.gradient(out) = at::ones({11, 3}, at::kDouble);
          run.backward();
          const at::Tensor counts = run.parameters().stack_grad.select(1, 0).narrow(0, vocab, 10);
          // rows 0 and 1 unused; positions 0 to 5 of documents of 6, 1 and 4; segment 0
          EXPECT_TRUE(at::equal(
              counts, at::tensor({0., 0., 3., 2., 2., 2., 1., 1., 11., 0.}, at::kDouble)));
        });
      }
    }
  }
}

// Looking a padding id up gives its row no gradient.
TEST(Embed, PaddingGetsNoGradient) {
  run_local_ranks(1, {}, [&](Communicators& communicators) {
    const c10::InferenceMode no_autograd;
    TextShape model = test::llama({});
    model.padding_id = 4;
    Program program = one_op(one_rank({3}));
    const ValueId x = add_value(program, "x", matrix("tokens", {3, 2}));
    Op embed = op_of(OpKind::embed, {}, {x});
    embed.copies = vocabulary_tiles(6, 2, 1);
    add_ops(program, {embed});
    Local local{.stack = numbers({6, 2}, 1), .batch = batch_of(program.documents, 0, 6)};
    local.batch.ids = {4, 2, 4};
    test::OpRun run(program, model, communicators.world(), local);
    run.gradient(x) = at::ones({3, 2}, at::kDouble);
    run.backward();
    const at::Tensor rows = run.parameters().stack_grad.select(1, 0);
    EXPECT_TRUE(at::equal(rows, at::tensor({0., 0., 1., 0., 0., 0.}, at::kDouble)));
  });
}

// A bias of the logits; some tokens without a label.
TEST(Adjoint, CrossEntropyWithBias) {
  for (const std::int64_t vocab : {std::int64_t{7}, 2 * Tiles().vocabulary + 5}) {
    for (const int p : {1, 3}) {
      AdjointCase c{
          .name = "cross_entropy with bias, vocabulary " + std::to_string(vocab),
          .program = one_op(packed({9, 5}, p, false)),
          .model = test::llama({}),
          .loss_scale = 0.37};
      c.model.logit_cap = p == 1 ? 2.5 : 0;
      const Layout tokens = matrix("tokens", {14, 3}, c.program.documents.cuts);
      const ValueId x = add_value(c.program, "xn", tokens);
      const ValueId d = add_value(c.program, "d", tokens);
      Op loss = op_of(OpKind::cross_entropy, {x}, {d}, {d});
      loss.copies = vocabulary_tiles(vocab, 3, p);
      loss.vectors = {1, 2};
      add_ops(c.program, {loss});
      const Documents layout = c.program.documents;
      c.local = [=](int rank) {
        const Cuts cuts = even_cuts(vocab, p);
        Local local{
            .inputs = {{x, numbers_of(tokens.extent(rank), rank)}},
            .stack = 2 * numbers_of(matrix("rows", {vocab, 3}, cuts).extent(rank), 5 + rank),
            .vectors = {numbers({3}, 1), numbers({vocab}, 8 + rank)},
            .batch = batch_of(layout, rank, vocab)};
        for (std::size_t t = 0; t < local.batch.labels.size(); t += 3) {
          local.batch.labels[t] = -1;
        }
        return local;
      };
      c.inputs = {x};
      expect_adjoint(c, p, vocab > 100 ? 12 : 60);
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
        Size{2 * Tiles().vocabulary + 5, 2, {30, 5}}}) {
    for (const int p : {1, 2, 3}) {
      AdjointCase c{
          .name = "cross_entropy, vocabulary " + std::to_string(size.vocab),
          .program = one_op(packed(size.lengths, p, true)),
          .model = test::llama({}),
          .loss_scale = 0.37};
      c.model.logit_cap = p == 2 ? 1.5 : 0;
      const std::int64_t T = c.program.documents.tokens();
      const Layout tokens = matrix("tokens", {T, size.hidden}, c.program.documents.cuts);
      const ValueId x = add_value(c.program, "xn", tokens);
      const ValueId d = add_value(c.program, "d", tokens);
      Op loss = op_of(OpKind::cross_entropy, {x}, {d}, {d});
      loss.copies = vocabulary_tiles(size.vocab, size.hidden, p);
      add_ops(c.program, {loss});
      const Documents layout = c.program.documents;
      c.local = [=](int rank) {
        Local local{
            .inputs = {{x, numbers_of(tokens.extent(rank), rank)}},
            .stack = 2 * numbers_of(
                             matrix("rows", {size.vocab, size.hidden}, even_cuts(size.vocab, p))
                                 .extent(rank),
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
  for (const std::int64_t vocab : {std::int64_t{50}, Tiles().vocabulary + 50}) {
    run_local_ranks(1, {}, [&](Communicators& communicators) {
      const c10::InferenceMode no_autograd;
      Program program = one_op(one_rank({6}));
      const ValueId x = add_value(program, "xn", matrix("tokens", {6, 2}));
      const ValueId d = add_value(program, "d", matrix("tokens", {6, 2}));
      Op loss = op_of(OpKind::cross_entropy, {x}, {d}, {d});
      loss.copies = vocabulary_tiles(vocab, 2, 1);
      add_ops(program, {loss});
      const Local local{
          .inputs = {{x, 100 * numbers({6, 2}, 1)}},
          .stack = 30 * numbers({vocab, 2}, 2),
          .batch = batch_of(program.documents, 0, vocab)};
      test::OpRun run(program, test::llama({}), communicators.world(), local);
      const at::Tensor logits = at::mm(local.inputs.at(x), local.stack.t());
      double expected = 0;
      for (std::int64_t t = 0; t < 5; ++t) {
        const std::int64_t label = local.batch.labels[static_cast<std::size_t>(t)];
        expected += (at::logsumexp(logits[t], 0) - logits[t][label]).item<double>();
      }
      EXPECT_NEAR(run.losses().losses[0], expected, 1e-9 * expected);
      EXPECT_TRUE(run.value(d).isfinite().all().item<bool>());
      EXPECT_TRUE(run.parameters().stack_grad.isfinite().all().item<bool>());
      EXPECT_EQ(run.losses().counts[0], 5);
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
      cpu_kernels().rms_norm(x, w, 1e-5, y);
      const at::Tensor root = (x.square().mean(1, true) + 1e-5).rsqrt();
      EXPECT_LT(worst(y, x * root * w), 1e-13);
      const at::Tensor narrow = at::empty({9, H}, width.type);
      cpu_kernels().rms_norm(x.to(width.type), w.to(width.type), 1e-5, narrow);
      EXPECT_LT(worst(narrow, y), width.tolerance);
      for (const bool accumulate : {false, true}) {
        const at::Tensor grad = start.clone();
        const at::Tensor grad_w = at::ones({H}, at::kDouble);
        cpu_kernels().rms_norm_adjoint(
            x, w, 1e-5, {.y = g, .x = grad, .accumulate = accumulate, .w = grad_w});
        const at::Tensor wg = w * g;
        at::Tensor expected = root * (wg - x * root.square() * (wg * x).mean(1, true));
        expected = accumulate ? expected + start : expected;
        // the exact gradient is (nearly) zero for a row of one element
        const double floor = H == 1 ? 1e-4 : 0;
        EXPECT_LT(worst(grad, expected), 1e-12 + floor);
        EXPECT_LT(worst(grad_w, 1 + (g * x * root).sum(0)), 1e-13);
        const at::Tensor narrow_grad = start.to(width.type);
        const at::Tensor narrow_w = at::ones({H}, width.statistic);
        cpu_kernels().rms_norm_adjoint(
            x.to(width.type),
            w.to(width.type),
            1e-5,
            {.y = g.to(width.type), .x = narrow_grad, .accumulate = accumulate, .w = narrow_w});
        if (H > 1) {
          EXPECT_LT(worst(narrow_grad, expected), width.tolerance) << H << accumulate;
        }
        EXPECT_LT(worst(narrow_w, grad_w), 5e-7);  // summed in float32 from the same narrow values
      }
    }
  }
}

TEST(Kernels, LayerNormInNarrowTypesFollowsFloat64) {
  for (const Width& width : kWidths) {
    for (const std::int64_t H : {8, 33, 256}) {
      const auto rounded = [&](std::vector<std::int64_t> sizes, int salt) {
        return numbers(std::move(sizes), salt).to(width.type).to(at::kDouble);
      };
      const at::Tensor x = rounded({9, H}, 1) + 2;  // a mean that matters, exact in all types
      const at::Tensor w = rounded({H}, 2);
      const at::Tensor b = rounded({H}, 5);
      const at::Tensor g = rounded({9, H}, 3);
      const at::Tensor narrow_x = x.to(width.type);
      const at::Tensor wide_x = narrow_x.to(at::kDouble);
      const at::Tensor y = at::empty_like(wide_x);
      cpu_kernels().layer_norm(wide_x, w, b, 1e-5, y);
      EXPECT_LT(worst(y, at::layer_norm(wide_x, {H}, w, b, 1e-5)), 1e-13);
      const at::Tensor narrow = at::empty({9, H}, width.type);
      cpu_kernels().layer_norm(narrow_x, w.to(width.type), b.to(width.type), 1e-5, narrow);
      EXPECT_LT(worst(narrow, y), 2 * width.tolerance);

      const at::Tensor grad = at::empty_like(wide_x);
      const at::Tensor grad_w = at::zeros({H}, at::kDouble);
      const at::Tensor grad_b = at::zeros({H}, at::kDouble);
      cpu_kernels().layer_norm_adjoint(
          wide_x, w, 1e-5, {.y = g, .x = grad, .w = grad_w, .b = grad_b});
      const at::Tensor narrow_grad = at::empty({9, H}, width.type);
      const at::Tensor narrow_w = at::zeros({H}, width.statistic);
      const at::Tensor narrow_b = at::zeros({H}, width.statistic);
      cpu_kernels().layer_norm_adjoint(
          narrow_x,
          w.to(width.type),
          1e-5,
          {.y = g.to(width.type), .x = narrow_grad, .w = narrow_w, .b = narrow_b});
      EXPECT_LT(worst(narrow_grad, grad), 4 * width.tolerance);
      EXPECT_LT(worst(narrow_w, grad_w), 2e-6);  // summed in float32 from the same narrow values
      EXPECT_LT(worst(narrow_b, g.sum(0)), 2e-6);

      // Without a bias all else is the same, bit for bit.
      const at::Tensor bare = at::empty_like(wide_x);
      cpu_kernels().layer_norm(wide_x, w, {}, 1e-5, bare);
      EXPECT_LT(worst(bare, at::layer_norm(wide_x, {H}, w, {}, 1e-5)), 1e-13);
      const at::Tensor bare_grad = at::empty_like(wide_x);
      const at::Tensor bare_w = at::zeros({H}, at::kDouble);
      cpu_kernels().layer_norm_adjoint(wide_x, w, 1e-5, {.y = g, .x = bare_grad, .w = bare_w});
      EXPECT_TRUE(at::equal(bare_grad, grad) && at::equal(bare_w, grad_w));
    }
  }
}

// Logits are of the type of sums, their bias of that of weights.
TEST(Kernels, RowsAndTheirSums) {
  for (const Width& width : kWidths) {
    const at::Tensor whole = numbers({5, 9}, 1).to(width.type);
    const at::Tensor y = whole.narrow(1, 2, 6);  // rows with a stride
    const at::Tensor b = numbers({6}, 2).to(width.type);
    const at::Tensor before = whole.clone();
    at::Tensor sums = at::ones({6}, width.statistic);
    cpu_kernels().add_sum_of_rows(y, sums, 0.3);
    EXPECT_LT(worst(sums, 1 + 0.3 * y.to(at::kDouble).sum(0)), 1e-6);
    const at::Tensor expected = y.to(at::kDouble) + 0.7 * b.to(at::kDouble);
    const at::Tensor logits = y.to(width.statistic).clone();
    cpu_kernels().add_to_rows(logits, b, 0.7);
    EXPECT_LT(worst(logits, expected), 1e-6);
    cpu_kernels().add_to_rows(y, b, 0.7);
    EXPECT_LT(worst(y, expected), width.tolerance);
    EXPECT_TRUE(at::equal(whole.narrow(1, 0, 2), before.narrow(1, 0, 2)));
    EXPECT_TRUE(at::equal(whole.narrow(1, 8, 1), before.narrow(1, 8, 1)));
  }
}

at::Tensor kept(
    const kernels::Dropout& dropout, const std::vector<std::int64_t>& tokens, std::int64_t H) {
  const at::Tensor to = at::empty({static_cast<std::int64_t>(tokens.size()), H}, at::kDouble);
  cpu_kernels().dropout(dropout, at::tensor(tokens, at::kLong), at::ones_like(to), to);
  return to;
}

// An element's fate is that of its seed, site, token and column; the share of zeros is right, and
// what stays is larger by as much.
TEST(Kernels, DropoutIsAFunctionOfTheToken) {
  const kernels::Dropout dropout{.probability = 0.3, .seed = 0x123456789ULL, .site = 5};
  const std::vector<std::int64_t> tokens = {7, 0, 123, std::int64_t{1} << 40};
  const at::Tensor some = kept(dropout, tokens, 131);
  for (std::size_t t = 0; t < tokens.size(); ++t) {  // alone, and narrower
    EXPECT_TRUE(at::equal(
        kept(dropout, {tokens[t]}, 70)[0], some[static_cast<std::int64_t>(t)].narrow(0, 0, 70)));
    for (std::int64_t i = 0; i < 131; ++i) {  // the generator of torch says the same
      at::Philox4_32 draw(
          dropout.seed,
          static_cast<std::uint64_t>(tokens[t]),
          static_cast<std::uint64_t>(i / 4) + (std::uint64_t{dropout.site} << 32));
      std::uint32_t number = 0;
      for (std::int64_t j = 0; j <= i % 4; ++j) {
        number = draw(10);
      }
      const double expected = number < 0.3 * 4294967296.0 ? 0.0 : 1 / 0.7;
      EXPECT_DOUBLE_EQ(some[static_cast<std::int64_t>(t)][i].item<double>(), expected);
    }
  }
  for (const kernels::Dropout& other :
       {kernels::Dropout{0.3, dropout.seed + 1, 5}, kernels::Dropout{0.3, dropout.seed, 6}}) {
    EXPECT_FALSE(at::equal(kept(other, tokens, 131), some));
  }
  std::vector<std::int64_t> many(2000);
  std::iota(many.begin(), many.end(), 0);
  for (const double p : {0.1, 0.5, 0.9}) {
    const at::Tensor all = kept({.probability = p, .seed = 3, .site = 1}, many, 100);
    const double share = (all == 0).to(at::kDouble).mean().item<double>();
    EXPECT_NEAR(share, p, 5 * std::sqrt(p * (1 - p) / 200000));
    EXPECT_NEAR(all.mean().item<double>(), 1, 5 * std::sqrt(p / (1 - p) / 200000));
    EXPECT_DOUBLE_EQ(all.max().item<double>(), 1 / (1 - p));
    // columns and tokens beside one another are strangers
    const at::Tensor zero = (all == 0).to(at::kDouble) - share;
    const double deviation = p * (1 - p) * 5 / std::sqrt(2e5);
    EXPECT_LT(
        std::abs((zero.narrow(1, 0, 99) * zero.narrow(1, 1, 99)).mean().item<double>()), deviation);
    EXPECT_LT(
        std::abs((zero.narrow(0, 0, 1999) * zero.narrow(0, 1, 1999)).mean().item<double>()),
        deviation);
  }
}

at::Tensor kept(const kernels::AttentionDropout& dropout, std::int64_t queries, std::int64_t keys) {
  const at::Tensor to = at::empty({queries, keys}, at::kDouble);
  cpu_kernels().drop_probabilities(dropout, at::ones_like(to), to);
  return to;
}

// What becomes of a probability says its seed, site, query, head and key, whatever tile it is asked
// for in; and neither another probability's fate nor that of a row that parts add does.
TEST(Kernels, AttentionDropoutIsAFunctionOfQueryHeadAndKey) {
  const kernels::AttentionDropout dropout{
      .drawn = {.probability = 0.3, .seed = 0x123456789ULL, .site = 4},
      .token = (std::int64_t{1} << 40) + 5,
      .head = 2,
      .key = 6};
  const at::Tensor all = kept(dropout, 40, 150);
  for (std::int64_t q = 0; q < 40; q += 13) {
    for (std::int64_t k = 0; k < 150; ++k) {
      const std::int64_t key = dropout.key + k;
      at::Philox4_32 draw(
          dropout.drawn.seed,
          static_cast<std::uint64_t>(dropout.token + q) + (std::uint64_t{3} << 48),
          static_cast<std::uint64_t>(key / 4) + (std::uint64_t{4} << 32));
      for (std::int64_t before = 0; before < key % 4; ++before) {
        draw(10);
      }
      const double expected = draw(10) < 0.3 * 4294967296.0 ? 0.0 : 1 / 0.7;
      EXPECT_DOUBLE_EQ(all[q][k].item<double>(), expected) << q << ", " << k;
    }
  }
  for (const std::int64_t q : {0, 1, 17, 39}) {
    for (const std::int64_t k : {0, 1, 2, 3, 5, 63, 64, 70, 149}) {
      for (const std::int64_t n : {1, 7}) {
        const std::int64_t rows = std::min<std::int64_t>(n, 40 - q);
        const std::int64_t cols = std::min<std::int64_t>(10 * n, 150 - k);
        EXPECT_TRUE(at::equal(
            kept(dropout.from(q, 0, k), rows, cols), all.narrow(0, q, rows).narrow(1, k, cols)))
            << q << ", " << k << ": " << rows << " x " << cols;
      }
    }
  }
  const auto with = [&](auto change) {
    kernels::AttentionDropout other = dropout;
    change(other);
    return kept(other, 40, 150);
  };
  EXPECT_FALSE(at::equal(with([](auto& d) { ++d.drawn.seed; }), all));
  EXPECT_FALSE(at::equal(with([](auto& d) { ++d.drawn.site; }), all));
  EXPECT_FALSE(at::equal(with([](auto& d) { ++d.head; }), all));

  constexpr std::int64_t kTokens = 600;
  constexpr std::int64_t kKeys = 400;
  constexpr double kAll = kTokens * kKeys;
  std::vector<std::int64_t> tokens(kTokens);
  std::iota(tokens.begin(), tokens.end(), 0);
  for (const double p : {0.1, 0.5, 0.9}) {
    const auto of_head = [&](std::int64_t head) {
      return kept({.drawn = {p, 3, 2}, .token = 0, .head = head, .key = 0}, kTokens, kKeys);
    };
    const at::Tensor one = of_head(0);
    const double share = (one == 0).to(at::kDouble).mean().item<double>();
    EXPECT_NEAR(share, p, 5 * std::sqrt(p * (1 - p) / kAll));
    EXPECT_NEAR(one.mean().item<double>(), 1, 5 * std::sqrt(p / (1 - p) / kAll));
    EXPECT_DOUBLE_EQ(one.max().item<double>(), 1 / (1 - p));
    const auto zero = [&](const at::Tensor& of) { return (of == 0).to(at::kDouble) - p; };
    const auto strangers = [&](const at::Tensor& a, const at::Tensor& b, const char* what) {
      EXPECT_LT(
          std::abs((zero(a) * zero(b)).mean().item<double>()),
          5 * p * (1 - p) / std::sqrt(static_cast<double>(a.numel())))
          << what;
    };
    strangers(one, of_head(1), "heads");
    strangers(one.narrow(0, 0, kTokens - 1), one.narrow(0, 1, kTokens - 1), "queries");
    strangers(one.narrow(1, 0, kKeys - 1), one.narrow(1, 1, kKeys - 1), "keys");
    strangers(one, kept({p, 3, 2}, tokens, kKeys), "the dropout of what attention adds");
  }
}

TEST(Kernels, RotationsAreInverseAndKeepLengths) {
  TextShape model = test::llama({.head_dim = 8});
  const at::Tensor positions = at::tensor({0, 16000, 3, 7, 7}, at::kLong);
  const std::int64_t rows = 5;
  for (const Width& width : kWidths) {
    const at::Tensor x = numbers({rows, 40}, 1).to(width.type).to(at::kDouble);
    const RopeTable table = rope_table(*rope_of(model, 0), 8, 16001, at::kDouble);
    const at::Tensor turned = x.clone();
    cpu_kernels().rotate(turned, {3, 8, table.cosines, table.sines, positions});
    EXPECT_TRUE(at::equal(turned.narrow(1, 24, 16), x.narrow(1, 24, 16)));  // only 3 of 5 heads
    EXPECT_TRUE(at::equal(turned[0], x[0]));
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t i = 0; i < 4; ++i) {  // as complex numbers
        const double angle = static_cast<double>(positions[r].item<std::int64_t>()) *
                             std::pow(model.rope_theta, -2.0 * static_cast<double>(i) / 8);
        const double a = x[r][8 + i].item<double>();
        const double b = x[r][12 + i].item<double>();
        EXPECT_NEAR(
            turned[r][8 + i].item<double>(), a * std::cos(angle) - b * std::sin(angle), 1e-10);
        EXPECT_NEAR(
            turned[r][12 + i].item<double>(), b * std::cos(angle) + a * std::sin(angle), 1e-10);
      }
    }
    const RopeTable narrow_table = rope_table(*rope_of(model, 0), 8, 16001, width.statistic);
    const at::Tensor narrow = x.to(width.type).clone();
    cpu_kernels().rotate(narrow, {3, 8, narrow_table.cosines, narrow_table.sines, positions});
    EXPECT_LT(worst(narrow, turned), width.tolerance);
    cpu_kernels().rotate(turned, {3, 8, table.cosines, table.sines, positions, true});
    EXPECT_LT(worst(turned, x), 1e-14);
  }
}

}  // namespace
}  // namespace paradyse
