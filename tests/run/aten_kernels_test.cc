// Every operation in its two forms, our loops and ATen's operations: on CPU tensors they must
// agree. What CUDA tensors go through is the second, so this is its proof on a machine without a
// GPU.
#include "src/run/kernels/aten/aten_kernels.h"

#include <atomic>
#include <cmath>
#include <limits>
#include <map>
#include <mutex>
#include <set>
#include <tuple>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <ATen/record_function.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "paradyse/plan/plan.h"
#include "paradyse/run/gradients.h"
#include "paradyse/run/session.h"
#include "src/plan/model/text/text_shape.h"
#include "src/run/comm/boxes.h"
#include "src/run/kernels/aten/aten_attention.h"
#include "src/run/kernels/cpu/tile_attention.h"
#include "src/run/kernels/switches.h"
#include "src/run/measure/attention_kernels.h"
#include "tests/support/equality.h"
#include "tests/support/plans.h"
#include "tests/support/refusal.h"

namespace paradyse {
namespace {

using ops::Attention;
using ops::Columns;

constexpr double kNothing = -std::numeric_limits<double>::infinity();

// While it lives, CPU tensors go through ATen.
struct ThroughAten {
  ThroughAten() { send_cpu_through_aten(true); }
  ~ThroughAten() { send_cpu_through_aten(false); }
};

// The form that they take now.
const Kernels& table() { return kernels_for(at::kCPU); }

void attend_here(const Attention& attention, const ops::AttentionTensors& tensors, bool merge) {
  (cpu_through_aten() ? aten::attend : ops::attend)(attention, tensors, merge);
}
void attend_adjoint_here(
    const Attention& attention,
    const ops::AttentionTensors& tensors,
    const ops::AttentionGradients& gradients) {
  (cpu_through_aten() ? aten::attend_adjoint : ops::attend_adjoint)(attention, tensors, gradients);
}

at::ScalarType sums_of(at::ScalarType type) {
  return type == at::kDouble ? at::kDouble : at::kFloat;
}

at::Tensor random(std::vector<std::int64_t> sizes, std::uint64_t seed, at::ScalarType type) {
  at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  return at::randn(sizes, generator, at::TensorOptions().dtype(at::kDouble)).to(type);
}

at::Tensor numbers(const std::vector<std::int64_t>& of) { return at::tensor(of, at::kLong); }

// Rows inside a wider matrix, as ops hand them over.
at::Tensor strided(std::int64_t rows, std::int64_t cols, std::uint64_t seed, at::ScalarType type) {
  return random({rows, cols + 5}, seed, type).narrow(1, 3, cols);
}

double tolerance(at::ScalarType type) {
  return type == at::kDouble     ? 1e-12
         : type == at::kFloat    ? 2e-5
         : type == at::kBFloat16 ? 0.016
                                 : 0.002;
}

// Largest difference, as a share of the largest number; infinities and NaNs in the same places are
// none.
double off(const at::Tensor& a, const at::Tensor& b) {
  if (a.numel() == 0) {
    return 0;
  }
  const at::Tensor x = a.to(at::kDouble);
  const at::Tensor y = b.to(at::kDouble);
  const at::Tensor same = (x == y).logical_or(x.isnan().logical_and(y.isnan()));
  const at::Tensor difference = (x - y).abs().masked_fill(same, 0);
  const double size = y.abs().nan_to_num(0.0, 0.0, 0.0).max().item<double>();
  return difference.nan_to_num(INFINITY, INFINITY, INFINITY).max().item<double>() / (size + 1);
}

// Runs body(tensors) in both forms, each on copies of `tensors`, and compares all that it left in
// them.  `made_from`: the narrowest type that results went through.
void expect_same(
    const std::string& what,
    const std::vector<at::Tensor>& tensors,
    const std::function<void(const std::vector<at::Tensor>& tensors)>& body,
    at::ScalarType made_from = at::kDouble) {
  at::set_num_threads(1);  // as ranks have it
  const auto run = [&](bool aten) {
    std::vector<at::Tensor> own;
    for (const at::Tensor& tensor : tensors) {
      // the strides are kept: rows stay inside their wider matrix
      const at::Tensor room = at::empty_strided(
          {tensor.dim() == 0 ? 1
                             : tensor.size(0) * std::max<std::int64_t>(1, tensor.stride(0)) + 1},
          {1},
          tensor.options());
      own.push_back(room.as_strided(tensor.sizes(), tensor.strides()).copy_(tensor));
    }
    if (aten) {
      const ThroughAten here;
      body(own);
    } else {
      body(own);
    }
    return own;
  };
  const std::vector<at::Tensor> loops = run(false);
  const std::vector<at::Tensor> aten = run(true);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    EXPECT_LE(
        off(aten[i], loops[i]), std::max(tolerance(tensors[i].scalar_type()), tolerance(made_from)))
        << what << ", tensor " << i << " of " << c10::toString(tensors[i].scalar_type());
  }
}

const at::ScalarType kTypes[] = {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf};

struct Size {
  std::int64_t rows;
  std::int64_t cols;
};
const Size kSizes[] = {{0, 4}, {1, 1}, {3, 8}, {7, 33}, {70, 130}};

TEST(AtenKernels, Norms) {
  for (const at::ScalarType type : kTypes) {
    for (const auto& [t, H] : kSizes) {
      for (const std::int64_t heads : {1, 3}) {
        for (const bool accumulate : {false, true}) {
          const at::ScalarType sums = sums_of(type);
          const at::Tensor x = strided(t, heads * H, 1, type);
          const at::Tensor g = strided(t, heads * H, 2, type);
          const at::Tensor w = random({H}, 3, type);
          const std::vector<at::Tensor> tensors = {
              x,
              w,
              g,
              strided(t, heads * H, 4, type),
              strided(t, heads * H, 5, type),
              random({H}, 6, sums)};
          expect_same("rms_norm", tensors, [&](const auto& own) {
            table().rms_norm(own[0], own[1], 1e-5, own[3]);
            table().rms_norm_adjoint(own[0], own[1], 1e-5, {own[2], own[4], accumulate, own[5]});
          });
          if (heads == 1) {
            std::vector<at::Tensor> more = tensors;
            more.push_back(random({H}, 7, type));
            more.push_back(random({H}, 8, sums));
            expect_same("layer_norm", more, [&](const auto& own) {
              table().layer_norm(own[0], own[1], own[6], 1e-5, own[3]);
              table().layer_norm_adjoint(
                  own[0], own[1], 1e-5, {own[2], own[4], accumulate, own[5], own[7]});
            });
          }
        }
      }
    }
  }
}

TEST(AtenKernels, RowsAndTheirSums) {
  for (const at::ScalarType type : kTypes) {
    for (const auto& [t, H] : kSizes) {
      for (const double scale : {1.0, 0.3}) {
        for (const at::ScalarType of : {type, sums_of(type)}) {
          expect_same(
              "add_to_rows",
              {strided(t, H, 1, of), random({H}, 2, type)},
              [scale](const auto& own) { table().add_to_rows(own[0], own[1], scale); });
        }
        expect_same(
            "add_sum_of_rows",
            {strided(t, H, 1, type), random({H}, 2, sums_of(type))},
            [scale](const auto& own) { table().add_sum_of_rows(own[0], own[1], scale); });
      }
    }
  }
}

// The same elements are dropped: nothing but a rounding may differ.
TEST(AtenKernels, DropoutDrawsTheSameMask) {
  for (const at::ScalarType type : kTypes) {
    for (const auto& [t, H] : kSizes) {
      std::vector<std::int64_t> tokens;
      for (std::int64_t i = 0; i < t; ++i) {
        tokens.push_back(i % 3 == 0 ? 5 * i : (std::int64_t{1} << 33) + i);
      }
      for (const double probability : {0.0, 0.3, 0.9}) {
        const kernels::Dropout dropout{
            .probability = probability, .seed = 0xFEDCBA9876543210, .site = 0xFFFFFFF7};
        const at::Tensor from = random({t, H}, 1, type);
        expect_same("dropout", {from, random({t, H}, 2, type)}, [&](const auto& own) {
          table().dropout(dropout, numbers(tokens), own[0], own[1]);
        });
        expect_same("dropout in place", {from}, [&](const auto& own) {
          table().dropout(dropout, numbers(tokens), own[0], own[0]);
        });
      }
    }
  }
}

TEST(AtenKernels, AttentionDropoutDrawsTheSameMask) {
  for (const at::ScalarType type : kTypes) {
    for (const auto& [t, keys] : kSizes) {
      for (const std::int64_t first : {0, 1, 7, 66}) {
        const kernels::AttentionDropout dropout{
            .drawn = {.probability = 0.3, .seed = 0xFEDCBA9876543210, .site = 0xFFFFFFF7},
            .token = (std::int64_t{1} << 47) + 9,  // as large as there may be
            .head = 65534,
            .key = first};
        for (const at::ScalarType from : {type, sums_of(type)}) {
          expect_same(
              "drop_probabilities",
              {strided(t, keys, 1, from), random({t, keys}, 2, type)},
              [&](const auto& own) { table().drop_probabilities(dropout, own[0], own[1]); });
        }
        expect_same(
            "drop_probabilities in place", {random({t, keys}, 1, type)}, [&](const auto& own) {
              table().drop_probabilities(dropout, own[0], own[0]);
            });
      }
    }
  }
}

TEST(AtenKernels, Rotations) {
  for (const at::ScalarType type : kTypes) {
    for (const std::int64_t half : {1, 4, 5}) {
      for (const std::int64_t t : {0, 1, 9}) {
        std::vector<std::int64_t> positions;
        for (std::int64_t i = 0; i < t; ++i) {
          positions.push_back((7 * i) % 11);
        }
        for (const bool inverse : {false, true}) {
          for (const std::int64_t heads : {0, 1, 3, -3}) {  // -3: three, whose pairs are neighbours
            expect_same(
                "rotate",
                {strided(t, 8 * half, 1, type),
                 random({11, half}, 2, sums_of(type)),
                 random({11, half}, 3, sums_of(type))},
                [&](const auto& own) {
                  table().rotate(
                      own[0],
                      {std::abs(heads),
                       2 * half,
                       own[1],
                       own[2],
                       numbers(positions),
                       inverse,
                       heads < 0});
                });
          }
        }
      }
    }
  }
}

// Far from zero, too, where exponentials would overflow.
TEST(AtenKernels, Swiglu) {
  for (const at::ScalarType type : kTypes) {
    for (const auto& [t, F] : kSizes) {
      for (const double height : {1.0, 100.0}) {
        const at::Tensor h = strided(t, 2 * F, 1, type) * height;
        expect_same(
            "swiglu",
            {h, strided(t, F, 2, type), strided(t, F, 3, type), strided(t, 2 * F, 4, type)},
            [](const auto& own) {
              table().swiglu(own[0], own[1]);
              table().swiglu_adjoint(own[0], own[2], own[3]);
            });
      }
    }
  }
}

TEST(AtenKernels, Products) {
  for (const at::ScalarType type : kTypes) {
    for (const std::int64_t m : {0, 1, 5, 200}) {
      for (const std::int64_t n : {1, 7, 900}) {
        for (const std::int64_t k : {0, 1, 6}) {
          for (const at::ScalarType of : {type, sums_of(type)}) {
            for (int variant = 0; variant < 8; ++variant) {
              const bool accumulate = (variant & 4) != 0;
              expect_same(
                  "product",
                  {(variant & 1) != 0 ? strided(k, m, 1, type) : strided(m, k, 1, type),
                   (variant & 2) != 0 ? strided(n, k, 2, type) : strided(k, n, 2, type),
                   strided(m, n, 3, of)},
                  [&](const auto& own) {
                    table().product(
                        (variant & 1) != 0 ? own[0].t() : own[0],
                        (variant & 2) != 0 ? own[1].t() : own[1],
                        own[2],
                        accumulate,
                        Tiles().product_rows(n));
                  });
            }
          }
        }
      }
    }
  }
}

TEST(AtenKernels, ScaledProducts) {
  for (const at::ScalarType type : kTypes) {
    for (const double beta : {0.0, 1.0, -0.5}) {
      expect_same(
          "gemm",
          {strided(5, 6, 1, type), strided(9, 6, 2, type), strided(5, 9, 3, sums_of(type))},
          [&](const auto& own) { table().scaled_product(0.7, own[0], own[1].t(), beta, own[2]); });
    }
  }
}

// More rows than a stretch of temporaries.
TEST(AtenKernels, ManyStretches) {
  const std::int64_t H = aten::kScratch / 3;
  const at::Tensor x = random({7, H}, 1, at::kFloat);
  expect_same("rms_norm", {x, random({H}, 2, at::kFloat), at::zeros({7, H})}, [](const auto& own) {
    table().rms_norm(own[0], own[1], 1e-5, own[2]);
  });
}

// --- attention -----------------------------------------------------------------------------------

// Keys in `pieces` blocks that are merged one after the other; then every piece's adjoint.
void expect_same_attention(
    const AttentionBlock& block,
    std::int64_t heads,
    std::int64_t D,
    bool causal,
    int pieces,
    at::ScalarType type,
    double size = 1,
    double cap = 0,
    const kernels::AttentionDropout& dropout = {}) {
  const std::int64_t queries = block.queries.end;
  const std::int64_t keys = block.keys.end;
  const at::ScalarType sums = sums_of(type);
  const at::ScalarType results = pieces == 1 ? type : sums;
  const auto columns = [](const at::Tensor& matrix) { return Columns{matrix, 0}; };
  expect_same(
      "attention",
      {strided(queries, heads * D, 1, type) * size,
       strided(keys, D, 2, type),
       strided(keys, D, 3, type),
       strided(queries, heads * D, 4, type),     // gradient of o
       strided(queries, heads * D, 5, results),  // o
       strided(queries, heads, 6, sums),         // l
       strided(queries, heads * D, 7, results),
       strided(keys, D, 8, results),
       strided(keys, D, 9, results)},
      [&](const std::vector<at::Tensor>& own) {
        const auto each = [&](auto body) {
          const std::int64_t n = block.keys.size();
          for (int i = 0; i < pieces; ++i) {
            const Interval part{n * i / pieces, n * (i + 1) / pieces};
            if (!part.empty()) {
              body(
                  Attention{
                      .block =
                          {block.queries,
                           {block.keys.begin + part.begin, block.keys.begin + part.end},
                           block.diagonal - part.begin,
                           block.window},
                      .heads = heads,
                      .head_dim = D,
                      .scale = 1 / std::sqrt(static_cast<double>(D)),
                      .masked = causal,
                      .cap = cap,
                      .dropout = dropout.from(0, 0, part.begin)},
                  part.begin > 0);
            }
          }
        };
        each([&](const Attention& attention, bool merge) {
          attend_here(
              attention,
              {columns(own[0]), columns(own[1]), columns(own[2]), columns(own[4]), columns(own[5])},
              merge);
        });
        const Columns o = columns(own[4].to(type));
        each([&](const Attention& attention, bool) {
          attend_adjoint_here(
              attention,
              {columns(own[0]), columns(own[1]), columns(own[2]), o, columns(own[5])},
              {columns(own[3]), columns(own[6]), columns(own[7]), columns(own[8])});
        });
      },
      type);
}

TEST(AtenAttention, WholeCausalAndOffTheDiagonal) {
  for (const at::ScalarType type : kTypes) {
    for (const std::int64_t tokens : {1, 2, 63, 65, 130, 533}) {
      for (const bool causal : {true, false}) {
        expect_same_attention({{0, tokens}, {0, tokens}}, 2, 5, causal, 1, type);
      }
    }
    // rows that see nothing: o = 0 and l = -inf
    for (const std::int64_t diagonal : {-200, -70, -64, -1, 0, 3, 65, 200}) {
      expect_same_attention({{5, 75}, {9, 110}, diagonal}, 2, 5, true, 1, type);
    }
  }
}

TEST(AtenAttention, WindowsAndCaps) {
  for (const at::ScalarType type : kTypes) {
    for (const std::int64_t window : {1, 6, 64, 300}) {
      expect_same_attention({{0, 533}, {0, 533}, 0, window}, 1, 5, true, 1, type);
      for (const int pieces : {1, 3}) {
        // the last queries see nothing of a narrow one
        expect_same_attention({{5, 75}, {9, 110}, 60, window}, 2, 5, true, pieces, type, 1, 2.5);
      }
    }
  }
}

TEST(AtenAttention, DropsTheSameProbabilities) {
  const kernels::AttentionDropout dropout{
      .drawn = {.probability = 0.2, .seed = 0xFEDCBA9876543210, .site = 8},
      .token = 1234567,
      .head = 3,
      .key = 2};
  for (const at::ScalarType type : kTypes) {
    for (const bool causal : {true, false}) {
      for (const int pieces : {1, 3}) {
        expect_same_attention({{0, 533}, {0, 533}}, 1, 16, causal, pieces, type, 1, 0, dropout);
        expect_same_attention(
            {{5, 75}, {9, 110}, 60, causal ? 30 : 0}, 2, 5, causal, pieces, type, 1, 2.5, dropout);
      }
    }
  }
}

// Torch's kernels draw masks of their own: blocks with dropout are left to tiles, whatever they are
// like beside.
TEST(AtenAttention, NoKernelOfTorchsDropsOthers) {
  const std::int64_t D = 64;
  const std::int64_t T = 300;
  const std::vector<std::int64_t> tokens(T, 0);
  const at::Tensor q = random({T, D}, 1, at::kBFloat16);
  const at::Tensor kv = random({T, 2 * D}, 2, at::kBFloat16);
  const at::Tensor o = at::empty_like(q);
  const at::Tensor l = at::empty({T, 1}, at::kFloat);
  ops::BlockAttention attention{
      .blocks = {{{0, T}, {0, T}}},
      .runs = {{.queries = {0, 1}, .key = 0}},
      .query_heads = 1,
      .key_heads = 1,
      .head_dim = D,
      .scale = 0.125,
      .dense_from = 100,
      .tokens = tokens,
      .positions = tokens};
  aten::attend_blocks(attention, {.q = q, .kv = kv, .o = o, .l = l}, false);
  const at::Tensor without = o.clone();
  attention.dropout = {.probability = 0.5, .seed = 3, .site = 2};
  aten::attend_blocks(attention, {.q = q, .kv = kv, .o = o, .l = l}, false);
  EXPECT_GT(off(o, without), 0.1);
  const at::Tensor expected = at::empty_like(q);
  ops::attend_blocks(attention, {.q = q, .kv = kv, .o = expected, .l = l}, false);
  EXPECT_LE(off(o, expected), tolerance(at::kBFloat16));
}

// -inf before, after and on both sides of a merge.
TEST(AtenAttention, MergedBlocks) {
  for (const at::ScalarType type : kTypes) {
    for (const std::int64_t diagonal : {-90, -30, -1, 0, 20, 100}) {
      for (const int pieces : {2, 3, 5}) {
        expect_same_attention({{3, 80}, {2, 72}, diagonal}, 3, 4, true, pieces, type);
      }
    }
  }
}

TEST(AtenAttention, HugeAndTinyScores) {
  for (const double size : {1e-4, 300.0}) {
    for (const int pieces : {1, 3}) {
      expect_same_attention({{0, 80}, {0, 80}}, 1, 4, true, pieces, at::kDouble, size);
    }
  }
}

// --- flash ---------------------------------------------------------------------------------------

std::int64_t blocks_in(const std::vector<aten::Pack>& packs) {
  std::int64_t count = 0;
  for (const aten::Pack& pack : packs) {
    count += static_cast<std::int64_t>(pack.blocks.size());
  }
  return count;
}

TEST(Packs, HoldNeighboursThatTheKernelTakes) {
  const AttentionBlock first{{0, 4}, {0, 4}};
  const AttentionBlock second{{4, 9}, {4, 9}};
  const AttentionBlock corner{{9, 12}, {9, 14}, 2};
  const std::vector<AttentionBlock> three = {first, second, corner};
  const std::vector<aten::Pack> one = aten::packs(three, true);
  ASSERT_EQ(one.size(), 1);
  EXPECT_TRUE(one[0].plain && one[0].masked && !one[0].onto);
  EXPECT_EQ(one[0].queries(), (Interval{0, 12}));
  EXPECT_EQ(one[0].keys(), (Interval{0, 14}));

  const AttentionBlock seen{{4, 9}, {4, 9}, 4};  // every query sees every key
  const AttentionBlock again{{4, 9}, {9, 11}, 1};
  const AttentionBlock odd{{9, 12}, {11, 14}, 1};
  const AttentionBlock blind{{12, 16}, {14, 16}, -2};
  const AttentionBlock one_query{{16, 17}, {16, 18}, 1};
  const AttentionBlock apart{{18, 20}, {18, 20}};
  const std::vector<AttentionBlock> all = {first, seen, again, odd, blind, one_query, apart};
  const std::vector<aten::Pack> packs = aten::packs(all, true);
  EXPECT_EQ(blocks_in(packs), 7);
  std::vector<std::string> text;
  for (const aten::Pack& pack : packs) {
    text.push_back(
        std::string(pack.plain ? "plain" : "tiles") + (pack.masked ? " causal" : " whole") +
        (pack.onto ? " onto" : ""));
  }
  EXPECT_THAT(
      text,
      testing::ElementsAre(
          "plain causal",
          "plain whole",
          "plain whole onto",
          "tiles causal",
          "tiles causal",
          "tiles whole",
          "plain causal"));
  // a window is a call's own, and no matter where all is seen; it has to end with the last key
  const AttentionBlock narrow{{0, 4}, {0, 4}, 0, 2};
  const AttentionBlock as_narrow{{4, 9}, {4, 11}, 2, 2};
  const AttentionBlock wider{{9, 14}, {11, 16}, 0, 3};
  const AttentionBlock shifted{{14, 18}, {16, 19}, 2, 2};
  const std::vector<AttentionBlock> windows = {narrow, as_narrow, wider, shifted};
  const std::vector<aten::Pack> windowed = aten::packs(windows, true, 1);
  ASSERT_EQ(windowed.size(), 3);
  EXPECT_EQ(windowed[0].blocks.size(), 2);
  EXPECT_TRUE(windowed[0].plain && windowed[1].plain && !windowed[2].plain);
  EXPECT_EQ(windowed[0].window, 2);
  EXPECT_EQ(windowed[1].window, 3);
  // seen by all: nothing is causal there
  EXPECT_EQ(aten::packs(three, false).size(), 1);
  // to both sides: whole documents, whose last query would see a key behind the last
  const AttentionBlock both{{0, 6}, {0, 6}, 1, 3};
  const AttentionBlock as_both{{6, 9}, {6, 9}, 1, 3};
  const AttentionBlock border{{9, 12}, {9, 13}, 1, 3};
  const std::vector<AttentionBlock> sides = {both, as_both, border};
  const std::vector<aten::Pack> to_both = aten::packs(sides, true, 1);
  ASSERT_EQ(to_both.size(), 2);
  EXPECT_TRUE(to_both[0].plain && to_both[1].plain);
  EXPECT_EQ(to_both[0].blocks.size(), 2);
  EXPECT_EQ(to_both[0].behind, 1);
  EXPECT_EQ(to_both[1].behind, 0);
}

// What surrounds torch's kernel (packing, heads, merging), with the plain stand-in that CPU tensors
// get in its place, against the tiles.
TEST(Flash, PacksOfDocumentsAreTheirTiles) {
  at::set_num_threads(1);  // as ranks have it
  const std::int64_t D = 8;
  const std::int64_t heads = 6;
  const std::int64_t key_heads = 2;
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    for (const auto& [causal, blocks] : std::vector<std::pair<bool, std::vector<AttentionBlock>>>{
             {true, {{{2, 7}, {1, 6}}, {{7, 19}, {6, 25}, 7}, {{19, 22}, {25, 28}}}},
             {false, {{{2, 7}, {1, 6}}, {{7, 19}, {6, 25}, 7}, {{19, 22}, {25, 28}}}},
             // windows of three tokens to both sides
             {true,
              {{{2, 7}, {1, 6}, 2, 5}, {{7, 19}, {6, 25}, 9, 5}, {{19, 22}, {25, 28}, 2, 5}}}}) {
      const std::vector<aten::Pack> packs = aten::packs(blocks, causal);
      ASSERT_EQ(packs.size(), 1);
      const at::Tensor q = strided(23, heads * D, 1, type);
      const at::Tensor k = strided(30, key_heads * D, 2, type);
      const at::Tensor v = strided(30, key_heads * D, 3, type);
      const at::Tensor g = strided(23, heads * D, 4, type);
      struct Results {
        at::Tensor o, l, grad_q, grad_k, grad_v;
      };
      const auto room = [&](at::ScalarType of) {
        return Results{
            random({23, heads * D}, 5, of),
            random({23, heads}, 6, at::kFloat),
            random({23, heads * D}, 7, of),
            random({30, key_heads * D}, 8, of),
            random({30, key_heads * D}, 9, of)};
      };
      for (const bool merge : {false, true}) {
        const Results flash = room(at::kFloat);
        const Results tiles = room(at::kFloat);
        if (merge) {
          for (const Results* results : {&flash, &tiles}) {
            results->l.narrow(0, 3, 2).fill_(kNothing);  // nothing was seen before
            results->o.narrow(0, 3, 2).zero_();
          }
        }
        const double scale = 1 / std::sqrt(static_cast<double>(D));
        const aten::FlashHeads all{
            .heads = heads, .key_heads = key_heads, .head_dim = D, .scale = scale};
        aten::flash_attend(packs[0], all, {{q}, {k}, {v}, {flash.o}, {flash.l}}, merge);
        aten::flash_attend_adjoint(
            packs[0],
            all,
            {{q}, {k}, {v}, {flash.o.to(type)}, {flash.l}},
            {{g}, {flash.grad_q}, {flash.grad_k}, {flash.grad_v}});
        for (const AttentionBlock& block : blocks) {
          for (std::int64_t key = 0; key < key_heads; ++key) {
            const Attention attention{
                .block = block,
                .heads = heads / key_heads,
                .head_dim = D,
                .scale = scale,
                .masked = causal};
            const std::int64_t column = key * attention.heads * D;
            attend_here(
                attention,
                {{q, column},
                 {k, key * D},
                 {v, key * D},
                 {tiles.o, column},
                 {tiles.l, key * attention.heads}},
                merge);
            attend_adjoint_here(
                attention,
                {{q, column},
                 {k, key * D},
                 {v, key * D},
                 {tiles.o.to(type), column},
                 {tiles.l, key * attention.heads}},
                {{g, column},
                 {tiles.grad_q, column},
                 {tiles.grad_k, key * D},
                 {tiles.grad_v, key * D}});
          }
        }
        EXPECT_LE(off(flash.o, tiles.o), tolerance(type));
        EXPECT_LE(off(flash.l, tiles.l), 2e-5);
        EXPECT_LE(off(flash.grad_q, tiles.grad_q), tolerance(type));
        EXPECT_LE(off(flash.grad_k, tiles.grad_k), tolerance(type));
        EXPECT_LE(off(flash.grad_v, tiles.grad_v), tolerance(type));
      }
    }
  }
}

