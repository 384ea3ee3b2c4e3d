#include "src/run/measure/bench_step.h"

#include <algorithm>
#include <chrono>
#include <numeric>

#include <fmt/format.h>
#include <sys/resource.h>

#include "paradyse/plan/detail/index.h"
#include "paradyse/plan/plan.h"
#include "paradyse/run/session.h"
#include "src/plan/base/bytes_text.h"
#include "src/plan/base/number_text.h"
#include "src/plan/plan/group_timeline.h"
#include "src/run/comm/observed.h"
#include "src/run/data/synthetic_items.h"
#include "src/run/device/device.h"
#include "src/run/device/stopwatch.h"
#include "src/run/execute/breakdown.h"
#include "src/run/execute/gather.h"
#include "src/run/execute/within_memory.h"
#include "src/run/measure/device_speeds.h"
#include "src/run/measure/machine.h"
#include "src/run/measure/measure.h"
#include "src/run/weights/optimizer.h"

namespace paradyse {
namespace {

using Clock = std::chrono::steady_clock;

double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// What a step does on all ranks, by the folds: of the mathematics, and as executed.
void count_work(const Plan& plan, const Model& model, Precision precision, BenchStepRow& row) {
  for (const PlanMicroBatch& micro : plan.micro_batches) {
    for (int r = 0; r < plan.ranks; ++r) {
      const RankPart part = rank_part(plan, micro, model, r, true);
      const Totals sum = totals(part.timeline, part.seat, precision);
      const auto all = [](const Work& work) { return work.matmul_flops + work.attention_flops; };
      row.hardware_flops += all(sum.forward) + all(sum.recompute) + all(sum.backward);
      row.touched_bytes +=
          sum.forward.touched_bytes + sum.recompute.touched_bytes + sum.backward.touched_bytes;
      // the fused head makes its gradients in the forward; flash attention recomputes its scores
      row.model_flops +=
          sum.forward.matmul_flops + sum.backward.matmul_flops + 3 * sum.forward.attention_flops;
    }
  }
}

// Calls of a communicator are its time, whatever they are part of.
class TimedCommunication final : public CommunicationObserver {
 public:
  explicit TimedCommunication(Breakdown& breakdown) : breakdown_(breakdown) {}
  void enter(Moment /*moment*/, const Call& call) override {
    before_ = breakdown_.enter(Breakdown::communication);
    counts_ = !call.part.empty();
    if (counts_) {
      exposed_.start();
    }
  }
  void leave() override {
    if (counts_) {
      exposed_.stop();
    }
    breakdown_.enter(before_);
  }

  void restart() { exposed_.restart(); }
  // In which parts of the model sent, received or waited.
  [[nodiscard]] double exposed_seconds() { return exposed_.seconds(); }

 private:
  Breakdown& breakdown_;
  Breakdown::Part before_ = Breakdown::between;
  bool counts_ = false;
  Stopwatch exposed_;
};

// To hold a step's operations beside.
void measure_card(const BenchStepRequest& request, BenchStepResult& result) {
  result.card = card_name(request.device);
  if (narrow(request.dtype)) {
    result.data_sheet = data_sheet_of(result.card);
  }
  {
    const DeviceScope computing(request.device);
    result.large_product_flops_per_second =
        large_product_flops_per_second(request.dtype, request.device);
  }
  release_cached(request.device);
}

// What is known of a case before it runs.
BenchStepRow counted_row(const BenchStepCase& one, const BenchStepRequest& request) {
  const Plan& plan = one.plan;
  const Precision precision = precision_of(request.dtype);
  BenchStepRow row{
      .name = one.name,
      .length = plan.lengths.front(),
      .documents = std::ssize(plan.lengths),
      .tokens = std::accumulate(plan.lengths.begin(), plan.lengths.end(), std::int64_t{0}),
      .messages = plan.messages};
  count_work(plan, request.model, precision, row);
  for (const PredictedBytes& bytes : bytes_of_ranks(plan, request.model, precision)) {
    row.counted_bytes = std::max(row.counted_bytes, bytes.total());
  }
  if (request.memory_per_rank > 0 && row.counted_bytes > request.memory_per_rank) {
    row.lacks_memory = fmt::format(
        "does not fit: a rank needs {} of {}",
        bytes_text(row.counted_bytes),
        bytes_text(request.memory_per_rank));
  }
  return row;
}

// A rank on which steps are measured.  Weights are drawn once: what a step takes does not depend on
// them.
class BenchRank {
 public:
  BenchRank(const BenchStepRequest& request, Communicators& communicators)
      : request_(request),
        observed_(communicators, timed_),
        communicators_(request.breakdown ? observed_ : communicators) {}

