#include "src/run/measure/bench_comm.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <numeric>

#include "paradyse/plan/detail/index.h"
#include "paradyse/plan/detail/transfer.h"
#include "src/run/device/device.h"
#include "src/run/measure/measure.h"

namespace paradyse {
namespace {

using Clock = std::chrono::steady_clock;

double memcpy_seconds(std::int64_t bytes, c10::Device device) {
  const auto options = at::TensorOptions().dtype(at::kByte).device(device);
  const at::Tensor from = at::ones({bytes}, options);
  const at::Tensor to = at::zeros({bytes}, options);
  std::vector<double> times;
  for (int i = 0; i < 21; ++i) {
    const auto begin = Clock::now();
    if (device.is_cpu()) {
      std::memcpy(to.mutable_data_ptr(), from.const_data_ptr(), idx(bytes));
    } else {
      to.copy_(from);
      synchronize(device);
    }
    times.push_back(seconds_since(begin));
  }
  return median(std::move(times));
}

struct Timed {
  const char* name;
  std::int64_t messages;  // that one rank receives
  std::function<void()> run;
};

// Seconds of as many calls as fit into the time.  How many that are is rank 0's word: a guess
// from a few of them.
std::vector<double> time_calls(
    Communicator& world,
    c10::Device device,
    const std::function<void()>& collective,
    double seconds) {
  const Call call{.op = "bench", .part = ""};
  const auto run = [&] {
    collective();
    synchronize(device);
  };
  run();
  world.barrier(call);
  const auto begin = Clock::now();
  run();
  run();
  const at::Tensor count = at::full(
      {1},
      std::clamp(
          static_cast<std::int64_t>(2 * seconds / seconds_since(begin)),
          std::int64_t{5},
          std::int64_t{20000}),
      at::kLong);
  world.broadcast(count, 0, call);
  std::vector<double> times;
  for (std::int64_t i = 0; i < *count.const_data_ptr<std::int64_t>(); ++i) {
    const auto start = Clock::now();
    run();
    times.push_back(seconds_since(start));
  }
  return times;
}

}  // namespace

std::vector<BenchCommRow> bench_comm(const BenchCommRequest& request) {
  std::vector<BenchCommRow> rows;
  const int p = request.group > 0 ? request.group : request.ranks;
  request.backend->run(request.ranks, [&](Communicators& communicators) {
    if (communicators.rank() >= p) {
      return;
    }
    const DeviceScope computing(request.device);
    const auto options = at::TensorOptions().device(request.device);
    std::vector<int> members(idx(p));
    std::iota(members.begin(), members.end(), 0);
    Communicator& world = p == request.ranks ? communicators.world() : communicators.group(members);
    const Call call{.op = "bench", .part = ""};
    bool timed_barrier = false;
    for (const std::int64_t bytes : request.bytes) {
      const std::int64_t n = std::max<std::int64_t>(1, bytes / 4);  // float32 elements
      const Layout pieces = matrix("rows", {p * n, 1}, even_cuts(p * n, p));
      const Transfer gather = transfer(pieces, pieces.whole(), p);
      const Layout by_rows = matrix("rows", {p, p * n}, even_cuts(p, p));
      const Transfer turn =
          transfer(by_rows, by_rows.whole().cut("columns", even_cuts(p * n, p)), p);
      const at::Tensor one = at::ones({n, 1}, options);
      const at::Tensor other = at::zeros({n, 1}, options);
      const at::Tensor all = at::zeros({p * n, 1}, options);
      const at::Tensor row = at::ones({1, p * n}, options);
      const at::Tensor column = at::zeros({p, n}, options);
      std::vector<Timed> collectives = {
          {"all_gather", p - 1, [&] { world.exchange(one, all, gather, call)->wait(); }},
          {"reduce_scatter",
           p - 1,
           [&] { world.exchange_sum(all, other, gather, false, call)->wait(); }},
          {"all_to_all", p - 1, [&] { world.exchange(row, column, turn, call)->wait(); }},
          {"all_reduce", 2 * (p - 1), [&] { world.all_reduce(all, call); }},
          {"shift", 1, [&] { world.shift(one, other, 1, call)->wait(); }},
          // there and back: a call that only sends would end before anything has arrived
          {"broadcast", 1, [&] {
             world.broadcast(other, 0, call);
             world.broadcast(other, p - 1, call);
           }}};
      if (!timed_barrier) {
        collectives.push_back({"barrier", 0, [&] { world.barrier(call); }});
        timed_barrier = true;
      }
      for (const Timed& collective : collectives) {
        const std::vector<double> times =
            time_calls(world, request.device, collective.run, request.seconds);
        const double seconds = median(times);
        if (communicators.rank() != 0) {
          continue;
        }
        const bool empty = collective.messages == 0;
        const std::int64_t received = collective.messages * n * 4;
        rows.push_back(
            {.collective = collective.name,
             .bytes = empty ? 0 : n * 4,
             .seconds = seconds,
             .least_seconds = *std::min_element(times.begin(), times.end()),
             .most_seconds = *std::max_element(times.begin(), times.end()),
             .bytes_per_s = static_cast<double>(received) / seconds,
             .memcpy_seconds = empty ? 0 : memcpy_seconds(received, request.device)});
      }
    }
  });
  return rows;
}

}  // namespace paradyse
