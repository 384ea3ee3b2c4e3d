#include "src/run/measure/bench_step.h"

#include <algorithm>
#include <chrono>
#include <numeric>

#include <sys/resource.h>

#include "paradyse/plan/group_timeline.h"
#include "paradyse/plan/index.h"
#include "paradyse/plan/plan.h"
#include "paradyse/run/session.h"
#include "src/plan/base/number_text.h"
#include "src/run/comm/observed.h"
#include "src/run/device/device.h"
#include "src/run/device/stopwatch.h"
#include "src/run/execute/breakdown.h"
#include "src/run/execute/gather.h"
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

// What is measured as one row.
struct Case {
  Plan plan;
  std::vector<std::vector<std::int32_t>> documents = {};
  // Measured, on rank 0.
  BenchStepRow row = {};
  std::vector<double> steps = {};
  std::vector<double> optimizing = {};
  double cpu = 0;   // a step
  double wall = 0;  // the mean of the counted steps
};

std::vector<Case> cases_of(const BenchStepRequest& request) {
  if (request.plan) {
    return {{.plan = *request.plan}};
  }
  const Model& model = request.model;
  const bool whole = strategy("attention", part_of(request.layer, "attention").strategy).one_rank;
  const std::size_t documents = whole ? idx(request.ranks) : 1;
  std::vector<Case> cases;
  for (const std::int64_t length : request.lengths) {
    cases.push_back(
        {.plan = uniform_plan(
             model,
             std::vector<std::int64_t>(documents, length),
             request.ranks,
             std::vector<LayerChoice>(idx(model.layers), request.layer)),
         .documents = synthetic_documents(documents, length, model.vocab())});
  }
  return cases;
}

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

// How its plan is played, and what that takes by the folds.
void prepare(Case& one, const BenchStepRequest& request, const Model& model) {
  Plan& plan = one.plan;
  const Precision precision = precision_of(request.dtype);
  if (!request.plan) {
    let_messages_travel(plan, model, precision, precision.trained(), request.memory_per_rank);
  }
  plan.messages = {
      .overlap = request.overlap.value_or(plan.messages.overlap),
      .reshard_after_forward =
          request.reshard_after_forward.value_or(plan.messages.reshard_after_forward)};
  one.row = {
      .length = plan.lengths.front(),
      .documents = static_cast<std::int64_t>(plan.lengths.size()),
      .tokens = std::accumulate(plan.lengths.begin(), plan.lengths.end(), std::int64_t{0}),
      .messages = plan.messages};
  count_work(plan, model, precision, one.row);
}

// A rank on which the cases are measured one after the other.  Weights are drawn once: what a step
// takes does not depend on them.
class BenchRank {
 public:
  BenchRank(const BenchStepRequest& request, const Model& model, Communicators& communicators)
      : request_(request),
        model_(model),
        samples_(pointers(request.samples)),
        timed_(breakdown_),
        observed_(communicators, timed_),
        session_(
            request.breakdown ? static_cast<Communicators&>(observed_) : communicators,
            model,
            {.dtype = request.dtype,
             .masters = true,
             .memory_bytes = request.memory_per_rank,
             .device = request.device,
             .breakdown = request.breakdown ? &breakdown_ : nullptr}),
        optimizer_(session_.parameters(), {}) {
    session_.parameters().initialize(1);
  }

  void measure(Case& one, const std::function<void(std::int64_t step)>& begins) {
    const auto documents = pointers(one.documents);
    const Batch batch = request_.plan ? Batch{.documents = {}, .samples = samples_}
                                      : synthetic_batch(documents, model_);
    const bool first_here = session_.rank() == request_.backend->first_rank();
    double cpu_before = 0;
    session_.memory().reset_peak();
    for (int i = 0; i <= request_.repeats; ++i) {
      begins(i);
      barrier();
      if (i == 1) {
        cpu_before = first_here ? cpu_seconds() : 0;
        breakdown_.restart();
        timed_.restart();
      }
      step(one, batch, i > 0);
    }
    report(one, first_here ? cpu_seconds() - cpu_before : 0.0);
  }

 private:
  void barrier() { session_.world().barrier({.op = "bench", .part = ""}); }

