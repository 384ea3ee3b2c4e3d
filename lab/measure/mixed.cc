#include "lab/measure/mixed.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <thread>

#include <fmt/format.h>
#include <sched.h>

#include "paradyse/plan/index.h"
#include "paradyse/plan/plan.h"
#include "paradyse/plan/simulate.h"
#include "paradyse/run/session.h"
#include "src/plan/plan/group_timeline.h"
#include "src/run/comm/observed.h"
#include "src/run/data/synthetic_items.h"
#include "src/run/execute/gather.h"
#include "src/run/execute/processor_seconds.h"
#include "src/run/measure/machine.h"
#include "src/run/measure/measure.h"
#include "src/run/weights/optimizer.h"

namespace paradyse {
namespace {

using Clock = std::chrono::steady_clock;

// Makes a rank slow: as long as it has been at its own work since the last exchange it sleeps,
// `slowdown` - 1 times.
class Slowed final : public CommunicationObserver {
 public:
  explicit Slowed(double slowdown) : slowdown_(slowdown) { restart(); }

  void restart() {
    owed_ = 0;
    busy_ = 0;
    leave();
  }
  // Processor seconds of its own work, times the slowdown.
  [[nodiscard]] double busy_seconds() const { return busy_; }

  void enter(Moment /*moment*/, const Call& /*call*/) override {
    owed_ += (slowdown_ - 1) * seconds_since(since_);
    busy_ += slowdown_ * (processor_seconds() - used_);
    constexpr double kLeast = 2e-4;  // seconds; shorter sleeps take longer than they should
    if (owed_ >= kLeast) {
      const auto begin = Clock::now();
      std::this_thread::sleep_for(std::chrono::duration<double>(owed_));
      owed_ -= seconds_since(begin);  // less than nothing where it slept too long
    }
  }
  void leave() override {
    since_ = Clock::now();
    used_ = processor_seconds();
  }

 private:
  double slowdown_;
  Clock::time_point since_;  // the last exchange
  double used_ = 0;          // processor seconds until then
  double owed_ = 0;          // sleep
  double busy_ = 0;
};

std::vector<int> cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> found;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) {
    for (int core = 0; core < CPU_SETSIZE; ++core) {
      if (CPU_ISSET(core, &set)) {
        found.push_back(core);
      }
    }
  }
  return found;
}

void pin_this_thread(int core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(core, &set);
  if (sched_setaffinity(0, sizeof(set), &set) != 0) {
    throw std::runtime_error(fmt::format(
        "mixed: a rank cannot be bound to core {}: check that the core is usable", core));
  }
}

// The ranks as a described cluster: this machine's cores, each slower by its factor.
Cluster cluster_of(
    const MachineNumbers& machine,
    const std::vector<double>& slowdown,
    const std::vector<std::int64_t>& memory) {
  Cluster cluster{
      .name = "heterogeneous ranks",
      .ranks_per_node = static_cast<int>(memory.size()),
      .devices = {},
      .inside_node =
          {.bytes_per_second = machine.sent_bytes_per_second,
           .latency_seconds = machine.collective_seconds},
      .between_nodes = {}};
  for (std::size_t r = 0; r < memory.size(); ++r) {
    const double products = machine.matmul_flops_per_second / slowdown[r];
    cluster.devices.push_back(
        {.name = fmt::format("rank {}", r),
         .count = 1,
         .matmul_flops_per_second = products,
         .float32_flops_per_second = products,
         .matmul_fraction = 1,
         .attention_fraction = machine.attention_flops_per_second / machine.matmul_flops_per_second,
         .memory_bytes_per_second = machine.touched_bytes_per_second / slowdown[r],
         .memory_bytes = memory[r],
         .launch_seconds = machine.call_seconds * slowdown[r],
         .host_bytes_per_second = machine.touched_bytes_per_second / slowdown[r]});
  }
  return cluster;
}

// Plans of one document for all ranks of an unlike cluster.
class Cutter {
 public:
  Cutter(const BenchMixedRequest& request, Cluster cluster)
      : request_(request), cluster_(std::move(cluster)) {
    ranks_.resize(idx(cluster_.ranks()));
    std::iota(ranks_.begin(), ranks_.end(), 0);
  }

  [[nodiscard]] Plan even(std::int64_t length) const {
    return uniform_plan(request_.model, {length}, cluster_.ranks(), layers());
  }
  [[nodiscard]] Plan proportional(std::int64_t length) const {
    Plan plan = even(length);
    plan.micro_batches[0].groups[0].shares = proportional_shares(
        ranks_,
        plan.lengths,
        layers(),
        cluster_.ranks(),
        request_.model,
        cluster_,
        {.precision = precision_of(request_.dtype)});
    return plan;
  }
  // No rank's footprint is above its budget.
  [[nodiscard]] bool fits(const Plan& plan, const std::vector<std::int64_t>& budgets) const {
    const auto held = bytes_of_ranks(plan, request_.model, precision_of(request_.dtype));
    return std::ranges::equal(held, budgets, std::less_equal(), &PredictedBytes::total);
  }