// --- long documents ------------------------------------------------------------------------------

TEST(Packs, LongSquareOrEvenBlocksAreDense) {
  const auto text = [](const std::vector<AttentionBlock>& blocks, bool causal) {
    std::vector<std::string> all;
    for (const aten::Pack& pack : aten::packs(blocks, causal, 256)) {
      EXPECT_TRUE(!pack.dense || (!pack.plain && pack.blocks.size() == 1));
      all.push_back(
          (pack.dense   ? "dense"
           : pack.plain ? "flash"
                        : "tiles") +
          std::string(" ") + std::to_string(pack.blocks.size()) + (pack.onto ? " onto" : ""));
    }
    return all;
  };
  EXPECT_THAT(
      text(
          {{{0, 300}, {0, 300}},
           {{300, 555}, {300, 555}},
           {{555, 560}, {555, 560}},
           {{560, 816}, {560, 816}}},
          true),
      testing::ElementsAre("dense 1", "flash 2", "dense 1"));
  // cuDNN's causal mask begins at the first key
  EXPECT_THAT(text({{{0, 300}, {0, 400}, 100}}, true), testing::ElementsAre("flash 1"));
  EXPECT_THAT(text({{{0, 300}, {0, 300}, -3}}, true), testing::ElementsAre("tiles 1"));
  // keys that all see cannot be padded: only sizes that dense_rows() leaves as they are
  const AttentionBlock own{{0, 256}, {0, 256}};
  const AttentionBlock seen{{0, 256}, {256, 640}, 1000};
  const AttentionBlock odd{{0, 256}, {640, 941}, 1000};
  EXPECT_THAT(
      text({own, seen, odd}, true),
      testing::ElementsAre("dense 1", "dense 1 onto", "flash 1 onto"));
  EXPECT_THAT(
      text({{{0, 256}, {0, 384}}, {{256, 556}, {384, 684}}}, false),
      testing::ElementsAre("dense 1", "flash 1"));
  for (const aten::Pack& pack : aten::packs(std::vector{own, seen, odd}, true)) {
    EXPECT_FALSE(pack.dense) << "nobody asked for it";
  }
}

