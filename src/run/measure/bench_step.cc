#include "src/run/measure/bench_step.h"

#include <algorithm>
#include <chrono>
#include <numeric>

#include <sys/resource.h>

#include "paradyse/plan/group_timeline.h"
#include "paradyse/plan/index.h"
#include "paradyse/plan/plan.h"
#include "paradyse/run/session.h"
#include "src/run/comm/observed.h"
#include "src/run/device/device.h"
#include "src/run/execute/breakdown.h"
#include "src/run/execute/gather.h"
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
    since_ = Clock::now();
  }
  void leave() override {
    if (counts_) {
      exposed_ += Clock::now() - since_;
    }
    breakdown_.enter(before_);
  }

  void restart() { exposed_ = {}; }
  // Wall seconds in which parts of the model sent, received or waited.
  [[nodiscard]] double exposed_seconds() const {
    return std::chrono::duration<double>(exposed_).count();
  }

 private:
  Breakdown& breakdown_;
  Breakdown::Part before_ = Breakdown::between;
  bool counts_ = false;
  Clock::time_point since_;
  Clock::duration exposed_{};
};

// What is measured as one row.
struct Case {
  Plan plan;
  std::vector<std::vector<std::int32_t>> documents = {};
};

std::vector<Case> cases_of(const BenchStepRequest& request) {
  if (request.plan) {
    return {{.plan = *request.plan}};
  }
  const ModelShape& model = request.model.shape;
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
         .documents = synthetic_documents(documents, length, model.vocab)});
  }
  return cases;
}

// That products and attention of the model are measured with.
PartShape typical_part(const Model& model) {
  for (const ModelPart& one : model.parts) {
    if (one.layer == 0 && one.part->shape.heads > 0) {
      return one.part->shape;
    }
  }
  return model.parts.front().part->shape;
}

}  // namespace

BenchStepResult bench_step(const BenchStepRequest& request) {
  const Model model = request.model.model();
  BenchStepResult result;
  const PartShape shape = typical_part(model);
  const MachineNumbers machine = measure_machine(
      shape.hidden, shape.head_dim, request.ranks, *request.backend, request.device);
  result.matmul_flops_per_second = machine.matmul_flops_per_second;
  result.cores = std::min(machine.cores, request.ranks);
  const auto samples = pointers(request.samples);
  for (const Case& measured : cases_of(request)) {
    Plan plan = measured.plan;
    if (!request.plan) {
      const Precision precision = precision_of(request.dtype);
      let_messages_travel(plan, model, precision, precision.trained(), request.memory_per_rank);
    }
    plan.messages = {
        .overlap = request.overlap.value_or(plan.messages.overlap),
        .reshard_after_forward =
            request.reshard_after_forward.value_or(plan.messages.reshard_after_forward)};
    BenchStepRow row{
        .length = plan.lengths.front(),
        .documents = static_cast<std::int64_t>(plan.lengths.size()),
        .tokens = std::accumulate(plan.lengths.begin(), plan.lengths.end(), std::int64_t{0}),
        .messages = plan.messages};
    count_work(plan, model, precision_of(request.dtype), row);
    const auto documents = pointers(measured.documents);
    std::vector<double> steps;
    std::vector<double> optimizing;
    double cpu = 0;
    double wall = 0;  // of all counted steps
    std::int64_t peak = 0;
    request.backend->run(request.ranks, [&](Communicators& real) {
      Breakdown breakdown;
      TimedCommunication timed(breakdown);
      ObservedCommunicators observed(real, timed);
      Communicators& communicators = request.breakdown ? observed : real;
      RankSession session(
          communicators,
          model,
          {.dtype = request.dtype,
           .masters = true,
           .memory_bytes = request.memory_per_rank,
           .device = request.device,
           .breakdown = request.breakdown ? &breakdown : nullptr});
      const int me = session.rank();
      Parameters& parameters = session.parameters();
      if (request.model.has_weights()) {
        parameters.load(SafetensorsReader(request.model.path));
      } else {
        parameters.initialize(1);
      }
      AdamW optimizer(parameters, {});
      Communicator& world = session.world();
      double cpu_before = 0;
      for (int i = 0; i <= request.repeats; ++i) {
        world.barrier({.op = "bench", .part = ""});
        if (i == 1 && me == request.backend->first_rank()) {
          cpu_before = cpu_seconds();
        }
        if (i == 1) {
          breakdown.restart();
          timed.restart();
        }
        const std::int64_t sent_before = communicators.counters().bytes_sent;
        const auto begin = Clock::now();
        parameters.zero_gradients();
        session.play(
            plan,
            request.plan ? Batch{.documents = {}, .samples = samples}
                         : synthetic_batch(documents, model),
            /*backward=*/true);
        synchronize(request.device);
        const auto played = Clock::now();
        {
          const TimedPart timed_part(
              request.breakdown ? &breakdown : nullptr, Breakdown::optimizer);
          const double norm =
              request.clip_norm > 0 ? gradient_norm(parameters, session.domain()) : 0.0;
          optimizer.step(1e-4, norm > request.clip_norm ? request.clip_norm / norm : 1.0);
          synchronize(request.device);
        }
        world.barrier({.op = "bench", .part = ""});
        const auto end = Clock::now();
        if (me == 0 && i > 0) {
          steps.push_back(std::chrono::duration<double>(end - begin).count());
          optimizing.push_back(std::chrono::duration<double>(end - played).count());
          row.bytes_sent = communicators.counters().bytes_sent - sent_before;
        }
      }
      const double used = me == request.backend->first_rank() ? cpu_seconds() - cpu_before : 0.0;
      const auto in_us = [](double seconds) { return static_cast<std::int64_t>(seconds * 1e6); };
      std::vector<std::int64_t> mine = {
          in_us(used), session.memory().peak_bytes(), in_us(timed.exposed_seconds())};
      for (const double seconds : breakdown.seconds()) {
        mine.push_back(in_us(request.breakdown ? seconds : 0));
      }
      const auto numbers = gather(mine, world);
      if (me == 0) {
        const auto a_step = [&](std::int64_t us) {
          return static_cast<double>(us) / 1e6 / request.repeats;
        };
        for (const auto& of_rank : numbers) {
          cpu += a_step(of_rank[0]);
          peak = std::max(peak, of_rank[1]);
          row.exposed_s += a_step(of_rank[2]) / request.ranks;
          for (std::size_t part = 0; part < row.parts_s.size(); ++part) {
            row.parts_s[part] += a_step(of_rank[3 + part]);
          }
        }
        wall = std::accumulate(steps.begin(), steps.end(), 0.0) / request.repeats;
      }
    });
    if (!request.backend->leads()) {
      continue;
    }
    row.step_s = median(steps);
    row.best_s = *std::min_element(steps.begin(), steps.end());
    row.worst_s = *std::max_element(steps.begin(), steps.end());
    row.optimizer_s = median(optimizing);
    row.forward_backward_s = row.step_s - row.optimizer_s;
    row.cpu_s = cpu;
    row.idle_s = std::max(0.0, wall * result.cores - cpu);
    row.tokens_per_s = static_cast<double>(row.tokens) / row.step_s;
    const double speed = machine.matmul_flops_per_second * result.cores;
    row.model_utilisation = row.model_flops / row.step_s / speed;
    row.hardware_utilisation = row.hardware_flops / row.step_s / speed;
    row.peak_bytes = peak;
    result.rows.push_back(row);
  }
  return result;
}

}  // namespace paradyse
