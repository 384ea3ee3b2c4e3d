#include "src/run/measure/machine.h"

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cmath>
#include <exception>
#include <fstream>
#include <thread>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>

#include "paradyse/plan/detail/index.h"
#include "paradyse/run/communicator.h"
#include "paradyse/run/weights.h"
#include "src/run/device/device.h"
#include "src/run/device/streams.h"
#include "src/run/execute/gather.h"
#include "src/run/kernels/cpu/tile_attention.h"
#include "src/run/kernels/kernels.h"
#include "src/run/measure/device_speeds.h"
#include "src/run/measure/measure.h"
#include "src/run/measure/played_layer.h"

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

// y = a b by the kernels that ops call.
void product(const at::Tensor& a, const at::Tensor& b, const at::Tensor& y) {
  kernels_for(y.device()).product(a, b, y, /*accumulate=*/false, Tiles().product_rows(y.size(1)));
}

// Causal attention of one head on a core.
class OneHead {
 public:
  OneHead(
      std::int64_t tokens,
      std::int64_t head_dim,
      at::TensorOptions options,
      at::ScalarType statistic)
      : q_{at::randn({tokens, 3 * head_dim}, options), 0},
        k_{q_.matrix, head_dim},
        v_{q_.matrix, 2 * head_dim},
        o_(at::empty({tokens, head_dim}, options)),
        l_(at::empty({tokens, 1}, options.dtype(statistic))),
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

// Computing on `device`, which has a number.  Whatever body() throws comes back.
template <typename Body>
void on_another_thread(c10::Device device, Body body) {
  std::exception_ptr thrown;
  std::thread([&] {
    try {
      make_current(device);
      body();
    } catch (...) {
      thrown = std::current_exception();
    }
  }).join();
  if (thrown) {
    std::rethrow_exception(thrown);
  }
}

}  // namespace

int shared_cores(int ranks, Backend& backend, c10::Device device) {
  const bool threads = backend.name() == "local";
  if (!device.is_cpu() || threads) {
    return device.is_cpu() ? usable_cores() : threads ? 1 : ranks;
  }
  int cores = 1;
  backend.run(ranks, [&](Communicators& communicators) {
    cores = cores_of_all(gather(own_cores(), communicators.world()));
  });
  return cores;
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
  const std::string card = card_name(device);
  const std::string processor = text_in("/proc/cpuinfo", "model name");
  const std::string memory = text_in("/proc/meminfo", "MemTotal");
  return (processor.empty() ? "processor" : processor) + ", " + std::to_string(usable_cores()) +
         " cores, memory " + memory +
         (device.is_cpu() ? "" : ", " + (card.empty() ? device.str() : card));
}

namespace {

// By this thread, on a core, with others that call it at the same time: `together` has as many.
void measure_core(
    const Model& model, Dtype dtype, std::barrier<>& together, MachineNumbers& machine) {
  const PartShape typical = model.typical_part();
  const ParameterTypes types = parameter_types(dtype);
  const at::TensorOptions options(types.weight);
  const std::int64_t tokens = 512;
  const std::int64_t H = std::clamp<std::int64_t>(typical.hidden, 32, 2048);
  const at::Tensor x = at::randn({tokens, H}, options);
  const at::Tensor w = at::randn({3 * H, H}, options);
  const at::Tensor y = at::empty({tokens, 3 * H}, options);
  together.arrive_and_wait();
  const double multiplied = median_seconds(0.08, [&] { product(x, w.t(), y); });
  machine.matmul_flops_per_second = 2.0 * static_cast<double>(tokens * 3 * H * H) / multiplied;

  const std::int64_t n = 1024;
  const std::int64_t D = typical.head_dim;
  const OneHead head(n, D, options, types.gradient);
  together.arrive_and_wait();
  const double attention = median_seconds(0.08, [&] {
    head.forward();
    head.adjoint();
  });
  const double pairs = static_cast<double>(n) * static_cast<double>(n + 1) / 2;
  machine.attention_flops_per_second = 14.0 * pairs * static_cast<double>(D) / attention;

  // more than caches hold: what is in them passes several times as fast, and scores are not
  constexpr std::int64_t kBytes = std::int64_t{1} << 25;
  const std::int64_t elements = kBytes / static_cast<std::int64_t>(options.dtype().itemsize());
  at::Tensor a = at::ones({elements}, options);
  const at::Tensor b = at::ones({elements}, options);
  together.arrive_and_wait();
  const double added = median_seconds(0.05, [&] { a.add_(b); });
  machine.touched_bytes_per_second = 3.0 * static_cast<double>(a.nbytes()) / added;

  const at::Tensor small = at::randn({8, H}, options);
  const at::Tensor out = at::empty({8, 8}, options);
  const at::Tensor narrow = at::randn({8, H}, options);
  together.arrive_and_wait();
  machine.call_seconds = median_seconds(0.02, [&] { product(small, narrow.t(), out); });
}

// While as many cores as the ranks have are at it, since these share caches and memory: the mean.
void measure_cores(const Model& model, Dtype dtype, int ranks, MachineNumbers& machine) {
  const int cores = std::min(ranks, usable_cores());
  std::barrier<> together(cores);
  std::vector<MachineNumbers> found(idx(cores));
  std::vector<std::exception_ptr> thrown(idx(cores));
  std::vector<std::thread> threads;
  for (std::size_t core = 0; core < found.size(); ++core) {
    threads.emplace_back([&, core] {
      try {
        at::set_num_threads(1);
        const c10::InferenceMode no_autograd;
        measure_core(model, dtype, together, found[core]);
      } catch (...) {
        thrown[core] = std::current_exception();
        together.arrive_and_drop();
      }
    });
  }
  std::ranges::for_each(threads, &std::thread::join);
  for (const std::exception_ptr& one : thrown) {
    if (one) {
      std::rethrow_exception(one);
    }
  }
  const auto mean = [&](double MachineNumbers::* number) {
    double sum = 0;
    for (const MachineNumbers& one : found) {
      sum += one.*number;
    }
    machine.*number = sum / cores;
  };
  mean(&MachineNumbers::matmul_flops_per_second);
  mean(&MachineNumbers::attention_flops_per_second);
  mean(&MachineNumbers::touched_bytes_per_second);
  mean(&MachineNumbers::call_seconds);
}

// Of a document that fills a GPU.
constexpr std::int64_t kDeviceTokens = 4096;

void measure_device(const Model& model, Dtype dtype, c10::Device device, MachineNumbers& machine) {
  const PlayedLayer layer = play_layer(model, dtype, kDeviceTokens, device);
  machine.matmul_flops_per_second = layer.matmul_flops / layer.products.median;
  machine.attention_flops_per_second = layer.attention_flops / layer.attention.median;
  machine.touched_bytes_per_second = layer.touched_bytes / layer.other.median;
  const DeviceScope computing(device);
  machine.call_seconds = kernel_seconds(device);
}

}  // namespace

