#include "src/run/measure/trials.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <stdexcept>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "paradyse/run/communicator.h"

namespace paradyse {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

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
