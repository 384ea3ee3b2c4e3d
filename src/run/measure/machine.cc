#include "src/run/measure/machine.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>
#include <thread>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>

#include "paradyse/run/communicator.h"
#include "src/run/device/device.h"
#include "src/run/kernels/cpu/tile_attention.h"
#include "src/run/measure/measure.h"

namespace paradyse {
namespace {

using Clock = std::chrono::steady_clock;

// Seconds of body(), called at least three times and for about `budget` seconds: the median.
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
  return median(std::move(times));
}

// Causal attention of one head.
class OneHead {
 public:
  OneHead(std::int64_t tokens, std::int64_t head_dim, at::TensorOptions options)
      : q_{at::randn({tokens, 3 * head_dim}, options), 0},
        k_{q_.matrix, head_dim},
        v_{q_.matrix, 2 * head_dim},
        o_(at::empty({tokens, head_dim}, options)),
        l_(at::empty({tokens, 1}, options)),
        grad_(at::zeros({tokens, 3 * head_dim}, options)),
        attention_{
            .block = {.queries = {0, tokens}, .keys = {0, tokens}},
            .head_dim = head_dim,
            .scale = 1 / std::sqrt(static_cast<double>(head_dim))} {}

  void forward() const { ops::attend(attention_, {q_, k_, v_, {o_}, {l_}}); }
  void adjoint() const {
    const std::int64_t D = attention_.head_dim;
    ops::attend_adjoint(
        attention_, {q_, k_, v_, {o_}, {l_}}, {{o_}, {grad_, 0}, {grad_, D}, {grad_, 2 * D}});
  }

 private:
  ops::Columns q_;
  ops::Columns k_;
  ops::Columns v_;
  at::Tensor o_;
  at::Tensor l_;
  at::Tensor grad_;
  ops::Attention attention_;
};

}  // namespace

int shared_cores(int ranks, const Backend& backend, c10::Device device) {
  return device.is_cpu() ? usable_cores() : backend.name() == "local" ? 1 : ranks;
}

namespace {

// What follows `key` in a file of the kernel; "" where there is none.
std::string text_in(const std::string& file, const std::string& key) {
  std::ifstream stream(file);
  for (std::string line; std::getline(stream, line);) {
    if (line.starts_with(key)) {
      const std::size_t begin = line.find_first_not_of(" \t:", key.size());
      return begin == std::string::npos ? "" : line.substr(begin);
    }
  }
  return "";
}

}  // namespace

std::string machine_name(c10::Device device) {
  const std::string processor = text_in("/proc/cpuinfo", "model name");
  const std::string memory = text_in("/proc/meminfo", "MemTotal");
  return (processor.empty() ? "processor" : processor) + ", " + std::to_string(usable_cores()) +
         " cores, memory " + memory + (device.is_cpu() ? "" : ", " + device.str());
}

MachineNumbers measure_machine(
    std::int64_t hidden, std::int64_t head_dim, int ranks, Backend& backend, c10::Device device) {
  const c10::InferenceMode no_autograd;
  device = numbered(device);  // for threads to come
  const auto on_device = at::TensorOptions().device(device);
  MachineNumbers machine;
  machine.cores = shared_cores(ranks, backend, device);
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
    const OneHead head(n, D, on_device);
    const double attention = seconds_of(0.08, [&] {
      head.forward();
      head.adjoint();
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
    const Layout pieces = matrix("rows", {rows, H}, even_cuts(rows, ranks));
    const Transfer table = transfer(pieces, pieces.whole(), ranks);
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
    const double sent = static_cast<double>(table.sent(false).front().elements) * 4.0;
    machine.collective_seconds = latency / sharing;
    machine.sent_bytes_per_second = sent * sharing / std::max(1e-6, transfer_seconds - latency);
  }
  return machine;
}

std::vector<KernelProbe> measure_kernels(const ModelShape& model, c10::Device device) {
  std::vector<KernelProbe> probes;
  device = numbered(device);  // for threads to come
  const auto options = at::TensorOptions().device(device);
  const auto measured = [&](auto body) {
    std::vector<double> times;
    body();
    for (int i = 0; i < 9; ++i) {
      const auto begin = Clock::now();
      body();
      synchronize(device);
      times.push_back(std::chrono::duration<double>(Clock::now() - begin).count());
    }
    return Spread{
        .median = median(times),
        .least = *std::min_element(times.begin(), times.end()),
        .most = *std::max_element(times.begin(), times.end())};
  };
  const auto compute = [&] {  // in a thread of its own: torch's threads belong to the thread
    at::set_num_threads(1);
    const c10::InferenceMode no_autograd;
    const DeviceScope computing(device);
    for (const std::int64_t n : {model.hidden, 3 * model.hidden, model.ffn}) {
      for (const std::int64_t m : {16, 128, 1024}) {
        const at::Tensor x = at::randn({m, model.hidden}, options);
        const at::Tensor w = at::randn({n, model.hidden}, options);
        at::Tensor y = at::empty({m, n}, options);
        probes.push_back(
            {.kernel = "matmul",
             .shape = {m, model.hidden, n},
             .flops = 2.0 * static_cast<double>(m) * static_cast<double>(n) *
                      static_cast<double>(model.hidden),
             .seconds = measured([&] { at::mm_out(y, x, w.t()); })});
      }
    }
    for (const std::int64_t tokens : {128, 512, 2048}) {
      const OneHead head(tokens, model.head_dim, options);
      const double pairs = static_cast<double>(tokens) * static_cast<double>(tokens + 1) / 2;
      probes.push_back(
          {.kernel = "attention",
           .shape = {tokens, 1, model.head_dim},
           .flops = 4.0 * pairs * static_cast<double>(model.head_dim),
           .seconds = measured([&] { head.forward(); })});
    }
  };
  std::thread(compute).join();
  return probes;
}

}  // namespace paradyse