TEST(DenseRows, AreFewAndSeldomMany) {
  std::set<std::int64_t> sizes;
  for (std::int64_t tokens = 512; tokens <= 65'536; ++tokens) {
    const std::int64_t rows = aten::dense_rows(tokens);
    ASSERT_GE(rows, tokens);
    ASSERT_LE(rows, tokens + tokens / 4) << tokens;
    ASSERT_EQ(aten::dense_rows(rows), rows) << tokens;
    ASSERT_TRUE(tokens < 4096 || rows - tokens < 1024) << tokens;
    sizes.insert(rows);
  }
  EXPECT_LE(sizes.size(), 4 + 4 + 4 + 62);
}

// Launched by the pack's call, and those that have work to do; for a head.
std::pair<std::int64_t, std::int64_t> tiles_of(const aten::Pack& pack) {
  std::int64_t longest = 0;
  std::int64_t used = 0;
  for (const AttentionBlock& block : pack.blocks) {
    const std::int64_t tiles = (std::max(block.queries.size(), block.keys.size()) + 127) / 128;
    longest = std::max(longest, tiles);
    used += tiles;
  }
  return {longest * static_cast<std::int64_t>(pack.blocks.size()), used};
}

void expect_few_empty_tiles(
    const std::vector<std::int64_t>& lengths, std::int64_t dense_from, std::size_t most_packs) {
  std::vector<AttentionBlock> blocks;
  std::int64_t end = 0;
  for (const std::int64_t length : lengths) {
    blocks.push_back({{end, end + length}, {end, end + length}});
    end += length;
  }
  const std::vector<aten::Pack> packs = aten::packs(blocks, true, dense_from);
  EXPECT_LE(packs.size(), most_packs);
  std::int64_t next = 0;
  for (const aten::Pack& pack : packs) {
    EXPECT_EQ(pack.queries().begin, next) << "not in their order";
    next = pack.queries().end;
    const auto [launched, used] = tiles_of(pack);
    EXPECT_LE(launched, 2 * used + 64);
    EXPECT_LE(pack.dense ? dense_from : 0, pack.queries().size());
  }
  EXPECT_EQ(next, end);
  EXPECT_EQ(blocks_in(packs), std::ssize(blocks));
}