  // A step that counts, after one that warms up where the step before was another case's.  On rank
  // 0 the row has it.  Every rank calls this, and gets why there was no memory for it.
  std::optional<std::string> turn(const BenchStepCase& one, const Batch& batch, BenchStepRow& row) {
    std::optional<std::string> lack = within_memory(communicators_, [&] {
      expect_session(one.plan.weight_domain);
      if (last_ != &one) {
        step(one, batch, nullptr);
      }
      step(one, batch, &row);
    });
    last_ = &one;
    if (lack) {  // what it has of an update is of no use
      optimizer_.reset();
      session_.reset();
    }
    return lack;
  }

 private:
  // One at a time, as sessions are: of another sharding of weights it is another.
  void expect_session(int weight_domain) {
    if (session_ && domain_ == weight_domain) {
      return;
    }
    optimizer_.reset();
    session_.reset();
    domain_ = weight_domain;
    session_.emplace(
        communicators_,
        request_.model,
        SessionOptions{
            .dtype = request_.dtype,
            .weight_domain = weight_domain,
            .masters = Masters::on_device,
            .memory_bytes = request_.memory_per_rank,
            .device = request_.device,
            .breakdown = request_.breakdown ? &breakdown_ : nullptr});
    session_->parameters().initialize(1);
    optimizer_.emplace(session_->parameters(), RunConfig::Optimizer{});
  }

  void barrier() { session_->world().barrier({.op = "bench", .part = ""}); }

  void step(const BenchStepCase& one, const Batch& batch, BenchStepRow* row) {
    const bool first_here = session_->rank() == request_.backend->first_rank();
    Parameters& parameters = session_->parameters();
    session_->memory().reset_peak();
    barrier();
    const double cpu_before = first_here ? cpu_seconds() : 0;
    breakdown_.restart();
    timed_.restart();
    const std::int64_t sent_before = communicators_.counters().bytes_sent;
    const auto begin = Clock::now();
    parameters.zero_gradients();
    const BatchResult result = session_->play(one.plan, batch, /*backward=*/true);
    const TimedMark played = TimedMark::here();
    {
      const TimedPart timed_part(request_.breakdown ? &breakdown_ : nullptr, Breakdown::optimizer);
      if (request_.clip_norm > 0) {
        const at::Tensor norm = gradient_norm(parameters, session_->domain());
        optimizer_->step(1e-4, gradient_factor(norm, request_.clip_norm, 1));
      } else {
        optimizer_->step(1e-4, 1.0);
      }
      synchronize(request_.device);
    }
    barrier();
    const auto end = Clock::now();
    const TimedMark optimized = TimedMark::here();
    if (request_.breakdown) {
      breakdown_.settle();
    }
    if (row == nullptr) {
      return;
    }
    const auto in_us = [](double seconds) { return static_cast<std::int64_t>(seconds * 1e6); };
    std::vector<std::int64_t> mine = {
        in_us(first_here ? cpu_seconds() - cpu_before : 0),
        communicators_.counters().bytes_sent - sent_before,
        session_->memory().peak_bytes(),
        result.saved_bytes,
        in_us(timed_.exposed_seconds())};
    for (const double seconds : breakdown_.seconds()) {
      mine.push_back(in_us(request_.breakdown ? seconds : 0));
    }
    const auto numbers = gather(mine, session_->world());
    if (session_->rank() != 0) {
      return;
    }
    optimized.wait();
    row->seconds.push_back(std::chrono::duration<double>(end - begin).count());
    row->optimizer_each.push_back(seconds_between(played, optimized));
    row->bytes_sent = numbers.front()[1];
    row->all_bytes_sent = 0;
    const auto a_step = [&](std::int64_t us) {
      return static_cast<double>(us) / 1e6 / request_.repeats;
    };
    for (const auto& of_rank : numbers) {
      row->cpu_s += a_step(of_rank[0]);
      row->all_bytes_sent += of_rank[1];
      row->peak_bytes = std::max(row->peak_bytes, of_rank[2]);
      row->saved_bytes = std::max(row->saved_bytes, of_rank[3]);
      row->exposed_s += a_step(of_rank[4]) / request_.ranks;
      for (std::size_t part = 0; part < row->parts_s.size(); ++part) {
        row->parts_s[part] += a_step(of_rank[5 + part]);
      }
    }
  }

