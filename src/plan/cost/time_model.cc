#include "paradyse/plan/detail/time_model.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "paradyse/plan/detail/index.h"

namespace paradyse {

Amounts& Amounts::operator+=(const Amounts& other) {
  for (std::size_t i = 0; i < kCount; ++i) {
    values[i] += other.values[i];
  }
  return *this;
}

Amounts& Amounts::operator*=(double factor) {
  for (double& value : values) {
    value *= factor;
  }
  return *this;
}

PartWork& PartWork::operator+=(const PartWork& other) {
  for (std::size_t i = 0; i < kPartPhases; ++i) {
    phases[i] += other.phases[i];
  }
  return *this;
}

PartWork& PartWork::operator*=(double factor) {
  for (Amounts& amounts : phases) {
    amounts *= factor;
  }
  return *this;
}

PartWork part_work(const ScheduledPart& part, Seat seat, Precision precision) {
  const Program& program = part.program();
  PartWork sum;
  const auto add = [&](const ScheduledOp& step, PartPhase otherwise) {
    const OpView view{
        program,
        program.ops[idx(step.op)],
        seat,
        step.adjoint ? Phase::adjoint : Phase::forward,
        precision};
    const Work done = work(view);
    const Traffic sent = traffic(view);
    const PartPhase when = step.adjoint ? PartPhase::backward : otherwise;
    Amounts amounts{
        {done.matmul_flops,
         done.attention_flops,
         done.touched_bytes,
         static_cast<double>(done.calls)}};
    const auto [bytes, collectives] =
        traits(view.op.kind).meets == OpTraits::Meets::domain
            ? std::pair(Amounts::weight_bytes, Amounts::weight_collectives)
        : seat.across_nodes
            ? std::pair(Amounts::bytes_across_nodes, Amounts::collectives_across_nodes)
            : std::pair(Amounts::sent_bytes, Amounts::collectives);
    amounts.values[bytes] = static_cast<double>(sent.bytes);
    amounts.values[collectives] = static_cast<double>(sent.collectives);
    sum.phases[idx(when)] += amounts;
  };
  for (const ScheduledOp& step : part.schedule().forward) {
    add(step, PartPhase::forward);
  }
  for (const auto* steps : {&part.schedule().again, &part.schedule().backward}) {
    for (const ScheduledOp& step : whole(*steps)) {
      add(step, PartPhase::recompute);
    }
  }
  return sum;
}

namespace {

double computing_seconds(const Amounts& amounts, const MachineNumbers& machine) {
  const auto& of = amounts.values;
  return of[Amounts::matmul_flops] / machine.matmul_flops_per_second +
         of[Amounts::attention_flops] / machine.attention_flops_per_second +
         of[Amounts::touched_bytes] / machine.touched_bytes_per_second +
         of[Amounts::calls] * machine.call_seconds;
}

double phase_seconds(const Amounts& amounts, const MachineNumbers& machine) {
  const auto& of = amounts.values;
  return computing_seconds(amounts, machine) +
         (of[Amounts::sent_bytes] + of[Amounts::bytes_across_nodes] + of[Amounts::weight_bytes]) /
             machine.sent_bytes_per_second +
         (of[Amounts::collectives] + of[Amounts::collectives_across_nodes] +
          of[Amounts::weight_collectives]) *
             machine.collective_seconds;
}

double part_seconds(const PartWork& work, const MachineNumbers& machine) {
  return std::accumulate(
      work.phases.begin(), work.phases.end(), 0.0, [&](double sum, const Amounts& amounts) {
        return sum + phase_seconds(amounts, machine);
      });
}

class ClosedForm final : public TimeModel {
 public:
  explicit ClosedForm(const MachineNumbers& machine) : machine_(machine) {}

  [[nodiscard]] std::string name() const override { return "closed form"; }
  [[nodiscard]] bool by_work() const override { return true; }
  [[nodiscard]] PartSeconds seconds(const PartQuestion& question) const override {
    PartSeconds result;
    for (std::size_t i = 0; i < kPartPhases; ++i) {
      result.phases[i] = phase_seconds(question.work.phases[i], machine_);
    }
    return result;
  }

 private:
  MachineNumbers machine_;
};

}  // namespace

double computing_seconds(const PartWork& work, const MachineNumbers& machine) {
  return std::accumulate(
      work.phases.begin(), work.phases.end(), 0.0, [&](double sum, const Amounts& amounts) {
        return sum + computing_seconds(amounts, machine);
      });
}

PartWork together(std::span<const PartWork> of_ranks, int cores) {
  const auto seconds = [](const PartWork& work) { return part_seconds(work, MachineNumbers{}); };
  PartWork mean;
  if (of_ranks.size() > idx(cores)) {
    for (const PartWork& work : of_ranks) {
      mean += work;
    }
    mean *= 1.0 / cores;
  }
  const auto slowest = std::ranges::max_element(of_ranks, {}, seconds);
  return slowest == of_ranks.end() || seconds(*slowest) < seconds(mean) ? mean : *slowest;
}

std::shared_ptr<const TimeModel> closed_form(const MachineNumbers& machine) {
  return std::make_shared<ClosedForm>(machine);
}

}  // namespace paradyse