MachineNumbers measure_machine(
    const Model& model, Dtype dtype, int ranks, Backend& backend, c10::Device device) {
  const c10::InferenceMode no_autograd;
  const auto options = at::TensorOptions(parameter_types(dtype).weight).device(device);
  MachineNumbers machine;
  machine.cores = shared_cores(ranks, backend, device);
  // In threads of their own: the number of torch's threads belongs to the thread.
  if (backend.leads() && device.is_cpu()) {
    measure_cores(model, dtype, ranks, machine);
  } else if (backend.leads()) {
    on_another_thread(numbered(device), [&] {
      at::set_num_threads(1);
      const c10::InferenceMode here_too;
      measure_device(model, dtype, device, machine);
    });
  }

  if (ranks > 1) {
    double latency = 0;
    double transfer_seconds = 0;
    const std::int64_t rows = (device.is_cpu() ? 256 : kDeviceTokens) * ranks;
    const std::int64_t H = std::clamp<std::int64_t>(model.typical_part().hidden, 32, 2048);
    const Layout pieces = matrix("rows", {rows, H}, even_cuts(rows, ranks));
    const Transfer table = transfer(pieces, pieces.whole(), ranks);
    backend.run(ranks, [&](Communicators& communicators) {
      Communicator& world = communicators.world();
      const DeviceScope computing(device);
      const at::Tensor mine = at::ones({rows / ranks, H}, options);
      const at::Tensor all = at::empty({rows, H}, options);
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
    const double sent = static_cast<double>(table.sent(false).front().elements) *
                        static_cast<double>(options.dtype().itemsize());
    machine.collective_seconds = latency / sharing;
    machine.sent_bytes_per_second = sent * sharing / std::max(1e-6, transfer_seconds - latency);
  }
  return machine;
}

std::vector<KernelProbe> measure_kernels(const Model& model, Dtype dtype, c10::Device device) {
  std::vector<KernelProbe> probes;
  const PartShape typical = model.typical_part();
  const ParameterTypes types = parameter_types(dtype);
  const auto options = at::TensorOptions(types.weight).device(device);
  const bool core = device.is_cpu();
  const auto measured = [&](auto body) {
    std::vector<double> times;
    body();
    for (int i = 0; i < 9; ++i) {
      const TimedMark begin = TimedMark::here();
      body();
      const TimedMark end = TimedMark::here();
      end.wait();
      times.push_back(seconds_between(begin, end));
    }
    return spread_of(times);
  };
  on_another_thread(numbered(device), [&] {  // torch's threads belong to the thread
    at::set_num_threads(1);
    const c10::InferenceMode no_autograd;
    {
      const DeviceScope computing(device);
      const std::vector<std::int64_t> rows = core ? std::vector<std::int64_t>{16, 128, 1024}
                                                  : std::vector<std::int64_t>{256, 1024, 8192};
      for (const std::int64_t n : {typical.hidden, 3 * typical.hidden, typical.ffn}) {
        for (const std::int64_t m : rows) {
          const at::Tensor x = at::randn({m, typical.hidden}, options);
          const at::Tensor w = at::randn({n, typical.hidden}, options);
          const at::Tensor y = at::empty({m, n}, options);
          probes.push_back(
              {.kernel = "matmul",
               .shape = {m, typical.hidden, n},
               .flops = 2.0 * static_cast<double>(m) * static_cast<double>(n) *
                        static_cast<double>(typical.hidden),
               .seconds = measured([&] { product(x, w.t(), y); })});
        }
      }
    }
    if (!core) {  // all heads at once
      for (const std::int64_t tokens : {1024, 4096, 8192}) {
        const PlayedLayer layer = play_layer(model, dtype, tokens, device, /*backward=*/false);
        probes.push_back(
            {.kernel = "attention",
             .shape = {tokens, typical.heads, typical.head_dim},
             .flops = layer.attention_flops,
             .seconds = layer.attention});
      }
      return;
    }
    for (const std::int64_t tokens : {128, 512, 2048}) {
      const OneHead head(tokens, typical.head_dim, options, types.gradient);
      const double pairs = static_cast<double>(tokens) * static_cast<double>(tokens + 1) / 2;
      probes.push_back(
          {.kernel = "attention",
           .shape = {tokens, 1, typical.head_dim},
           .flops = 4.0 * pairs * static_cast<double>(typical.head_dim),
           .seconds = measured([&] { head.forward(); })});
    }
  });
  return probes;
}

}  // namespace paradyse