 private:
  [[nodiscard]] std::vector<LayerChoice> layers() const {
    return std::vector<LayerChoice>(idx(request_.model.layers), request_.layer);
  }

  const BenchMixedRequest& request_;
  Cluster cluster_;
  std::vector<int> ranks_;
};

// A rank that trains.
struct Trained {
  Trained(
      const BenchMixedRequest& request, Communicators& communicators, std::int64_t memory_bytes = 0)
      : session(
            communicators,
            request.model,
            {.dtype = request.dtype, .masters = Masters::on_device, .memory_bytes = memory_bytes}),
        optimizer(session.parameters(), {}) {
    session.parameters().initialize(1);
  }

  // Forward, backward and update; the weights stay as they are.
  void step(const Plan& plan, const std::vector<Item>& items) {
    Parameters& parameters = session.parameters();
    parameters.zero_gradients();
    session.play(plan, {.items = items}, /*backward=*/true);
    gradient_norm(parameters, session.domain());
    optimizer.step(0.0, 1.0);
  }

  RankSession session;
  AdamW optimizer;
};

template <typename T>
void expect_unlike(const BenchMixedRequest& request, const std::vector<T>& ranks) {
  if (std::ranges::adjacent_find(ranks, std::not_equal_to<T>()) == ranks.end()) {
    throw std::invalid_argument(
        "mixed: the ranks are identical, so even shards are the best: give at least two of "
        "them different speeds or memory");
  }
  const std::string& attention = part_of(request.layer, "attention").strategy;
  if (strategy("attention", attention).one_rank) {
    throw std::invalid_argument(
        "mixed: " + attention + " runs whole documents and shards none: take another strategy");
  }
}

// One step; the peak of each rank.  Throws OutOfMemory.
std::vector<std::int64_t> peaks_of(
    const BenchMixedRequest& request, const Plan& plan, const std::vector<std::int64_t>& memory) {
  const std::vector<OwnedItem> data = synthetic_items(request.model, sizes_of(plan));
  const std::vector<Item> items = items_of(data);
  std::vector<std::int64_t> peaks;
  run_local_ranks(plan.ranks, {}, [&](Communicators& communicators) {
    const int me = communicators.rank();
    Trained trained(request, communicators, memory[idx(me)]);
    trained.step(plan, items);
    const auto reports = gather({trained.session.memory().peak_bytes()}, communicators.world());
    if (me == 0) {
      for (const auto& report : reports) {
        peaks.push_back(report[0]);
      }
    }
  });
  return peaks;
}

constexpr std::int64_t kMostTokens = std::int64_t{1} << 26;

// The largest length below `most` for which `fits` holds; -1: not even for one token.
std::int64_t longest(std::int64_t most, const std::function<bool(std::int64_t length)>& fits) {
  if (!fits(1)) {
    return -1;
  }
  std::int64_t low = 1;
  std::int64_t high = 2;
  while (high < most && fits(high)) {
    low = high;
    high *= 2;
  }
  high = std::min(high, most);
  while (low + 1 < high) {
    const std::int64_t middle = low + (high - low) / 2;
    (fits(middle) ? low : high) = middle;
  }
  return low;
}

}  // namespace

std::vector<double> MixedSpeed::gains() const {
  std::vector<double> gains;
  for (std::size_t i = 0; i < even.seconds.size(); ++i) {
    gains.push_back((even.seconds[i] - proportional.seconds[i]) / (even.seconds[i] * (1 - ideal)));
  }
  return gains;
}

double MixedSpeed::busy_gain() const {
  const double before = std::ranges::max(even.busy_s);
  return (before - std::ranges::max(proportional.busy_s)) / (before * (1 - ideal));
}

double MixedMemory::gain() const {
  return static_cast<double>(proportional.tokens - even.tokens) /
         static_cast<double>(ideal - even.tokens);
}

