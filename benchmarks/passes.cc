// Element-wise ops of a LLaMA's layer on one core, in GB/s of what one pass over memory touches
// (each operand and result once; of a sum of gradients, what it is added to, too): as loops of our
// own, and as the sequences of torch's operations that they stood for; beside a copy.  Tables of
// angles are not counted; a copy and a sum are torch's on both sides.  Built by
//
//   cmake --preset release -DPARADYSE_BENCHMARKS=ON
//   cmake --build --preset release --target benchmark.passes
//
// and run by `benchmarks/record.sh passes`.
#include <functional>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <benchmark/benchmark.h>

#include "src/run/kernels/kernels.h"

namespace paradyse {
namespace {

constexpr std::int64_t kHidden = 256;
constexpr std::int64_t kFfn = 704;
constexpr std::int64_t kHeads = 8;

// What a layer's ops read and write.
struct Tensors {
  Tensors(std::int64_t tokens, at::ScalarType type)
      : x(at::randn({tokens, kHidden}).to(type)),
        y(at::randn({tokens, kHidden}).to(type)),
        normed(at::empty_like(x)),
        grad_x(at::zeros_like(x)),
        qkv(at::randn({tokens, 3 * kHidden}).to(type)),
        h(at::randn({tokens, 2 * kFfn}).to(type)),
        a(at::randn({tokens, kFfn}).to(type)),
        grad_h(at::empty_like(h)),
        w(at::ones({kHidden}, type)),
        bias(at::zeros({3 * kHidden}, type)),
        grad_w(at::zeros({kHidden})),
        grad_bias(at::zeros({3 * kHidden})),
        positions(at::arange(tokens, at::kLong)) {
    const at::Tensor angles = at::randn({tokens, kHidden / kHeads / 2});
    rotation = {
        .heads = 2 * kHeads,
        .head_dim = kHidden / kHeads,
        .cosines = angles.cos(),
        .sines = angles.sin(),
        .positions = positions};
    x_rows = x.split(64);
    y_rows = y.split(64);
    normed_rows = normed.split(64);
  }

  at::Tensor x, y, normed, grad_x, qkv, h, a, grad_h, w, bias, grad_w, grad_bias, positions;
  std::vector<at::Tensor> x_rows, y_rows, normed_rows;
  kernels::Rotation rotation;
};

struct Pass {
  std::string name;
  double elements = 0;  // a token: read or written
  std::function<void(Tensors&)> run;
};

void norm(const at::Tensor& x, Tensors& t, const at::Tensor& normed) {
  kernels_for(at::kCPU).rms_norm(x, t.w, 1e-5, normed);
}

std::vector<Pass> passes() {
  const auto H = static_cast<double>(kHidden);
  const auto F = static_cast<double>(kFfn);
  return {
      {"copy", 2 * H, [](Tensors& t) { t.normed.copy_(t.x); }},
      {"add", 3 * H, [](Tensors& t) { t.x.add_(t.y); }},
      {"add, then norm",
       5 * H,
       [](Tensors& t) {
         t.x.add_(t.y);
         norm(t.x, t, t.normed);
       }},
      // As few rows at a time as stay in a cache: what one loop for both would come to.
      {"add, norm, by rows",
       4 * H,
       [](Tensors& t) {
         for (std::size_t i = 0; i < t.x_rows.size(); ++i) {
           t.x_rows[i].add_(t.y_rows[i]);
           norm(t.x_rows[i], t, t.normed_rows[i]);
         }
       }},
      {"norm", 2 * H, [](Tensors& t) { norm(t.x, t, t.normed); }},
      {"norm, adjoint",
       4 * H,
       [](Tensors& t) {
         kernels_for(at::kCPU).rms_norm_adjoint(
             t.x, t.w, 1e-5, {.y = t.y, .x = t.grad_x, .accumulate = true, .w = t.grad_w});
       }},
      {"rope", 4 * H, [](Tensors& t) { kernels_for(at::kCPU).rotate(t.qkv, t.rotation); }},
      {"swiglu", 3 * F, [](Tensors& t) { kernels_for(at::kCPU).swiglu(t.h, t.a); }},
      {"swiglu, adjoint",
       5 * F,
       [](Tensors& t) { kernels_for(at::kCPU).swiglu_adjoint(t.h, t.a, t.grad_h); }},
      {"bias", 6 * H, [](Tensors& t) { kernels_for(at::kCPU).add_to_rows(t.qkv, t.bias, 1); }},
      {"bias, adjoint",
       3 * H,
       [](Tensors& t) { kernels_for(at::kCPU).add_sum_of_rows(t.qkv, t.grad_bias, 1); }},
  };
}

void run(
    benchmark::State& state,
    const Pass& pass,
    std::int64_t tokens,
    at::ScalarType type,
    bool torchs) {
  at::set_num_threads(1);
  const c10::InferenceMode no_autograd;
  Tensors tensors(tokens, type);
  send_cpu_through_aten(torchs);
  for (auto _ : state) {
    pass.run(tensors);
  }
  send_cpu_through_aten(false);
  state.counters["bytes"] = benchmark::Counter(
      pass.elements * static_cast<double>(tokens) * static_cast<double>(c10::elementSize(type)),
      benchmark::Counter::kIsIterationInvariantRate);
}

const int registered = [] {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const std::int64_t tokens : {256, 1024, 4096}) {
      for (const Pass& pass : passes()) {
        for (const bool torchs : {false, true}) {
          const std::string name = std::string(torchs ? "torch/" : "ours/") +
                                   (type == at::kFloat ? "float32/" : "bfloat16/") +
                                   std::to_string(tokens) + "/" + pass.name;
          benchmark::RegisterBenchmark(name.c_str(), [=](benchmark::State& state) {
            run(state, pass, tokens, type, torchs);
          })->MinTime(0.05);
        }
      }
    }
  }
  return 0;
}();

}  // namespace
}  // namespace paradyse