  const BenchStepRequest& request_;
  Breakdown breakdown_;
  TimedCommunication timed_{breakdown_};
  ObservedCommunicators observed_;
  Communicators& communicators_;
  std::optional<RankSession> session_;
  std::optional<AdamW> optimizer_;
  int domain_ = 0;
  const BenchStepCase* last_ = nullptr;
};

// What the rounds of a case come to, `first`: of the first case that was measured.
void conclude(
    BenchStepRow& row, const BenchStepRow& first, const BenchStepResult& result, bool cpu) {
  const Spread steps = spread_of(row.seconds);
  row.step_s = steps.median;
  row.best_s = steps.least;
  row.worst_s = steps.most;
  row.optimizer_s = median(row.optimizer_each);
  row.forward_backward_s = row.step_s - row.optimizer_s;
  const double used =
      cpu ? row.cpu_s : std::accumulate(row.parts_s.begin(), row.parts_s.end(), 0.0);
  const double mean = std::accumulate(row.seconds.begin(), row.seconds.end(), 0.0) /
                      static_cast<double>(row.seconds.size());
  row.idle_s = std::max(0.0, mean * result.cores - used);
  row.tokens_per_s = static_cast<double>(row.tokens) / row.step_s;
  const double speed = result.matmul_flops_per_second * result.cores;
  row.model_flops_per_second = row.model_flops / row.step_s;
  row.hardware_flops_per_second = row.hardware_flops / row.step_s;
  row.model_utilisation = row.model_flops_per_second / speed;
  row.hardware_utilisation = row.hardware_flops_per_second / speed;
  std::vector<double> ratios;
  for (std::size_t round = 0; round < row.seconds.size(); ++round) {
    ratios.push_back(
        row.seconds[round] / first.seconds[round] * static_cast<double>(first.tokens) /
        static_cast<double>(row.tokens));
  }
  row.of_first = spread_of(ratios);
}

}  // namespace

BenchStepResult bench_step(const BenchStepRequest& request) {
  const Model& model = request.model;
  BenchStepResult result;
  const MachineNumbers machine =
      measure_machine(model, request.dtype, request.ranks, *request.backend, request.device);
  result.matmul_flops_per_second = machine.matmul_flops_per_second;
  result.cores = std::min(machine.cores, request.ranks);
  if (!request.device.is_cpu() && request.backend->leads()) {
    measure_card(request, result);
  }
  const std::size_t cases = request.cases.size();
  std::vector<bool> fits;
  std::vector<std::vector<OwnedItem>> data;  // of each case that may run
  for (const BenchStepCase& one : request.cases) {
    result.rows.push_back(counted_row(one, request));
    fits.push_back(result.rows.back().lacks_memory.empty());
    data.push_back(one.items);
    if (fits.back() && one.items.empty()) {
      data.back() = synthetic_items(model, sizes_of(one.plan));
    }
  }
  request.backend->run(request.ranks, [&](Communicators& communicators) {
    BenchRank rank(request, communicators);
    std::vector<bool> runs = fits;  // the same on every rank
    for (std::size_t turn = 0; turn < idx(request.repeats) * cases; ++turn) {
      const std::size_t i = (turn / cases + turn) % cases;
      if (!runs[i]) {
        continue;
      }
      BenchStepRow& row = result.rows[i];
      if (request.progress && communicators.rank() == 0) {
        request.progress(
            static_cast<std::int64_t>(turn),
            request.repeats * std::ssize(request.cases),
            fmt::format(
                "{}, {}", row.name, counted(row.tokens, model.of_samples() ? "row" : "token")));
      }
      const std::vector<Item> items = items_of(data[i]);
      if (const auto lack = rank.turn(request.cases[i], {.items = items}, row)) {
        runs[i] = false;
        if (communicators.rank() == 0) {
          row.lacks_memory = "ran out of memory: " + *lack;
        }
      }
    }
  });
  if (!request.backend->leads()) {
    return {};
  }
  const auto first = std::ranges::find_if(
      result.rows, [](const BenchStepRow& row) { return row.lacks_memory.empty(); });
  for (BenchStepRow& row : result.rows) {
    if (row.lacks_memory.empty()) {
      conclude(row, *first, result, request.device.is_cpu());
    }
  }
  return result;
}

}  // namespace paradyse