MixedSpeed bench_mixed_speed(
    const BenchMixedRequest& request,
    const std::vector<double>& slowdown,
    std::int64_t length,
    int repeats) {
  expect_unlike(request, slowdown);
  const auto ranks = static_cast<int>(slowdown.size());
  const std::vector<int> usable = cores();
  if (usable.size() < slowdown.size()) {
    throw std::invalid_argument(fmt::format(
        "mixed: {} ranks, but {} usable cores; each measured rank needs its own core: take "
        "fewer ranks",
        ranks,
        usable.size()));
  }
  const Model& model = request.model;
  const std::shared_ptr<Backend> backend = local_backend();
  const MachineNumbers machine = measure_machine(model, request.dtype, ranks, *backend);
  const std::vector<std::int64_t> unlimited(
      slowdown.size(), std::numeric_limits<std::int64_t>::max() / 4);
  const Cutter cutter(request, cluster_of(machine, slowdown, unlimited));
  const Plan even = cutter.even(length);
  const Plan proportional = cutter.proportional(length);

  MixedSpeed result{
      .shares = proportional.micro_batches[0].groups[0].shares,
      .even = {.seconds = {}, .busy_s = std::vector<double>(slowdown.size())},
      .proportional = {.seconds = {}, .busy_s = std::vector<double>(slowdown.size())}};
  double speed = 0;  // of all ranks
  for (const double factor : slowdown) {
    speed += 1 / factor;
  }
  result.ideal = ranks / (std::ranges::max(slowdown) * speed);
  const std::vector<OwnedItem> data = synthetic_items(model, {.lengths = {length}});
  const std::vector<Item> items = items_of(data);
  backend->run(ranks, [&](Communicators& real) {
    const auto me = idx(real.rank());
    pin_this_thread(usable[me]);
    Slowed slowed(slowdown[me]);
    ObservedCommunicators communicators(real, slowed);
    Trained trained(request, communicators);
    Communicator& world = communicators.world();
    const auto step = [&](const Plan& plan, bool counts, MixedSpeed::Steps& steps) {
      world.barrier({.op = "bench", .part = ""});
      slowed.restart();
      const auto begin = Clock::now();
      trained.step(plan, items);
      world.barrier({.op = "bench", .part = ""});
      const double seconds = seconds_since(begin);
      const auto busy_ns = static_cast<std::int64_t>(slowed.busy_seconds() * 1e9);
      const auto busy = gather({busy_ns}, real.world());
      if (me == 0 && counts) {
        steps.seconds.push_back(seconds);
        for (std::size_t r = 0; r < busy.size(); ++r) {
          steps.busy_s[r] += static_cast<double>(busy[r][0]) * 1e-9 / repeats;
        }
      }
    };
    for (int i = 0; i <= repeats; ++i) {  // the first one warms up
      if (request.progress && me == 0) {
        request.progress(i, repeats + 1, "even and proportional cuts in turn");
      }
      const bool even_first = i % 2 == 0;
      for (const bool evenly : {even_first, !even_first}) {
        step(evenly ? even : proportional, i > 0, evenly ? result.even : result.proportional);
      }
    }
  });
  return result;
}

MixedMemory bench_mixed_memory(
    const BenchMixedRequest& request, const std::vector<std::int64_t>& memory) {
  expect_unlike(request, memory);
  const Model& model = request.model;
  const Cutter cutter(
      request, cluster_of(MachineNumbers{}, std::vector<double>(memory.size(), 1), memory));
  const LengthLimit limit = model.limits.longest;
  const std::int64_t most = limit.tokens > 0 ? limit.tokens + 1 : kMostTokens;
  const std::vector<std::int64_t> alike(
      memory.size(),
      std::accumulate(memory.begin(), memory.end(), std::int64_t{0}) /
          static_cast<std::int64_t>(memory.size()));

  MixedMemory result;
  result.even.tokens =
      longest(most, [&](std::int64_t n) { return cutter.fits(cutter.even(n), memory); });
  if (result.even.tokens < 0) {
    throw std::invalid_argument(fmt::format(
        "mixed: a rank with {} bytes cannot train on any document: give it more memory, or "
        "take a smaller model",
        std::ranges::min(memory)));
  }
  result.proportional.tokens =
      longest(most, [&](std::int64_t n) { return cutter.fits(cutter.proportional(n), memory); });
  result.ideal = longest(most, [&](std::int64_t n) { return cutter.fits(cutter.even(n), alike); });
  if (result.ideal + result.ideal / 10 >= most) {
    throw std::invalid_argument(fmt::format(
        "mixed: documents of {} tokens, the longest possible, still fit: give the ranks less "
        "memory",
        most - 1));
  }
  if (result.ideal <= result.even.tokens) {
    throw std::invalid_argument(fmt::format(
        "mixed: even shards hold {} tokens, as many as the same memory spread evenly: these "
        "budgets are too similar to compare shards",
        result.even.tokens));
  }
  const auto try_out = [&](MixedMemory::Longest& found, const auto& plan_of) {
    const Plan plan = plan_of(found.tokens);
    found.shares = plan.micro_batches[0].groups[0].shares;
    found.peak_bytes = peaks_of(request, plan, memory);
    for (std::int64_t n = found.tokens; found.refused == 0;) {
      n += n / 50 + 1;
      if (n >= most) {
        throw std::runtime_error(fmt::format(
            "mixed: a document of {} tokens ran, but {} was predicted to be the longest that "
            "fits: this is a bug; report it with the model",
            n - n / 50 - 1,
            found.tokens));
      }
      try {
        peaks_of(request, plan_of(n), memory);
      } catch (const OutOfMemory&) {
        found.refused = n;
      }
    }
  };
  try_out(result.even, [&](std::int64_t n) { return cutter.even(n); });
  try_out(result.proportional, [&](std::int64_t n) { return cutter.proportional(n); });
  return result;
}

}  // namespace paradyse
