// Attention with a mask of keys, of every kernel table and type: as if the keys that do not count
// were not there, whatever is in them.
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>

#include "paradyse/plan/detail/index.h"
#include "src/run/kernels/kernels.h"

namespace paradyse {
namespace {

constexpr std::int64_t kHeads = 2;
constexpr std::int64_t kWidth = 16;  // of a head: lanes take such heads where there is no mask
constexpr double kMasked = -1e9;

struct Line {
  at::Tensor q, kv, bias, grad_o;  // bias [queries, keys, heads]
};
struct Answer {
  at::Tensor o, grad_q, grad_kv;
};

at::Tensor random(std::vector<std::int64_t> sizes, std::uint64_t seed) {
  at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  return at::randn(sizes, generator, at::TensorOptions().dtype(at::kDouble));
}

// The keys in pieces of this many, which are merged; each piece has its own mask (undefined: none).
Answer attend(
    const Kernels& kernels,
    const Line& line,
    const at::Tensor& mask,
    at::ScalarType type,
    std::int64_t piece) {
  const at::ScalarType sums = type == at::kDouble ? at::kDouble : at::kFloat;
  const std::int64_t queries = line.q.size(0);
  const std::int64_t keys = line.kv.size(0);
  const at::Tensor q = line.q.to(type);
  const at::Tensor o = at::full({queries, kHeads * kWidth}, 7, sums);
  const at::Tensor l = at::full({queries, kHeads}, 7, sums);
  const at::Tensor grad_q = at::zeros_like(o);
  const at::Tensor grad_kv = at::zeros({keys, line.kv.size(1)}, sums);
  const auto each = [&](auto body) {
    for (std::int64_t first = 0; first < keys; first += piece) {
      const std::int64_t count = std::min(piece, keys - first);
      const ops::BlockAttention attention{
          .blocks = {{.queries = {0, queries}, .keys = {0, count}, .diagonal = count}},
          .runs = {{.queries = {0, 1}, .key = 0}, {.queries = {1, 2}, .key = 1}},
          .query_heads = kHeads,
          .key_heads = kHeads,
          .head_dim = kWidth,
          .scale = 0.25,
          .masked = false,
          .dense_from = 1 << 20};
      const auto of_piece = [&](const at::Tensor& of, std::int64_t dim) {
        return of.defined() ? of.narrow(dim, first, count).contiguous() : of;
      };
      const at::Tensor bias = of_piece(line.bias, 1);
      body(
          attention,
          ops::AttentionMatrices{
              .q = q,
              .kv = of_piece(line.kv, 0).to(type),
              .o = o,
              .l = l,
              .bias = bias.defined() ? bias.flatten(0, 1).to(type) : bias,
              .mask = mask.defined() ? of_piece(mask, 0).to(sums) : mask},
          first);
    }
  };
  each([&](const ops::BlockAttention& attention,
           const ops::AttentionMatrices& in,
           std::int64_t first) { kernels.attend(attention, in, /*merge=*/first > 0); });
  const at::Tensor grad_o = line.grad_o.to(type);
  const at::Tensor rounded = o.to(type);
  each([&](const ops::BlockAttention& attention, ops::AttentionMatrices in, std::int64_t first) {
    in.o = rounded;
    const at::Tensor of_keys = grad_kv.narrow(0, first, in.kv.size(0));
    at::Tensor of_bias;
    if (in.bias.defined()) {
      of_bias = at::zeros(in.bias.sizes(), grad_q.options());
    }
    kernels.attend_adjoint(
        attention,
        in,
        {.q = grad_q, .kv = of_keys, .o = grad_o, .bias = of_bias},
        /*fresh=*/false);
  });
  return {o.to(at::kDouble), grad_q.to(at::kDouble), grad_kv.to(at::kDouble)};
}

void expect_near(const at::Tensor& a, const at::Tensor& b, double tolerance, const char* what) {
  EXPECT_LE((a - b).abs().max().item<double>(), tolerance * (1 + b.abs().max().item<double>()))
      << what;
}

TEST(MaskedKeys, AreNotThere) {
  for (const Kernels* const kernels : {&cpu_kernels(), &aten_kernels()}) {
    for (const auto& [type, tolerance] : std::vector<std::pair<at::ScalarType, double>>{
             {at::kDouble, 1e-12}, {at::kFloat, 1e-5}, {at::kBFloat16, 3e-2}}) {
      for (const bool biased : {false, true}) {
        for (const std::int64_t queries : {1, 9}) {
          SCOPED_TRACE(std::string(kernels->name) + " " + c10::toString(type));
          // longer than a tile of keys; all of the first piece and of the last one are masked
          const std::int64_t keys = 530;
          const std::int64_t piece = 150;
          at::Tensor counts = random({keys}, 5) > -0.3;
          counts.narrow(0, 0, piece).fill_(false);
          counts.narrow(0, keys - keys % piece, keys % piece).fill_(false);
          Line line{
              .q = random({queries, kHeads * kWidth}, 1),
              .kv = random({keys, 2 * kHeads * kWidth}, 2),
              .bias = {},
              .grad_o = random({queries, kHeads * kWidth}, 3)};
          if (biased) {
            line.bias = random({queries, keys, kHeads}, 4);
          }
          const at::Tensor kept = counts.nonzero().squeeze(1);
          Line there = line;
          there.kv = line.kv.index_select(0, kept);
          if (biased) {
            there.bias = line.bias.index_select(1, kept);
          }
          const Answer expected = attend(*kernels, there, {}, type, keys);
          const at::Tensor mask = at::where(counts, 0.0, kMasked).to(at::kDouble);
          for (const std::int64_t each : {keys, piece}) {
            const Answer answer = attend(*kernels, line, mask, type, each);
            expect_near(answer.o, expected.o, tolerance, "o");
            expect_near(answer.grad_q, expected.grad_q, tolerance, "dq");
            expect_near(
                answer.grad_kv.index_select(0, kept), expected.grad_kv, tolerance, "dk, dv");
            const at::Tensor others =
                answer.grad_kv.index_select(0, counts.logical_not().nonzero().squeeze(1));
            EXPECT_EQ(others.count_nonzero().item<std::int64_t>(), 0);
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace paradyse