TEST(Packs, LaunchFewEmptyTiles) {
  const std::int64_t never = aten::kNeverDense;
  std::vector<std::int64_t> lengths(10'000, 60);
  expect_few_empty_tiles(lengths, never, 1);
  for (const std::size_t place : {std::size_t{0}, std::size_t{5'000}, lengths.size()}) {
    std::vector<std::int64_t> with = lengths;
    with.insert(with.begin() + static_cast<std::ptrdiff_t>(place), 16'384);
    expect_few_empty_tiles(with, 4096, 3);
    expect_few_empty_tiles(with, never, 3);
  }
  // two calls for each long one at most
  for (std::size_t i = 0; i < 100; ++i) {
    lengths[i * 100] = 16'000;
  }
  expect_few_empty_tiles(lengths, never, 200);
  std::uint64_t random = 1;
  for (std::int64_t& length : lengths) {
    random = random * 6364136223846793005U + 1442695040888963407U;
    length = std::int64_t{2} << (random >> 60U);  // to 65,536
  }
  expect_few_empty_tiles(lengths, never, lengths.size());
  expect_few_empty_tiles(lengths, 4096, lengths.size());
}

// What stands around the blocks in their matrices, and what is done with the results.
struct Around {
  std::int64_t behind = 0;  // rows after the last block, of numbers that are none of its business
  bool one_matrix = false;  // q | k | v
  bool merge = false;       // into results of earlier keys
  bool fresh = false;       // gradients are written, not added to
  std::int64_t dense_from = aten::kNeverDense;
};

const aten::FlashHeads kFewKeys{.heads = 6, .key_heads = 2, .head_dim = 8, .scale = 0.4};

struct AttentionRoom {
  Columns q, k, v, g;
  at::Tensor o, l;
  Columns grad_q, grad_k, grad_v;
  Interval queries, keys;
};

at::Tensor columns_of(const Columns& of, std::int64_t heads) {
  return of.matrix.narrow(1, of.first, heads * kFewKeys.head_dim);
}

AttentionRoom room_for(
    const std::vector<AttentionBlock>& blocks, const Around& around, at::ScalarType type) {
  const std::int64_t N = kFewKeys.heads * kFewKeys.head_dim;
  const std::int64_t K = kFewKeys.key_heads * kFewKeys.head_dim;
  AttentionRoom room;
  room.queries = {blocks.front().queries.begin, blocks.back().queries.end};
  room.keys = {blocks.front().keys.begin, blocks.back().keys.end};
  const std::int64_t rows = room.queries.end + around.behind;
  const std::int64_t key_rows = room.keys.end + around.behind;
  const auto place =
      [&](Columns& q, Columns& k, Columns& v, at::ScalarType of, std::uint64_t seed) {
        if (around.one_matrix) {
          const at::Tensor qkv = strided(rows, N + 2 * K, seed, of);
          q = {qkv, 0};
          k = {qkv, N};
          v = {qkv, N + K};
        } else {
          q = {strided(rows, N, seed, of)};
          k = {strided(key_rows, K, seed + 1, of)};
          v = {strided(key_rows, K, seed + 2, of)};
        }
      };
  place(room.q, room.k, room.v, type, 1);
  room.g = {strided(rows, N, 4, type)};
  const auto spoil = [&](const at::Tensor& x) {
    x.narrow(0, x.size(0) - around.behind, around.behind).fill_(1000);
  };
  for (const Columns* x : {&room.q, &room.k, &room.v, &room.g}) {
    spoil(x->matrix);
  }
  room.o = random({rows, N}, 5, at::kFloat);
  room.l = random({rows, kFewKeys.heads}, 6, at::kFloat);
  if (around.merge) {  // nothing was seen before by some
    room.l.narrow(0, room.queries.begin + 1, 2).fill_(kNothing);
    room.o.narrow(0, room.queries.begin + 1, 2).zero_();
  }
  place(room.grad_q, room.grad_k, room.grad_v, at::kFloat, 7);
  return room;
}

// What blocks leave: o and l, and what they add to the gradients.
struct AttentionResults {
  at::Tensor o, l, q, k, v;
};

AttentionResults by_packs(
    const std::vector<AttentionBlock>& blocks,
    bool causal,
    const Around& around,
    const AttentionRoom& room) {
  const std::vector<aten::Pack> packs = aten::packs(blocks, causal, around.dense_from);
  const at::Tensor o = room.o.clone();
  const at::Tensor l = room.l.clone();
  for (const aten::Pack& pack : packs) {
    EXPECT_TRUE(pack.plain || pack.dense);
    aten::flash_attend(
        pack, kFewKeys, {room.q, room.k, room.v, {o}, {l}}, around.merge || pack.onto);
  }
  const at::Tensor q = columns_of(room.grad_q, kFewKeys.heads);
  const at::Tensor k = columns_of(room.grad_k, kFewKeys.key_heads);
  const at::Tensor v = columns_of(room.grad_v, kFewKeys.key_heads);
  const std::vector<at::Tensor> before = {q.clone(), k.clone(), v.clone()};
  if (around.fresh) {
    q.narrow(0, room.queries.begin, room.queries.size()).fill_(NAN);
    k.narrow(0, room.keys.begin, room.keys.size()).fill_(NAN);
    v.narrow(0, room.keys.begin, room.keys.size()).fill_(NAN);
  }
  const at::Tensor rounded = o.to(room.q.matrix.scalar_type());
  for (const aten::Pack& pack : packs) {
    aten::flash_attend_adjoint(
        pack,
        kFewKeys,
        {room.q, room.k, room.v, {rounded}, {l}},
        {room.g, room.grad_q, room.grad_k, room.grad_v},
        around.fresh);
  }
  // what is written stands beside what was there; what nobody touched is as it was
  const auto added = [&](const at::Tensor& now, const at::Tensor& was, Interval rows) {
    at::Tensor difference = now - was;
    if (around.fresh) {
      difference.narrow(0, rows.begin, rows.size()).copy_(now.narrow(0, rows.begin, rows.size()));
    }
    return difference;
  };
  return {
      o,
      l,
      added(q, before[0], room.queries),
      added(k, before[1], room.keys),
      added(v, before[2], room.keys)};
}

// The same by our loops, tile by tile.
AttentionResults by_tiles(
    const std::vector<AttentionBlock>& blocks, bool causal, bool merge, const AttentionRoom& room) {
  const std::int64_t D = kFewKeys.head_dim;
  const std::int64_t group = kFewKeys.heads / kFewKeys.key_heads;
  AttentionResults made{
      room.o.clone(),
      room.l.clone(),
      at::zeros({room.q.matrix.size(0), kFewKeys.heads * D}),
      at::zeros({room.k.matrix.size(0), kFewKeys.key_heads * D}),
      at::zeros({room.v.matrix.size(0), kFewKeys.key_heads * D})};
  at::Tensor rounded;
  const auto each = [&](auto body) {
    std::int64_t begun = 0;
    for (const AttentionBlock& block : blocks) {
      for (std::int64_t key = 0; key < kFewKeys.key_heads; ++key) {
        const Attention attention{
            .block = block,
            .heads = group,
            .head_dim = D,
            .scale = kFewKeys.scale,
            .masked = causal};
        body(
            attention,
            ops::AttentionTensors{
                {room.q.matrix, room.q.first + key * group * D},
                {room.k.matrix, room.k.first + key * D},
                {room.v.matrix, room.v.first + key * D},
                {rounded.defined() ? rounded : made.o, key * group * D},
                {made.l, key * group}},
            key,
            block.queries.begin < begun);
      }
      begun = block.queries.end;
    }
  };
  each([&](const Attention& attention, const auto& tensors, std::int64_t, bool onto) {
    attend_here(attention, tensors, merge || onto);
  });
  rounded = made.o.to(room.q.matrix.scalar_type());
  each([&](const Attention& attention, const auto& tensors, std::int64_t key, bool) {
    attend_adjoint_here(
        attention,
        tensors,
        {{room.g.matrix, key * group * D},
         {made.q, key * group * D},
         {made.k, key * D},
         {made.v, key * D}});
  });
  return made;
}

// The same in float64, by the formulas.
AttentionResults in_double(
    const std::vector<AttentionBlock>& blocks, bool causal, bool merge, const AttentionRoom& room) {
  const std::int64_t D = kFewKeys.head_dim;
  const auto wide = [&](const Columns& of, std::int64_t heads) {
    return columns_of(of, heads).to(at::kDouble).unflatten(1, {heads, D});
  };
  const at::Tensor q = wide(room.q, kFewKeys.heads);
  const at::Tensor k = wide(room.k, kFewKeys.key_heads);
  const at::Tensor v = wide(room.v, kFewKeys.key_heads);
  const at::Tensor g = wide(room.g, kFewKeys.heads);
  const at::Tensor o = room.o.to(at::kDouble).unflatten(1, {kFewKeys.heads, D});
  const at::Tensor l = room.l.to(at::kDouble);
  AttentionResults made{o.flatten(1), l, at::zeros_like(q), at::zeros_like(k), at::zeros_like(v)};
  const auto each = [&](auto body) {
    std::int64_t begun = 0;
    for (const AttentionBlock& block : blocks) {
      for (std::int64_t h = 0; h < kFewKeys.heads; ++h) {
        const auto rows = [](const at::Tensor& x, Interval of, std::int64_t head) {
          return x.narrow(0, of.begin, of.size()).select(1, head);
        };
        const std::int64_t key = h / (kFewKeys.heads / kFewKeys.key_heads);
        at::Tensor s = rows(q, block.queries, h).mm(rows(k, block.keys, key).t()) * kFewKeys.scale;
        if (causal) {
          s.masked_fill_(at::ones_like(s, at::kBool).triu(block.diagonal + 1), kNothing);
        }
        body(
            s,
            [&](const at::Tensor& x) { return rows(x, block.queries, h); },
            [&](const at::Tensor& x) { return rows(x, block.keys, key); },
            block.queries.begin < begun);
      }
      begun = block.queries.end;
    }
  };
  each([&](const at::Tensor& s, auto of_q, auto of_k, bool onto) {
    const at::Tensor sum = at::logsumexp(s, {1});
    const at::Tensor l_rows = of_q(l.unsqueeze(2)).squeeze(1);
    const at::Tensor both = merge || onto ? at::logaddexp(l_rows, sum) : sum;
    const at::Tensor before =
        merge || onto ? (l_rows - both).exp().unsqueeze(1) * of_q(o) : at::zeros_like(of_q(o));
    of_q(o).copy_(before + (s - both.unsqueeze(1)).exp().mm(of_k(v)));
    l_rows.copy_(both);
  });
  each([&](const at::Tensor& s, auto of_q, auto of_k, bool) {
    const at::Tensor p = (s - of_q(l.unsqueeze(2))).exp();
    const at::Tensor dot = (of_q(o) * of_q(g)).sum(1, true);
    const at::Tensor d = p * (of_q(g).mm(of_k(v).t()) - dot) * kFewKeys.scale;
    of_q(made.q).add_(d.mm(of_k(k)));
    of_k(made.k).add_(d.t().mm(of_q(q)));
    of_k(made.v).add_(p.t().mm(of_q(g)));
  });
  for (at::Tensor* x : {&made.q, &made.k, &made.v}) {
    *x = x->flatten(1);
  }
  return made;
}

void expect_packs_are_tiles(
    const std::vector<AttentionBlock>& blocks, bool causal, const Around& around) {
  at::set_num_threads(1);  // as ranks have it
  for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    const AttentionRoom room = room_for(blocks, around, type);
    const AttentionResults packs = by_packs(blocks, causal, around, room);
    const AttentionResults tiles = by_tiles(blocks, causal, around.merge, room);
    const AttentionResults exact = in_double(blocks, causal, around.merge, room);
    for (const AttentionResults* judge : {&tiles, &exact}) {
      const std::string what = std::string(judge == &tiles ? "beside tiles" : "beside float64") +
                               (causal ? ", causal" : "") + (around.merge ? ", merged" : "") +
                               (around.fresh ? ", fresh" : "") +
                               (around.one_matrix ? ", one matrix" : "") + ", " +
                               std::to_string(around.behind) + " rows behind, dense from " +
                               std::to_string(around.dense_from);
      EXPECT_LE(off(packs.o, judge->o), tolerance(type)) << what;
      EXPECT_LE(off(packs.l, judge->l), 2e-5) << what;
      EXPECT_LE(off(packs.q, judge->q), tolerance(type)) << what;
      EXPECT_LE(off(packs.k, judge->k), tolerance(type)) << what;
      EXPECT_LE(off(packs.v, judge->v), tolerance(type)) << what;
    }
  }
}

// A few short documents among long ones, one of which ends the pack: whose rows past its end are
// those that follow, zeros of a copy, or of either kind.
TEST(Dense, DocumentsAreTheirTiles) {
  const std::vector<AttentionBlock> documents = {
      {{0, 150}, {0, 150}},
      {{150, 155}, {150, 155}},
      {{155, 283}, {155, 283}},
      {{283, 323}, {283, 323}},
      {{323, 540}, {323, 540}}};
  for (const std::int64_t dense_from : {std::int64_t{20}, std::int64_t{128}, aten::kNeverDense}) {
    for (const std::int64_t behind : {0, 7, 200}) {
      for (const bool one_matrix : {true, false}) {
        for (const bool merge : {true, false}) {
          expect_packs_are_tiles(
              documents,
              true,
              {.behind = behind,
               .one_matrix = one_matrix,
               .merge = merge,
               .fresh = !merge,
               .dense_from = dense_from});
        }
      }
    }
  }
}

// Queries and keys that begin at different rows; a document in the middle whose keys have a room
// of their own.
TEST(Dense, QueriesApartFromTheirKeys) {
  const std::vector<AttentionBlock> documents = {
      {{3, 150}, {1, 148}}, {{150, 200}, {148, 248}, 50}, {{200, 330}, {248, 378}}};
  for (const std::int64_t behind : {0, 60}) {
    expect_packs_are_tiles(documents, true, {.behind = behind, .fresh = true, .dense_from = 128});
  }
}

TEST(Dense, WholeBlocksOfEvenSizes) {
  const std::vector<AttentionBlock> lines = {
      {{0, 128}, {0, 256}}, {{128, 256}, {256, 384}}, {{256, 300}, {384, 500}}};
  for (const bool merge : {true, false}) {
    expect_packs_are_tiles(lines, false, {.merge = merge, .dense_from = 128});
  }
}

// As in a ring: a rank's own keys, then others' that all of its queries see.
TEST(Dense, BlocksOfTheSameQueriesMerge) {
  const std::vector<AttentionBlock> hops = {
      {{0, 256}, {0, 256}}, {{0, 256}, {256, 640}, 1000}, {{0, 256}, {640, 700}, 1000}};
  for (const std::int64_t dense_from : {std::int64_t{128}, aten::kNeverDense}) {
    for (const bool merge : {true, false}) {
      expect_packs_are_tiles(hops, true, {.merge = merge, .dense_from = dense_from});
    }
  }
}

TEST(Dense, IsLeftToThoseWhoTakeOtherBits) {
  const at::Tensor q = at::empty({1}, at::kBFloat16);
  EXPECT_TRUE(aten::dense_takes(q, 128));
  EXPECT_FALSE(aten::dense_takes(q, 136)) << "flash alone is so wide";
  EXPECT_FALSE(aten::dense_takes(q, 20));
  EXPECT_FALSE(aten::dense_takes(at::empty({1}), 128));
  at::globalContext().setDeterministicAlgorithms(true, false);
  EXPECT_FALSE(aten::dense_takes(q, 128));
  at::globalContext().setDeterministicAlgorithms(false, false);
}

// What a GPU's profile has, here of the stand-ins.
TEST(Dense, IsMeasuredBesideFlash) {
  const std::vector<std::int64_t> lengths = {16, 40};
  const auto measured = [&](const aten::FlashHeads& heads, at::ScalarType type) {
    return measure_attention_kernels(heads, type, c10::Device(c10::kCPU), lengths);
  };
  Profile profile;
  profile.kernels = measured(kFewKeys, at::kBFloat16);
  ASSERT_EQ(profile.kernels.size(), 4);
  for (std::size_t i = 0; i < 4; ++i) {
    const KernelProbe& probe = profile.kernels[i];
    EXPECT_EQ(probe.kernel, i % 2 == 0 ? kFlashKernel : kDenseKernel);
    EXPECT_EQ(probe.shape, (std::vector<std::int64_t>{lengths[i / 2], 6, 8}));
    EXPECT_GT(probe.seconds.least, 0);
  }
  EXPECT_EQ(profile.kernels[1].flops, 14 * (16 * 17 / 2) * 6 * 8);
  EXPECT_THAT(attention_dense_from(profile), testing::AnyOf(16, 40, 80));
  EXPECT_TRUE(measured(kFewKeys, at::kFloat).empty());
  EXPECT_TRUE(measured({.head_dim = 136}, at::kHalf).empty());
}

TEST(AttentionKernels, AreWhatTheEnvironmentSays) {
  const auto from = aten::AttentionKernels::from;
  EXPECT_EQ(from(nullptr, nullptr), (aten::AttentionKernels{.flash = true, .cudnn = true}));
  EXPECT_EQ(from("1", "1"), (aten::AttentionKernels{.flash = true, .cudnn = true}));
  EXPECT_EQ(from(nullptr, "0"), (aten::AttentionKernels{.flash = true, .cudnn = false}));
  EXPECT_EQ(from("0", nullptr), (aten::AttentionKernels{.flash = false, .cudnn = false}));
  EXPECT_THROW(from("no", nullptr), std::invalid_argument);
  EXPECT_THROW(from(nullptr, ""), std::invalid_argument);
}

TEST(KernelSwitch, IsZeroOrOne) {
  for (const bool otherwise : {false, true}) {
    EXPECT_EQ(switched("SOME_KERNELS", nullptr, otherwise), otherwise);
    EXPECT_TRUE(switched("SOME_KERNELS", "1", otherwise));
    EXPECT_FALSE(switched("SOME_KERNELS", "0", otherwise));
    for (const char* const other : {"", "off", "false", "no", "2", "01", " 0"}) {
      EXPECT_THAT(
          test::refusal([&] { switched("SOME_KERNELS", other, otherwise); }),
          testing::HasSubstr("SOME_KERNELS in the environment is '" + std::string(other) + "'"));
    }
  }
}

// --- waiting -------------------------------------------------------------------------------------

// What the host would do with a device and may wait for: reading a number or finding out how many
// there are, and tensors that change the device.  Counted for all threads, by name.
std::mutex waits_mutex;
std::map<std::string, int> waits;

std::unique_ptr<at::ObserverContext> count_waits(const at::RecordFunction& function) {
  static const std::set<std::string> kWaiting = {
      "aten::_local_scalar_dense",
      "aten::item",
      "aten::is_nonzero",
      "aten::equal",
      "aten::nonzero",
      "aten::masked_select",
      "aten::to.device",        // x.to(device, type)
      "aten::to.dtype_layout",  // x.cpu(), x.to(device)
      "aten::pin_memory"};
  if (const auto name = function.operator_name()) {
    const std::string text = toString(*name);
    if (kWaiting.contains(text)) {
      const std::lock_guard lock(waits_mutex);
      ++waits[text];
    }
  }
  return nullptr;
}

// Those of a micro-batch, forward and backward, on all ranks.
std::map<std::string, int> waits_of(
    const TextShape& model, const std::vector<std::int64_t>& lengths, int ranks) {
  const ThroughAten here;
  const auto documents = test::random_documents(lengths, model.vocab, 7);
  const std::vector<Item> items = items_of(documents);
  const Plan plan = test::uniform_plan(model, lengths, ranks, text_layer("UlyssesZ", "gather"));
  const at::CallbackHandle handle = at::addGlobalCallback(
      at::RecordFunctionCallback(&count_waits).scopes({at::RecordScope::FUNCTION}));
  std::map<std::string, int> counted;
  run_local_ranks(ranks, {}, [&](Communicators& communicators) {
    const int me = communicators.rank();
    RankSession session(communicators, text_model(model));
    session.parameters().initialize(1);
    communicators.world().barrier({.op = "begin", .part = ""});
    if (me == 0) {
      const std::lock_guard lock(waits_mutex);
      waits.clear();
    }
    communicators.world().barrier({.op = "count", .part = ""});
    session.play(plan, {.items = items}, /*backward=*/true);
    communicators.world().barrier({.op = "counted", .part = ""});
    if (me == 0) {
      const std::lock_guard lock(waits_mutex);
      counted = waits;
    }
  });
  at::removeCallback(handle);
  return counted;
}

// Vocabularies of one, two and five tiles, and ever more tiles of tokens in each.
TEST(AtenWaits, NothingIsWaitedFor) {
  TextShape gpt2 = test::model_of(R"({"model_type": "gpt2", "n_layer": 2, "n_embd": 6, "n_head": 2,
      "n_inner": 7, "vocab_size": 31, "n_positions": 300})");  // with dropout
  TextShape llama = test::llama({});
  for (TextShape model : {llama, gpt2}) {
    for (const int ranks : {1, 2}) {
      for (const std::int64_t vocab :
           {std::int64_t{50}, Tiles().vocabulary + 3, 5 * Tiles().vocabulary}) {
        for (const std::vector<std::int64_t>& lengths :
             {std::vector<std::int64_t>{5, 4}, {40, 70}, {3, 290, 130}}) {
          model.vocab = vocab;
          EXPECT_THAT(waits_of(model, lengths, ranks), testing::IsEmpty())
              << model.architecture << " of " << vocab << " ids, " << lengths.back() << " tokens, "
              << ranks << " ranks";
        }
      }
    }
  }
}

// --- exchanges -----------------------------------------------------------------------------------

TEST(AtenBlocks, SumsAreThoseOfTheLoops) {
  for (const auto& [from, to] :
       {std::pair{at::kDouble, at::kDouble},
        std::pair{at::kFloat, at::kFloat},
        std::pair{at::kBFloat16, at::kFloat},
        std::pair{at::kBFloat16, at::kBFloat16},
        std::pair{at::kHalf, at::kFloat},
        std::pair{at::kHalf, at::kHalf},
        std::pair{at::kLong, at::kLong}}) {
    for (const bool accumulate : {false, true}) {
      // three sources on one rectangle; with an overlap in part in the second table
      for (const bool overlap : {false, true}) {
        Transfer boxes;
        boxes.source = {63};
        boxes.destination = {63, 63, 28};
        boxes.covered = {!overlap};
        const auto box = [](int destination, std::int64_t offset, std::int64_t count) {
          Box all{.source = 0, .destination = destination, .source_offset = offset};
          all.loops.push_back({count, 1, 1});
          return all;
        };
        boxes.boxes = {box(0, 0, 63), box(1, 0, 63)};
        if (overlap) {
          boxes.boxes.push_back(box(2, 21, 28));
        }
        const std::vector<at::Tensor> sources = {
            (random({9, 7}, 1, at::kFloat) * 8).to(from),
            (random({9, 7}, 2, at::kFloat) * 8).to(from),
            (random({4, 7}, 3, at::kFloat) * 8).to(from)};
        const at::Tensor loops = (random({9, 7}, 4, at::kFloat) * 8).to(to);
        const at::Tensor aten = loops.clone();
        const auto sum = [&](const at::Tensor& into) {
          sum_boxes(into, boxes, 0, accumulate, [&](const Box& one) {
            return kernels::Summand{
                sources[static_cast<std::size_t>(one.destination)], at_destination(one)};
          });
        };
        sum(loops);
        const ThroughAten here;
        sum(aten);
        EXPECT_TRUE(at::equal(loops, aten)) << "bit by bit: the order of ranks";
      }
    }
  }
}

// --- everything ----------------------------------------------------------------------------------

test::Case small_case() {
  return {
      "aten", test::llama({.heads = 6, .kv_heads = 2, .ffn = 13, .vocab = 31}), {1, 9, 2, 17, 3}};
}

// Every strategy, every op through ATen: losses, gradients, traffic and memory.
TEST(AtenEquality, EveryStrategyOnEveryNumberOfRanks) {
  const ThroughAten here;
  const test::Case c = small_case();
  for (const int p : {1, 2, 3, 4}) {
    for (const auto& [attention, mlp] : test::pure_strategies()) {
      for (const Recompute level : kRecomputeLevels) {
        const std::vector<LayerChoice> layers(
            static_cast<std::size_t>(c.model.layers), text_layer(attention, mlp, level, level));
        const Plan plan = uniform_plan(c.model, c.lengths, p, layers);
        test::expect_equal(c, plan, Dtype::float64, 1e-10);
        test::expect_equal(c, plan, Dtype::float32, 2e-5);
      }
    }
  }
}

// Heads wide enough for torch's flash kernel, whose place the stand-in takes.
TEST(AtenEquality, NarrowTypesThroughFlash) {
  const test::Case c{
      "aten flash",
      test::llama({.heads = 6, .kv_heads = 2, .head_dim = 8, .hidden = 24, .ffn = 13, .vocab = 31}),
      {1, 9, 2, 17, 3}};
  const ThroughAten here;
  for (const Dtype dtype : {Dtype::bfloat16, Dtype::float16}) {
    for (const int p : {1, 2, 3, 4}) {
      for (const auto& [attention, mlp] : test::pure_strategies()) {
        const std::vector<LayerChoice> layers(
            static_cast<std::size_t>(c.model.layers),
            text_layer(attention, mlp, Recompute::light, Recompute::light));
        test::expect_within_rounding(c, uniform_plan(c.model, c.lengths, p, layers), dtype);
      }
    }
  }
}

// The same with documents that cuDNN's stand-in takes, one by one, beside others that it does not;
// and long ones, of which rings have whole blocks of even sizes.
TEST(AtenEquality, NarrowTypesThroughFlashAndDense) {
  const TextShape model =
      test::llama({.heads = 6, .kv_heads = 2, .head_dim = 8, .hidden = 24, .ffn = 13, .vocab = 31});
  const ThroughAten here;
  for (const auto& [lengths, ranks, dense_from] :
       {std::tuple{std::vector<std::int64_t>{1, 9, 2, 17, 3}, std::vector<int>{1, 3, 4}, 5},
        std::tuple{std::vector<std::int64_t>{12, 512}, std::vector<int>{2}, 100}}) {
    const test::Case c{"aten dense " + std::to_string(lengths.back()), model, lengths};
    for (const int p : ranks) {
      for (const auto& [attention, mlp] : test::pure_strategies()) {
        const std::vector<LayerChoice> layers(
            static_cast<std::size_t>(c.model.layers),
            text_layer(attention, mlp, Recompute::light, Recompute::light));
        test::expect_within_rounding(
            c, uniform_plan(c.model, c.lengths, p, layers), Dtype::bfloat16, dense_from);
      }
    }
  }
}

// Calls of an operation in a micro-batch, forward and backward.
TEST(AttentionKernels, SayWhichFormIsTaken) {
  static std::atomic<int> calls;
  static std::atomic<int> dense;
  const at::CallbackHandle handle = at::addGlobalCallback(
      at::RecordFunctionCallback(
          [](const at::RecordFunction& function) -> std::unique_ptr<at::ObserverContext> {
            const auto name = function.operator_name();
            calls += name && toString(*name) == "aten::logsumexp";      // of both stand-ins
            dense += name && toString(*name) == "aten::count_nonzero";  // of cuDNN's
            return nullptr;
          })
          .scopes({at::RecordScope::FUNCTION}));
  const test::Case c{
      "aten forms",
      test::llama({.heads = 2, .kv_heads = 1, .head_dim = 8, .hidden = 16, .ffn = 8, .vocab = 31}),
      {9, 3}};
  const Plan plan = test::uniform_plan(c.model, c.lengths, 1, text_layer("UlyssesZ", "gather"));
  const ThroughAten here;
  const auto taken = [&](aten::AttentionKernels kernels, std::int64_t dense_from) {
    aten::use_attention_kernels(kernels);
    calls = 0;
    dense = 0;
    test::expect_within_rounding(c, plan, Dtype::bfloat16, dense_from);
    aten::use_attention_kernels({});
    return std::pair(calls > 0, dense > 0);
  };
  EXPECT_EQ(taken({}, 5), std::pair(true, true));
  EXPECT_EQ(taken({}, 100), std::pair(true, false));
  EXPECT_EQ(taken({.flash = true, .cudnn = false}, 5), std::pair(true, false));
  EXPECT_EQ(taken({.flash = false, .cudnn = false}, 5), std::pair(false, false));
  at::removeCallback(handle);
}

}  // namespace
}  // namespace paradyse
