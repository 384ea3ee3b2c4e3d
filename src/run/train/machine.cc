#include "paradyse/machine.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <thread>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>
#include <sched.h>

#include "paradyse/communicator.h"
#include "paradyse/device.h"
#include "src/run/ops/tile_attention.h"

namespace paradyse {
namespace {

using Clock = std::chrono::steady_clock;

// Median seconds of body(), called at least three times and for about `budget` seconds.
template <typename Body>
double median_seconds(double budget, Body body) {
  body();  // warm
  std::vector<double> times;
  double sum = 0;
  while (times.size() < 3 || (sum < budget && times.size() < 1000)) {
    const auto begin = Clock::now();
    body();
    times.push_back(std::chrono::duration<double>(Clock::now() - begin).count());
    sum += times.back();
  }
  std::nth_element(
      times.begin(), times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2), times.end());
  return times[times.size() / 2];
}

}  // namespace

int usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) == 0) {
    return std::max(1, CPU_COUNT(&set));
  }
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

MachineNumbers measure_machine(
    std::int64_t hidden, std::int64_t head_dim, int ranks, Backend& backend, c10::Device device) {
  const c10::InferenceMode no_autograd;
  const auto on_device = at::TensorOptions().device(device);
  MachineNumbers machine;
  machine.cores = device.is_cpu() ? usable_cores() : backend.name() == "local" ? 1 : ranks;
  // In a thread of its own: the number of torch's threads belongs to the thread.
  const auto compute = [&] {
    at::set_num_threads(1);
    const c10::InferenceMode here_too;
    const DeviceScope computing(device);
    const auto seconds_of = [&](double budget, auto body) {
      return median_seconds(budget, [&] {
        body();
        synchronize(device);
      });
    };
    const std::int64_t tokens = 512;
    const std::int64_t H = std::clamp<std::int64_t>(hidden, 32, 2048);
    const at::Tensor x = at::randn({tokens, H}, on_device);
    const at::Tensor w = at::randn({3 * H, H}, on_device);
    at::Tensor y = at::empty({tokens, 3 * H}, on_device);
    const double product = seconds_of(0.08, [&] { at::mm_out(y, x, w.t()); });
    machine.matmul_flops_per_second = 2.0 * static_cast<double>(tokens * 3 * H * H) / product;

    const std::int64_t n = 1024;
    const std::int64_t D = head_dim;
    const at::Tensor qkv = at::randn({n, 3 * D}, on_device);
    const at::Tensor o = at::empty({n, D}, on_device);
    const at::Tensor l = at::empty({n, 1}, on_device);
    const at::Tensor grad = at::zeros({n, 3 * D}, on_device);
    const ops::Attention one_head{
        .block = {.queries = {0, n}, .keys = {0, n}},
        .head_dim = D,
        .scale = 1 / std::sqrt(static_cast<double>(D))};
    const double attention = seconds_of(0.08, [&] {
      const ops::Columns q{qkv, 0};
      const ops::Columns k{qkv, D};
      const ops::Columns v{qkv, 2 * D};
      ops::attend(one_head, q, k, v, {o}, {l});
      ops::attend_adjoint(one_head, q, k, v, {o}, {l}, {o}, {grad, 0}, {grad, D}, {grad, 2 * D});
    });
    const double pairs = static_cast<double>(n) * static_cast<double>(n + 1) / 2;
    machine.attention_flops_per_second = 14.0 * pairs * static_cast<double>(D) / attention;

    at::Tensor a = at::randn({std::int64_t{1} << 20}, on_device);
    const at::Tensor b = at::randn({std::int64_t{1} << 20}, on_device);
    const double added = seconds_of(0.05, [&] { a.add_(b); });
    machine.touched_bytes_per_second = 3.0 * 4.0 * static_cast<double>(a.numel()) / added;

    const at::Tensor small = at::randn({8, H}, on_device);
    at::Tensor out = at::empty({8, 8}, on_device);
    const at::Tensor narrow = at::randn({8, H}, on_device);
    machine.call_seconds = seconds_of(0.02, [&] { at::mm_out(out, small, narrow.t()); });
  };
  if (backend.leads()) {
    std::thread(compute).join();
  }

  if (ranks > 1) {
    double latency = 0;
    double transfer_seconds = 0;
    const std::int64_t rows = 256 * ranks;
    const std::int64_t H = std::clamp<std::int64_t>(hidden, 32, 2048);
    const Placement pieces = shard(0, even_cuts(rows, ranks));
    const Transfer table = transfer({rows, H}, pieces, replicate(), ranks);
    backend.run(ranks, [&](Communicators& communicators) {
      Communicator& world = communicators.world();
      const DeviceScope computing(device);
      const at::Tensor mine = at::ones({rows / ranks, H}, on_device);
      const at::Tensor all = at::empty({rows, H}, on_device);
      const auto time = [&](auto body) {
        std::vector<double> times;
        for (int i = 0; i < 30; ++i) {
          const auto begin = Clock::now();
          body();
          synchronize(device);
          times.push_back(std::chrono::duration<double>(Clock::now() - begin).count());
        }
        std::nth_element(times.begin(), times.begin() + 15, times.end());
        return times[15];
      };
      const double meet = time([&] { world.barrier({.op = "measure", .part = ""}); });
      const double gather =
          time([&] { world.exchange(mine, all, table, {.op = "measure", .part = ""})->wait(); });
      if (communicators.rank() == 0) {
        latency = meet;
        transfer_seconds = gather;
      }
    });
    // All ranks were at it at once; the numbers are those of a rank alone on its core.
    const double sharing =
        std::max(1.0, static_cast<double>(ranks) / static_cast<double>(machine.cores));
    const double sent = static_cast<double>(table.sent(0).elements) * 4.0;
    machine.collective_seconds = latency / sharing;
    machine.sent_bytes_per_second = sent * sharing / std::max(1e-6, transfer_seconds - latency);
  }
  return machine;
}

}  // namespace paradyse
