// The attention kernel against softmax written out in float64, and against torch's own kernel.
#include "src/run/kernels/cpu/tile_attention.h"

#include <cmath>
#include <limits>
#include <type_traits>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/PhiloxRNGEngine.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "paradyse/plan/detail/index.h"
#include "src/run/kernels/cpu/lane_attention.h"
#include "src/run/kernels/cpu/products.h"

namespace paradyse {
namespace {

using ops::Attention;
using ops::Columns;

at::Tensor random(std::vector<std::int64_t> sizes, std::uint64_t seed) {
  at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  return at::randn(sizes, generator, at::TensorOptions().dtype(at::kDouble));
}

// Queries, one key/value head and the gradient of the output, float64.
struct Inputs {
  Attention attention;
  at::Tensor q, k, v, grad_o;

  Inputs(AttentionBlock block, std::int64_t heads, std::int64_t D, bool causal, double size = 1)
      : attention{
            .block = block,
            .heads = heads,
            .head_dim = D,
            .scale = 1 / std::sqrt(static_cast<double>(D)),
            .masked = causal} {
    q = random({block.queries.end, heads * D}, 1) * size;
    k = random({block.keys.end, D}, 2) * size;
    v = random({block.keys.end, D}, 3);
    grad_o = random({block.queries.end, heads * D}, 4);
  }
};

struct Results {
  at::Tensor o, l, grad_q, grad_k, grad_v;  // of the block's rows, float64
};

// [heads, queries, keys] What dropout multiplies probabilities by; by the generator of torch.
at::Tensor kept_of(const Attention& a) {
  const at::Tensor kept =
      at::ones({a.heads, a.block.queries.size(), a.block.keys.size()}, at::kDouble);
  auto* number = kept.mutable_data_ptr<double>();
  const kernels::AttentionDropout& dropout = a.dropout;
  for (std::int64_t h = 0; h < kept.size(0) && dropout.drops(); ++h) {
    for (std::int64_t q = 0; q < kept.size(1); ++q) {
      for (std::int64_t k = 0; k < kept.size(2); ++k) {
        const std::int64_t key = dropout.key + k;
        at::Philox4_32 draw(
            dropout.drawn.seed,
            static_cast<std::uint64_t>(dropout.token + q + ((dropout.head + h + 1) << 48)),
            static_cast<std::uint64_t>(key / 4) + (std::uint64_t{dropout.drawn.site} << 32));
        for (std::int64_t before = 0; before < key % 4; ++before) {
          draw(10);
        }
        const double p = dropout.drawn.probability;
        *number++ = draw(10) < p * 4294967296.0 ? 0.0 : 1 / (1 - p);
      }
    }
  }
  return kept;
}

// Everything written out.  `read`: the result that the backward pass finds, if it was rounded.
Results expected(const Inputs& in, const at::Tensor& read = {}) {
  const Attention& a = in.attention;
  const AttentionBlock& block = a.block;
  const auto cut = [](const at::Tensor& x, Interval rows) {
    return x.narrow(0, rows.begin, rows.size());
  };
  const at::Tensor q = cut(in.q, block.queries).unflatten(1, {a.heads, a.head_dim}).transpose(0, 1);
  const at::Tensor k = cut(in.k, block.keys);
  const at::Tensor v = cut(in.v, block.keys);
  const at::Tensor g =
      cut(in.grad_o, block.queries).unflatten(1, {a.heads, a.head_dim}).transpose(0, 1);
  const at::Tensor i = at::arange(block.queries.size()).unsqueeze(1);
  const at::Tensor j = at::arange(block.keys.size()).unsqueeze(0);
  at::Tensor hidden = a.masked ? j > i + block.diagonal : j < 0;
  if (block.window > 0) {
    hidden = hidden.logical_or(j <= i + block.diagonal - block.window);
  }
  at::Tensor s = at::matmul(q, k.t()) * a.scale;
  at::Tensor slope = at::ones_like(s);
  if (a.cap > 0) {
    s = at::tanh(s / a.cap);
    slope = 1 - s.square();
    s = s * a.cap;
  }
  s.masked_fill_(hidden, -std::numeric_limits<double>::infinity());
  const at::Tensor l = at::logsumexp(s, {2});
  const at::Tensor p = (s - l.unsqueeze(2)).exp().nan_to_num(0.0);  // rows that see nothing
  const at::Tensor kept = kept_of(a);
  const at::Tensor o = at::matmul(p * kept, v);
  const at::Tensor dp = at::matmul(g, v.t()) * kept;
  const at::Tensor found =
      read.defined() ? read.unflatten(1, {a.heads, a.head_dim}).transpose(0, 1) : o;
  const at::Tensor ds = p * (dp - (g * found).sum(2, true)) * slope * a.scale;
  const auto merged = [](const at::Tensor& x) { return x.transpose(0, 1).flatten(1); };
  return {
      merged(o),
      l.t(),
      merged(at::matmul(ds, k)),
      at::matmul(ds.transpose(1, 2), q).sum(0),
      at::matmul((p * kept).transpose(1, 2), g).sum(0)};
}

// What the kernel makes of it, the keys taken in `pieces` blocks that are merged.
Results computed(const Inputs& in, at::ScalarType type, int pieces = 1) {
  const Attention& a = in.attention;
  const AttentionBlock& block = a.block;
  const at::ScalarType sums = type == at::kDouble ? at::kDouble : at::kFloat;
  const at::ScalarType results = pieces == 1 ? type : sums;
  // Side by side in one matrix, as the op has them: strides larger than rows.
  const std::int64_t tokens = std::max(block.queries.end, block.keys.end);
  const std::int64_t columns = in.q.size(1);
  const auto placed = [&](const at::Tensor& x, at::ScalarType as) {
    const at::Tensor matrix = at::zeros({tokens, x.size(1) + 3}, at::TensorOptions().dtype(as));
    matrix.narrow(1, 2, x.size(1)).narrow(0, 0, x.size(0)).copy_(x);
    return Columns{matrix, 2};
  };
  const Columns q = placed(in.q, type);
  const Columns k = placed(in.k, type);
  const Columns v = placed(in.v, type);
  const Columns grad_o = placed(in.grad_o, type);
  const Columns o = placed(at::full_like(in.q, 7), results);
  const Columns l = placed(at::full({tokens, a.heads}, 7), sums);
  const Columns grad_q = placed(at::zeros_like(in.q), results);
  const Columns grad_k = placed(at::zeros_like(in.k), results);
  const Columns grad_v = placed(at::zeros_like(in.v), results);
  const auto each = [&](auto body) {
    const std::int64_t n = block.keys.size();
    for (int i = 0; i < pieces; ++i) {
      Attention piece = a;
      const Interval keys{n * i / pieces, n * (i + 1) / pieces};
      piece.block.keys = {block.keys.begin + keys.begin, block.keys.begin + keys.end};
      piece.block.diagonal = block.diagonal - keys.begin;
      piece.dropout = a.dropout.from(0, 0, keys.begin);
      if (!keys.empty()) {
        body(piece, keys.begin > 0);
      }
    }
  };
  each([&](const Attention& piece, bool merge) { ops::attend(piece, {q, k, v, o, l}, merge); });
  const Columns o_read = results == type ? o : placed(o.matrix.narrow(1, 2, columns), type);
  each([&](const Attention& piece, bool) {
    ops::attend_adjoint(piece, {q, k, v, o_read, l}, {grad_o, grad_q, grad_k, grad_v});
  });
  const auto taken = [](const Columns& c, Interval rows, std::int64_t cols) {
    return c.matrix.narrow(0, rows.begin, rows.size()).narrow(1, 2, cols).to(at::kDouble);
  };
  const std::int64_t D = a.head_dim;
  return {
      taken(o, block.queries, columns),
      taken(l, block.queries, a.heads),
      taken(grad_q, block.queries, columns),
      taken(grad_k, block.keys, D),
      taken(grad_v, block.keys, D)};
}

double off(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor same = a == b;  // infinities
  const at::Tensor difference = at::where(same, at::zeros_like(a), (a - b).abs());
  return (difference / (b.abs().nan_to_num(0.0, 0.0, 0.0) + 1)).max().item<double>();
}

void expect_near(const Results& got, const Results& want, double tolerance, const char* what) {
  EXPECT_LE(off(got.o, want.o), tolerance) << what;
  EXPECT_LE(off(got.l, want.l), tolerance) << what;
  EXPECT_LE(off(got.grad_q, want.grad_q), tolerance) << what;
  EXPECT_LE(off(got.grad_k, want.grad_k), tolerance) << what;
  EXPECT_LE(off(got.grad_v, want.grad_v), tolerance) << what;
}

AttentionBlock whole(std::int64_t tokens) { return {{0, tokens}, {0, tokens}}; }

// Inputs are rounded first, so that what is left is the kernel's own rounding.
void expect_all_types(Inputs in, const char* what) {
  expect_near(computed(in, at::kDouble), expected(in), 1e-12, what);
  expect_near(computed(in, at::kFloat), expected(in), 2e-5, what);
  for (const auto& [type, tolerance] :
       {std::pair{at::kBFloat16, 0.03}, std::pair{at::kHalf, 0.004}}) {
    Inputs rounded = in;
    for (at::Tensor* x : {&rounded.q, &rounded.k, &rounded.v, &rounded.grad_o}) {
      *x = x->to(type).to(at::kDouble);
    }
    expect_near(computed(rounded, type), expected(rounded), tolerance, what);
  }
}

TEST(TileAttention, OddSizesInAllTypes) {
  for (const std::int64_t tokens : {1, 2, 7, 63, 64, 65, 130}) {
    expect_all_types(Inputs(whole(tokens), 3, 10, true), "causal");
    expect_all_types(Inputs(whole(tokens), 1, 8, false), "bidirectional");
    expect_all_types(Inputs(whole(tokens), 3, 16, true), "causal, in lanes");
    expect_all_types(Inputs(whole(tokens), 2, 32, false), "bidirectional, in lanes");
  }
}

TEST(TileAttention, LongerThanATileOfKeys) {
  expect_all_types(Inputs(whole(533), 1, 4, true), "low tiles");
  expect_all_types(Inputs(whole(1100), 2, 6, true), "high tiles");
}

TEST(TileAttention, RowsInsideAMatrixAndOffTheDiagonal) {
  for (const std::int64_t diagonal : {-200, -70, -64, -1, 0, 3, 65, 200}) {
    expect_all_types(Inputs({{5, 75}, {9, 110}, diagonal}, 2, 5, true), "off the diagonal");
  }
}

// The last keys that a query sees alone: inside a tile, over several, and some rows that see none.
TEST(TileAttention, WindowsAndCaps) {
  for (const std::int64_t window : {1, 5, 64, 100, 600}) {
    AttentionBlock block = whole(700);
    block.window = window;
    expect_all_types(Inputs(block, 1, 5, true), "a window");
    AttentionBlock corner{{5, 150}, {9, 130}, 40};
    corner.window = window;
    expect_all_types(Inputs(corner, 2, 16, true), "a window of lanes' width");
    corner.diagonal = 150;  // the last queries see nothing of a narrow one
    Inputs capped(corner, 2, 5, true, 3);
    capped.attention.cap = 2.5;
    expect_all_types(capped, "a window and a cap");
  }
  for (const double size : {0.3, 1.0, 30.0}) {
    Inputs capped(whole(70), 1, 16, true, size);
    capped.attention.cap = 5;
    expect_all_types(capped, "a cap");
  }
}

kernels::AttentionDropout dropout_from(
    double probability, std::int64_t token, std::int64_t head, std::int64_t key) {
  return {
      .drawn = {.probability = probability, .seed = 0xFEDCBA9876543210, .site = 6},
      .token = token,
      .head = head,
      .key = key};
}

// Over several tiles, from keys that do not begin a draw, of a width that lanes are for without it;
// with a window and a cap.
TEST(TileAttention, DropsProbabilities) {
  for (const double probability : {0.1, 0.5}) {
    for (const std::int64_t D : {5, 16}) {
      for (const bool causal : {true, false}) {
        Inputs in(whole(130), 2, D, causal);
        in.attention.dropout = dropout_from(probability, 1000, 3, 0);
        expect_all_types(in, "dropout");
        Inputs corner({{5, 150}, {9, 130}, 150, causal ? 100 : 0}, 2, D, causal);
        corner.attention.cap = 2.5;
        corner.attention.dropout = dropout_from(probability, (std::int64_t{1} << 40) + 3, 0, 7);
        expect_all_types(corner, "dropout, a window and a cap");
      }
    }
  }
  Inputs longer(whole(600), 1, 6, true);
  longer.attention.dropout = dropout_from(0.2, 0, 95, 0);
  expect_all_types(longer, "dropout in high tiles");
}

// Any block, cut into any number of key blocks merged one after the other.
RC_GTEST_PROP(TileAttention, MergedKeyBlocksAreTheWhole, ()) {
  const auto small = [](int least, int most) { return *rc::gen::inRange<int>(least, most + 1); };
  const std::int64_t first_query = small(0, 3);
  const std::int64_t first_key = small(0, 3);
  const bool causal = small(0, 3) > 0;
  Inputs in(
      {{first_query, first_query + small(1, 90)},
       {first_key, first_key + small(1, 90)},
       small(-100, 100),
       causal && small(0, 1) > 0 ? small(1, 90) : 0},
      small(1, 3),
      small(1, 9),
      causal);
  in.attention.cap = small(0, 1) * 3.0;
  in.attention.dropout = dropout_from(small(0, 1) * 0.3, small(0, 9), small(0, 2), small(0, 9));
  const Results want = expected(in);
  expect_near(computed(in, at::kDouble, small(1, 5)), want, 1e-12, "float64");
  expect_near(computed(in, at::kFloat, small(1, 5)), want, 2e-5, "float32");
}

// One head as elements of T through lanes, its keys in two blocks where `cut` says, in rooms of so
// many floats, against everything written out: sums are float32's in all types.
template <typename T>
void expect_softmax_in_lanes(
    Inputs in, int lanes, std::int64_t cut, std::int64_t forward_room, std::int64_t backward_room) {
  constexpr at::ScalarType kType = c10::CppTypeToScalarType<T>::value;
  for (at::Tensor* x : {&in.q, &in.k, &in.v, &in.grad_o}) {
    *x = x->to(kType).to(at::kDouble);
  }
  const std::int64_t D = in.attention.head_dim;
  const std::int64_t queries = in.attention.block.queries.end;
  const std::int64_t keys = in.attention.block.keys.end;
  const auto rows = [](const at::Tensor& x) {
    return at::constant_pad_nd(x, {0, 3}, 7).to(kType).contiguous();
  };
  const std::int64_t stride = D + 3;
  const at::Tensor q = rows(in.q), k = rows(in.k), v = rows(in.v), g = rows(in.grad_o);
  const at::Tensor o = at::full({queries, stride}, 7, at::kFloat);
  const at::Tensor l = at::full({queries}, 7, at::kFloat);
  const at::Tensor grad_q = at::zeros({queries, stride}, at::kFloat);
  const at::Tensor grad_k = at::zeros({keys, stride}, at::kFloat);
  const at::Tensor grad_v = at::zeros_like(grad_k);
  const auto part = [&](std::int64_t first, std::int64_t last) {
    return kernels::LaneAttention<T>{
        .queries = queries,
        .keys = last - first,
        .diagonal = in.attention.block.diagonal - first,
        .width = D,
        .scale = static_cast<float>(in.attention.scale),
        .q = {q.const_data_ptr<T>(), stride},
        .k = {k.const_data_ptr<T>() + first * stride, stride},
        .v = {v.const_data_ptr<T>() + first * stride, stride},
        .o = {o.mutable_data_ptr<float>(), stride},
        .l = {l.mutable_data_ptr<float>(), 1}};
  };
  const auto each = [&](auto body) {
    if (cut > 0) {
      body(0, cut);
    }
    body(cut, keys);
  };
  // what is not written first must not be read
  each([&](std::int64_t first, std::int64_t last) {
    std::vector<float> room(idx(forward_room), NAN);
    kernels::attend_in_lanes<T>(lanes, part(first, last), first > 0, room);
  });
  const at::Tensor result = o.to(kType);
  each([&](std::int64_t first, std::int64_t last) {
    std::vector<float> room(idx(backward_room), NAN);
    kernels::attend_adjoint_in_lanes<T>(
        lanes,
        part(first, last),
        {.result = {result.const_data_ptr<T>(), stride},
         .o = {g.const_data_ptr<T>(), stride},
         .q = {grad_q.mutable_data_ptr<float>(), stride},
         .k = {grad_k.mutable_data_ptr<float>() + first * stride, stride},
         .v = {grad_v.mutable_data_ptr<float>() + first * stride, stride}},
        room);
  });
  const auto head = [&](const at::Tensor& x) { return x.narrow(1, 0, D).to(at::kDouble); };
  expect_near(
      {head(o), l.to(at::kDouble).unsqueeze(1), head(grad_q), head(grad_k), head(grad_v)},
      expected(in, head(result)),
      2e-5,
      "in lanes");
  // Nothing beside the head is touched.
  EXPECT_TRUE((o.narrow(1, D, 3) == 7).all().item<bool>());
  EXPECT_TRUE((grad_k.narrow(1, D, 3) == 0).all().item<bool>());
}

template <typename T>
class LaneAttentionTest : public testing::Test {};
using LaneTypes = testing::Types<float, at::BFloat16, at::Half>;
TYPED_TEST_SUITE(LaneAttentionTest, LaneTypes);

// Heads as wide as lanes are for, in all numbers of lanes that this machine has: tiles of queries
// that are not full, keys that some of a tile see, keys beyond a step, merged blocks; with room for
// copies of some keys, or of all.
TYPED_TEST(LaneAttentionTest, IsSoftmaxWrittenOut) {
  using T = TypeParam;
  using kernels::LanePass;
  struct Block {
    std::int64_t queries, keys, diagonal;
  };
  for (const std::int64_t D : {16, 32, 64, 128}) {
    for (int lanes = 8; lanes <= kernels::lanes_for(D); lanes *= 2) {
      for (const auto& [queries, keys, diagonal] :
           {Block{1, 1, 0},
            Block{5, 7, 2},
            Block{48, 96, 0},
            Block{49, 97, -3},
            Block{80, 150, 40},
            Block{100, 250, 300},
            Block{97, 31, -40},
            Block{130, 200, 0},
            Block{200, 500, 40},
            Block{300, 310, -20},
            Block{130, 50, -200}}) {
        // of nothing, of a step or two of keys, of all
        for (const auto& [cut, rooms] : std::vector<std::pair<std::int64_t, std::int64_t>>{
                 {0, 0}, {keys / 3, 0}, {0, 130}, {keys / 3, 130}, {0, 1000}}) {
          SCOPED_TRACE(
              testing::Message() << D << " wide, " << lanes << " lanes, " << queries << " x "
                                 << keys << " at " << diagonal << ", cut at " << cut
                                 << ", room for copies of " << rooms);
          const std::int64_t room = rooms == 0 ? 0 : rooms * 4 * D + queries;
          if (!std::is_same_v<T, float> && rooms == 0) {
            EXPECT_FALSE(kernels::has_lane_room<T>(LanePass::forward, queries, keys, D, 0));
            continue;
          }
          for (const LanePass pass : {LanePass::forward, LanePass::backward}) {
            EXPECT_TRUE(kernels::has_lane_room<T>(pass, queries, keys, D, room));
          }
          expect_softmax_in_lanes<T>(
              Inputs({{0, queries}, {0, keys}, diagonal}, 1, D, true, 2), lanes, cut, room, room);
        }
      }
    }
  }
}

// More queries than a run of those that have all their keys before the next have any, keys in
// parts of 96: the least room that does, which is of no number of queries.
TYPED_TEST(LaneAttentionTest, ManyQueriesTakeNoMoreRoom) {
  using T = TypeParam;
  constexpr bool kNarrow = !std::is_same_v<T, float>;
  using kernels::LanePass;
  constexpr std::int64_t D = 16;
  constexpr std::int64_t kRun = 42 * 96;
  const std::int64_t queries = 8100;
  const std::int64_t keys = 250;
  const std::int64_t forward = kRun + (kNarrow ? 3 : 2) * 96 * D;
  const std::int64_t backward = (kNarrow ? 5 : 4) * 96 * D;
  if (kNarrow && kernels::lanes_for(D) > 0) {
    for (const std::int64_t many : {queries, 1000 * queries}) {
      EXPECT_TRUE(kernels::has_lane_room<T>(LanePass::forward, many, keys, D, forward));
      EXPECT_TRUE(kernels::has_lane_room<T>(LanePass::backward, many, keys, D, backward));
    }
    EXPECT_FALSE(kernels::has_lane_room<T>(LanePass::forward, queries, keys, D, forward - 1));
    EXPECT_FALSE(kernels::has_lane_room<T>(LanePass::backward, queries, keys, D, backward - 1));
  }
  // a first run that sees nothing, all of several that see parts of the keys
  for (const std::int64_t diagonal : {-4100, -3900, -7950, 100}) {
    for (const std::int64_t cut : {0, 120}) {
      for (int lanes = 8; lanes <= kernels::lanes_for(D); lanes *= 2) {
        SCOPED_TRACE(testing::Message() << diagonal << ", cut at " << cut << ", " << lanes);
        expect_softmax_in_lanes<T>(
            Inputs({{0, queries}, {0, keys}, diagonal}, 1, D, true), lanes, cut, forward, backward);
      }
    }
  }
}

// Narrow elements become float32 a part of queries and of keys at a time; heads that share keys,
// and results of either type.
TEST(LaneAttention, NarrowTypesAreRoundedOnce) {
  for (const std::int64_t D : {16, 32, 64, 128}) {
    for (const AttentionBlock& block :
         {whole(300),
          AttentionBlock{{0, 200}, {0, 700}, 500},
          AttentionBlock{{5, 175}, {9, 210}, -20},
          AttentionBlock{{0, 800}, {0, 2100}, 1100}}) {
      for (const auto& [type, tolerance] :
           {std::pair{at::kBFloat16, 0.03}, std::pair{at::kHalf, 0.004}}) {
        SCOPED_TRACE(testing::Message() << D << " wide, " << block.keys.size() << " keys");
        Inputs in(block, 2, D, true);
        for (at::Tensor* x : {&in.q, &in.k, &in.v, &in.grad_o}) {
          *x = x->to(type).to(at::kDouble);
        }
        const Results want = expected(in);
        expect_near(computed(in, type), want, tolerance, "one block");
        const Results merged = computed(in, type, 3);
        expect_near(merged, want, tolerance, "merged blocks, wide results");
        if (D == 16 && kernels::lanes_for(D) > 0) {  // there is room: nothing is rounded on the way
          EXPECT_LE(off(merged.o, want.o), 2e-5);
        }
      }
    }
  }
}

// Sums over many keys are no one chain of float32.
TEST(LaneAttention, KeepsItsDigitsOverManyKeys) {
  const std::int64_t keys = 32768;
  Inputs in({{0, 3}, {0, keys}, keys}, 1, 16, false);
  in.k.zero_();
  in.v.fill_(0.1);
  in.grad_o.fill_(1);
  const Results got = computed(in, at::kFloat);
  EXPECT_LE((got.o - 0.1).abs().max().item<double>(), 1e-6);
  EXPECT_LE((got.grad_v * static_cast<double>(keys) - 3).abs().max().item<double>(), 1e-5);
}

// What a query does not see has no part in its gradients, be it ever so large.
TEST(LaneAttention, HiddenKeysLeaveNoTrace) {
  Inputs in(whole(40), 1, 16, true);
  in.v[30].fill_(3e38);
  in.grad_o.fill_(1);
  const Results got = computed(in, at::kFloat);
  EXPECT_TRUE(got.grad_q.narrow(0, 0, 30).isfinite().all().item<bool>());
  EXPECT_TRUE(got.o.narrow(0, 0, 30).isfinite().all().item<bool>());
}

// Scores up to 1e4 and next to nothing: exponentials must neither overflow nor vanish.
TEST(TileAttention, HugeAndTinyScores) {
  for (const double size : {1e-4, 60.0}) {
    Inputs in(whole(80), 1, 4, true, size);
    for (at::Tensor* x : {&in.q, &in.k}) {
      *x = x->to(at::kFloat).to(at::kDouble);
    }
    const Results want = expected(in);
    for (const int pieces : {1, 3}) {
      expect_near(computed(in, at::kDouble, pieces), want, 1e-10, "float64");
      // The scores themselves are rounded at 1e4 * 6e-8.
      EXPECT_LE(off(computed(in, at::kFloat, pieces).o, want.o), 5e-3);
    }
  }
}

TEST(TileAttention, NotANumberStays) {
  for (const int pieces : {1, 2}) {
    for (const std::int64_t D : {4, 16}) {
      Inputs in(whole(70), 1, D, true);
      in.k[40][1] = std::numeric_limits<double>::quiet_NaN();
      const Results got = computed(in, at::kFloat, pieces);
      EXPECT_FALSE(got.o.narrow(0, 0, 40).isnan().any().item<bool>());
      EXPECT_TRUE(got.o.narrow(0, 40, 30).isnan().all().item<bool>());
    }
  }
}

// torch's kernel, an implementation not ours, at a size with many tiles.
TEST(TileAttention, AgreesWithTorch) {
  const std::int64_t T = 1300;
  const std::int64_t D = 16;
  const Inputs in(whole(T), 1, D, true);
  const auto four = [&](const at::Tensor& x) { return x.view({1, 1, T, D}); };
  const auto [o, l] = at::_scaled_dot_product_flash_attention_for_cpu(
      four(in.q), four(in.k), four(in.v), 0.0, true);
  const auto [grad_q, grad_k, grad_v] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
      four(in.grad_o), four(in.q), four(in.k), four(in.v), o, l, 0.0, true);
  const auto two = [&](const at::Tensor& x) { return x.reshape({T, -1}); };
  const Results torch{two(o), two(l), two(grad_q), two(grad_k), two(grad_v)};
  expect_near(computed(in, at::kDouble), torch, 1e-12, "float64");
}

// --- products ------------------------------------------------------------------------------------

TEST(Product, TransposedNarrowedEmptyAndAccumulated) {
  for (const at::ScalarType type : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
    const at::ScalarType sums = type == at::kDouble ? at::kDouble : at::kFloat;
    for (const std::int64_t m : {0, 1, 3, 300}) {
      for (const std::int64_t n : {1, 5, 1500}) {
        for (const std::int64_t k : {0, 1, 6}) {
          for (int variant = 0; variant < 32; ++variant) {
            const auto matrix = [&](std::int64_t rows, std::int64_t cols, int way) {
              const std::uint64_t seed = static_cast<std::uint64_t>(rows + 7 * cols + way);
              return (way & 1) != 0 ? random({cols + 2, rows + 1}, seed)
                                          .to(type)
                                          .narrow(0, 1, cols)
                                          .narrow(1, 0, rows)
                                          .t()
                                    : random({rows, cols + 3}, seed).to(type).narrow(1, 2, cols);
            };
            const at::Tensor a = matrix(m, k, variant);
            const at::Tensor b = matrix(k, n, variant >> 1);
            const bool accumulate = (variant & 4) != 0;
            const bool wide = (variant & 8) != 0;
            const at::Tensor room = random({m, n + 2}, 9).to(wide ? sums : type);
            const at::Tensor to = room.narrow(1, (variant & 16) != 0 ? 1 : 0, n);
            at::Tensor want = at::matmul(a.to(at::kDouble), b.to(at::kDouble));
            if (accumulate) {
              want = want + to.to(at::kDouble);
            }
            ops::product(a, b, to, accumulate, Tiles().product_rows(to.size(1)));
            const double tolerance = to.scalar_type() == at::kBFloat16 ? 0.008
                                     : to.scalar_type() == at::kHalf   ? 0.001
                                     : sums == at::kFloat              ? 1e-5
                                                                       : 1e-13;
            if (want.numel() > 0) {
              ASSERT_LE(off(to.to(at::kDouble), want), tolerance)
                  << at::toString(type) << " " << m << " " << n << " " << k << " " << variant;
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace paradyse
