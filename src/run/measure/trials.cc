#include "src/run/measure/trials.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <stdexcept>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>

#include "paradyse/run/communicator.h"
#include "paradyse/run/weights.h"
#include "src/run/device/device.h"
#include "src/run/kernels/kernels.h"
#include "src/run/measure/device_speeds.h"
#include "src/run/measure/measure.h"
#include "src/run/measure/played_layer.h"

namespace paradyse {
namespace {

using Clock = std::chrono::steady_clock;

}  // namespace

ProductTrial try_product() {
  at::set_num_threads(1);
  constexpr std::int64_t kSize = 768;
  const at::Tensor a = at::ones({kSize, kSize});
  at::Tensor c = at::mm(a, a);
  const bool right = c.eq(static_cast<double>(kSize)).all().item<bool>();
  double best = std::numeric_limits<double>::infinity();
  const auto begin = Clock::now();
  while (seconds_since(begin) < 0.5) {
    const auto one = Clock::now();
    at::mm_out(c, a, a);
    best = std::min(best, seconds_since(one));
  }
  return {.right = right, .flops_per_second = 2.0 * std::pow(static_cast<double>(kSize), 3) / best};
}

Model typical_model() {
  return model_from_config(
      R"({"model_type": "llama", "num_hidden_layers": 16, "hidden_size": 2048,
          "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
          "intermediate_size": 5632, "vocab_size": 32000})",
      "doctor");
}

namespace {

// A random product on the device against the same numbers in float64 on the host.
bool product_is_right(Dtype dtype, c10::Device device) {
  const at::ScalarType type = parameter_types(dtype).weight;
  const at::Tensor a = at::randn({257, 512}).to(type);
  const at::Tensor b = at::randn({512, 130}).to(type);
  const at::Tensor c = at::empty({257, 130}, at::TensorOptions(type).device(device));
  kernels_for(device).product(
      a.to(device), b.to(device), c, /*accumulate=*/false, Tiles().product_rows(130));
  const at::Tensor expected = at::mm(a.to(at::kDouble), b.to(at::kDouble));
  const double error =
      ((c.cpu().to(at::kDouble) - expected).norm() / expected.norm()).item<double>();
  const double allowed = narrow(dtype) ? 0x1p-8 : 1e-5;  // a result is rounded once, by half of it
  return error < allowed;
}

}  // namespace

DeviceTrial try_device(const Model& model, Dtype dtype, c10::Device device) {
  constexpr std::int64_t kTokens = 4096;
  const c10::InferenceMode no_autograd;
  DeviceTrial trial{.card = card_name(device)};
  {
    const DeviceScope computing(device);
    trial.right = product_is_right(dtype, device);
    trial.large_product_flops_per_second = large_product_flops_per_second(dtype, device);
    trial.copied_bytes_per_second = copied_bytes_per_second(device);
    trial.kernel_seconds = kernel_seconds(device);
  }
  const PlayedLayer layer = play_layer(model, dtype, kTokens, device);
  trial.product_flops_per_second = layer.matmul_flops / layer.products.median;
  trial.attention_flops_per_second = layer.attention_flops / layer.attention.median;
  return trial;
}

ExchangeTrial try_exchange() {
  constexpr int kBarriers = 500;
  constexpr std::int64_t kElements = std::int64_t{1} << 21;  // 8 MiB
  constexpr int kShifts = 10;
  ExchangeTrial trial;
  try {
    run_local_ranks(2, {.deadline = std::chrono::seconds(10)}, [&](Communicators& communicators) {
      Communicator& world = communicators.world();
      const at::Tensor from = at::full({1, kElements}, communicators.rank() + 1, at::kFloat);
      const at::Tensor to = at::zeros({1, kElements}, at::kFloat);
      const Call call{.op = "doctor", .part = ""};
      world.barrier(call);
      auto begin = Clock::now();
      for (int i = 0; i < kBarriers; ++i) {
        world.barrier(call);
      }
      const double barriers = seconds_since(begin);
      begin = Clock::now();
      for (int i = 0; i < kShifts; ++i) {
        world.shift(from, to, 1, call)->wait();
      }
      const double shifts = seconds_since(begin);
      if (!to.eq(2.0 - communicators.rank()).all().item<bool>()) {
        throw std::runtime_error("what arrived is not what was sent");
      }
      if (communicators.rank() == 0) {
        trial.barrier_seconds = barriers / kBarriers;
        trial.bytes_per_second = static_cast<double>(kElements) * sizeof(float) * kShifts / shifts;
      }
    });
  } catch (const std::runtime_error& error) {
    trial.failure = error.what();
  }
  return trial;
}

}  // namespace paradyse