  void step(Case& one, const Batch& batch, bool counts) {
    Communicators& communicators = session_.communicators();
    Parameters& parameters = session_.parameters();
    const std::int64_t sent_before = communicators.counters().bytes_sent;
    const auto begin = Clock::now();
    parameters.zero_gradients();
    session_.play(one.plan, batch, /*backward=*/true);
    const TimedMark played = TimedMark::here();
    {
      const TimedPart timed_part(request_.breakdown ? &breakdown_ : nullptr, Breakdown::optimizer);
      if (request_.clip_norm > 0) {
        const at::Tensor norm = gradient_norm(parameters, session_.domain());
        optimizer_.step(1e-4, gradient_factor(norm, request_.clip_norm, 1));
      } else {
        optimizer_.step(1e-4, 1.0);
      }
      synchronize(request_.device);
    }
    barrier();
    const auto end = Clock::now();
    const TimedMark optimized = TimedMark::here();
    if (request_.breakdown) {
      breakdown_.settle();
    }
    if (session_.rank() == 0 && counts) {
      optimized.wait();
      one.steps.push_back(std::chrono::duration<double>(end - begin).count());
      one.optimizing.push_back(seconds_between(played, optimized));
      one.row.bytes_sent = communicators.counters().bytes_sent - sent_before;
    }
  }

  // `used`: seconds of processors in the counted steps, of this process.
  void report(Case& one, double used) {
    const auto in_us = [](double seconds) { return static_cast<std::int64_t>(seconds * 1e6); };
    std::vector<std::int64_t> mine = {
        in_us(used), session_.memory().peak_bytes(), in_us(timed_.exposed_seconds())};
    for (const double seconds : breakdown_.seconds()) {
      mine.push_back(in_us(request_.breakdown ? seconds : 0));
    }
    const auto numbers = gather(mine, session_.world());
    if (session_.rank() != 0) {
      return;
    }
    const auto a_step = [&](std::int64_t us) {
      return static_cast<double>(us) / 1e6 / request_.repeats;
    };
    for (const auto& of_rank : numbers) {
      one.cpu += a_step(of_rank[0]);
      one.row.peak_bytes = std::max(one.row.peak_bytes, of_rank[1]);
      one.row.exposed_s += a_step(of_rank[2]) / request_.ranks;
      for (std::size_t part = 0; part < one.row.parts_s.size(); ++part) {
        one.row.parts_s[part] += a_step(of_rank[3 + part]);
      }
    }
    one.wall = std::accumulate(one.steps.begin(), one.steps.end(), 0.0) / request_.repeats;
  }

  const BenchStepRequest& request_;
  const Model& model_;
  const std::vector<const Sample*> samples_;
  Breakdown breakdown_;
  TimedCommunication timed_;
  ObservedCommunicators observed_;
  RankSession session_;
  AdamW optimizer_;
};

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
  std::vector<Case> cases = cases_of(request);
  for (Case& one : cases) {
    prepare(one, request, model);
  }
  request.backend->run(request.ranks, [&](Communicators& communicators) {
    BenchRank rank(request, model, communicators);
    for (std::size_t i = 0; i < cases.size(); ++i) {
      rank.measure(cases[i], [&](std::int64_t step) {
        const std::int64_t steps = request.repeats + 1;
        if (request.progress && communicators.rank() == 0) {
          request.progress(
              static_cast<std::int64_t>(i) * steps + step,
              std::ssize(cases) * steps,
              counted(cases[i].row.tokens, "token"));
        }
      });
    }
  });
  if (!request.backend->leads()) {
    return result;
  }
  for (Case& one : cases) {
    BenchStepRow& row = one.row;
    row.step_s = median(one.steps);
    row.best_s = *std::min_element(one.steps.begin(), one.steps.end());
    row.worst_s = *std::max_element(one.steps.begin(), one.steps.end());
    row.optimizer_s = median(one.optimizing);
    row.forward_backward_s = row.step_s - row.optimizer_s;
    row.cpu_s = one.cpu;
    const double used = request.device.is_cpu()
                            ? one.cpu
                            : std::accumulate(row.parts_s.begin(), row.parts_s.end(), 0.0);
    row.idle_s = std::max(0.0, one.wall * result.cores - used);
    row.tokens_per_s = static_cast<double>(row.tokens) / row.step_s;
    const double speed = machine.matmul_flops_per_second * result.cores;
    row.model_flops_per_second = row.model_flops / row.step_s;
    row.hardware_flops_per_second = row.hardware_flops / row.step_s;
    row.model_utilisation = row.model_flops_per_second / speed;
    row.hardware_utilisation = row.hardware_flops_per_second / speed;
    result.rows.push_back(row);
  }
  return result;
}

}  // namespace paradyse
