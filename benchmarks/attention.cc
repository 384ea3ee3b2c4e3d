// Attention of one core, forward and backward, in GFLOP/s of what is below the diagonal, beside
// torch's flash kernel and products of 512 x 256 x 512 (Google Benchmark).  Built by
//
//   cmake --preset release -DPARADYSE_BENCHMARKS=ON
//   cmake --build --preset release --target benchmark.attention
//
// and run by `benchmarks/record.sh attention`.
#include <cmath>
#include <cstdint>
#include <string>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <benchmark/benchmark.h>

#include "src/run/kernels/cpu/products.h"
#include "src/run/kernels/cpu/tile_attention.h"

namespace paradyse {
namespace {

constexpr std::int64_t kWidth = 256;  // of all heads

enum class Direction { forward, backward };

// Of the mathematics: two products forward, five backward, since scores are made again.
double flops(Direction direction, std::int64_t tokens) {
  const double pairs = static_cast<double>(tokens) * static_cast<double>(tokens + 1) / 2;
  return (direction == Direction::forward ? 2 : 5) * 2 * pairs * static_cast<double>(kWidth);
}

void report(benchmark::State& state, double flops_an_iteration) {
  state.counters["flops"] =
      benchmark::Counter(flops_an_iteration, benchmark::Counter::kIsIterationInvariantRate);
}

at::Tensor random(std::int64_t tokens, at::ScalarType type) {
  return at::randn({tokens, kWidth}).to(type);
}

void ours(
    benchmark::State& state,
    Direction direction,
    std::int64_t D,
    std::int64_t tokens,
    at::ScalarType type) {
  at::set_num_threads(1);
  const std::int64_t heads = kWidth / D;
  const at::Tensor q = random(tokens, type), k = random(tokens, type), v = random(tokens, type);
  const at::Tensor g = random(tokens, type), o = at::empty_like(q);
  const at::Tensor l = at::empty({tokens, heads});
  const at::Tensor grad_q = at::zeros_like(q), grad_k = at::zeros_like(q);
  const at::Tensor grad_v = at::zeros_like(q);
  const ops::Attention attention{
      .block = {{0, tokens}, {0, tokens}},
      .head_dim = D,
      .scale = 1 / std::sqrt(static_cast<double>(D))};
  const auto each = [&](auto body) {
    for (std::int64_t head = 0; head < heads; ++head) {
      body(
          ops::AttentionTensors{
              {q, head * D}, {k, head * D}, {v, head * D}, {o, head * D}, {l, head}},
          head * D);
    }
  };
  each([&](const ops::AttentionTensors& tensors, std::int64_t) { attend(attention, tensors); });
  for (auto _ : state) {
    each([&](const ops::AttentionTensors& tensors, std::int64_t first) {
      if (direction == Direction::forward) {
        attend(attention, tensors);
      } else {
        attend_adjoint(
            attention, tensors, {{g, first}, {grad_q, first}, {grad_k, first}, {grad_v, first}});
      }
    });
  }
  report(state, flops(direction, tokens));
}

void torchs(
    benchmark::State& state,
    Direction direction,
    std::int64_t D,
    std::int64_t tokens,
    at::ScalarType type) {
  at::set_num_threads(1);
  const auto in_heads = [&](const at::Tensor& x) {
    return x.view({1, tokens, kWidth / D, D}).transpose(1, 2);
  };
  const at::Tensor q = in_heads(random(tokens, type)), k = in_heads(random(tokens, type));
  const at::Tensor v = in_heads(random(tokens, type)), g = in_heads(random(tokens, type));
  const auto [o, l] = at::_scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, true);
  for (auto _ : state) {
    if (direction == Direction::forward) {
      benchmark::DoNotOptimize(at::_scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, true));
    } else {
      benchmark::DoNotOptimize(
          at::_scaled_dot_product_flash_attention_for_cpu_backward(g, q, k, v, o, l, 0.0, true));
    }
  }
  report(state, flops(direction, tokens));
}

void products(benchmark::State& state, at::ScalarType type) {
  at::set_num_threads(1);
  const at::Tensor a = at::randn({512, 256}).to(type), b = at::randn({256, 512}).to(type);
  const at::Tensor c = at::empty({512, 512}, a.options());
  for (auto _ : state) {
    ops::product(a, b, c, /*accumulate=*/false, Tiles().product_rows(c.size(1)));
  }
  report(state, 2.0 * 512 * 256 * 512);
}

const int registered = [] {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const std::string name = type == at::kFloat ? "float32" : "bfloat16";
    benchmark::RegisterBenchmark(
        ("product/" + name).c_str(), [=](benchmark::State& state) { products(state, type); });
    for (const std::int64_t D : {16, 32, 64, 128}) {
      for (const std::int64_t tokens : {64, 256, 1024, 4096}) {
        for (const Direction direction : {Direction::forward, Direction::backward}) {
          const std::string of = (direction == Direction::forward ? "forward/" : "backward/") +
                                 name + "/" + std::to_string(D) + "/" + std::to_string(tokens);
          benchmark::RegisterBenchmark(("ours/" + of).c_str(), [=](benchmark::State& state) {
            ours(state, direction, D, tokens, type);
          })->MinTime(0.05);
          benchmark::RegisterBenchmark(("torch/" + of).c_str(), [=](benchmark::State& state) {
            torchs(state, direction, D, tokens, type);
          })->MinTime(0.05);
        }
      }
    }
  }
  return 0;
}();

}  // namespace
}  // namespace paradyse
