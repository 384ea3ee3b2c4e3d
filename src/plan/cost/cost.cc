#include "paradyse/plan/cost.h"

#include <algorithm>

#include "paradyse/plan/detail/index.h"
#include "paradyse/plan/model.h"
#include "src/plan/cost/ledger.h"

namespace paradyse {

Traffic& Traffic::operator+=(const Traffic& other) {
  bytes += other.bytes;
  messages += other.messages;
  collectives += other.collectives;
  return *this;
}

std::int64_t static_bytes(
    const Model& model, int domain, int rank, Precision precision, Keeps keeps, Messages messages) {
  const std::int64_t trained = trained_elements(model, domain, rank);
  const std::int64_t frozen = stored_elements(model, domain, rank) - trained;
  std::int64_t bytes =
      trained * precision.of_weight(keeps) + frozen * precision.of_weight(Keeps::weights);
  if (whole_weights(messages, domain)) {
    const std::int64_t gradient = keeps == Keeps::weights ? 0 : precision.statistic;
    bytes +=
        matrix_elements(model) * precision.activation + trained_matrix_elements(model) * gradient;
  }
  return bytes;
}

std::int64_t most_static_bytes(
    const Model& model, int domain, Precision precision, Keeps keeps, Messages messages) {
  std::int64_t most = 0;
  for (int rank = 0; rank < domain; ++rank) {
    most = std::max(most, static_bytes(model, domain, rank, precision, keeps, messages));
  }
  return most;
}

std::int64_t workspace_bytes(const OpView& view) { return traits(view.op.kind).workspace(view); }

std::vector<Exchange> exchanges(const OpView& view) { return traits(view.op.kind).exchanges(view); }

Work work(const OpView& view) { return traits(view.op.kind).work(view); }

Traffic traffic(const OpView& view) {
  const bool over_domain = traits(view.op.kind).meets == OpTraits::Meets::domain;
  if (over_domain && view.program.domain == 1) {
    return {};  // nobody is met
  }
  const int rank = over_domain ? place_in_domain(view.program, view.seat) : view.seat.group_rank;
  Traffic sum;
  for (const Exchange& exchange : exchanges(view)) {
    const Sent sent = exchange.copy == nullptr
                          ? exchange.sent
                          : exchange.copy->sent(exchange.transposed)[idx(rank)];
    sum +=
        {.bytes = sent.elements * exchange.element_bytes,
         .messages = sent.messages,
         .collectives = 1};
  }
  return sum;
}

GroupElements& GroupElements::operator+=(const GroupElements& other) {
  forward += other.forward;
  backward += other.backward;
  return *this;
}

GroupElements sent_in_group(const ScheduledPart& part, Seat seat) {
  constexpr Precision kElements{.activation = 1, .statistic = 1};
  GroupElements sum;
  const auto add = [&](const std::vector<ScheduledOp>& steps, std::int64_t& into) {
    for (const ScheduledOp& step : whole(steps)) {
      const Op& op = part.program().ops[idx(step.op)];
      if (traits(op.kind).meets == OpTraits::Meets::group) {
        const Phase phase = step.adjoint ? Phase::adjoint : Phase::forward;
        into += traffic({part.program(), op, seat, phase, kElements}).bytes;
      }
    }
  };
  add(part.schedule().forward, sum.forward);
  add(part.schedule().again, sum.backward);
  add(part.schedule().backward, sum.backward);
  return sum;
}

Totals totals(const Timeline& timeline, Seat seat, Precision precision) {
  // Layers are alike: programs that share their strategy and part would give the same sums, but the
  // fold is cheap enough to be plain.
  Totals sum;
  for (const ScheduledPart& part : timeline) {
    const Program& program = part.program();
    const auto run = [&](const std::vector<ScheduledOp>& steps, Work& forward) {
      for (const ScheduledOp& step : whole(steps)) {
        const Op& op = program.ops[idx(step.op)];
        const OpView view{
            program, op, seat, step.adjoint ? Phase::adjoint : Phase::forward, precision};
        (step.adjoint ? sum.backward : forward) += work(view);
        sum.traffic += traffic(view);
      }
    };
    run(part.schedule().forward, sum.forward);
    run(part.schedule().again, sum.recompute);
    run(part.schedule().backward, sum.recompute);
  }
  return sum;
}

std::int64_t rope_positions(const Program& program) {
  const std::vector<std::int64_t>& lengths = program.documents.lengths;
  if (lengths.empty()) {
    return 0;  // of an idle rank
  }
  const std::string& along = program.shape.rope ? program.shape.rope->along : "";
  return along.empty() ? *std::ranges::max_element(lengths) : program.documents.dims.at(along);
}

std::vector<const Program*> turning_programs(const Timeline& timeline) {
  std::vector<const Program*> found;
  for (const ScheduledPart& part : timeline) {
    const Program& program = part.program();
    const auto same = [&](const Program* other) { return turn_alike(*other, program); };
    if (std::ranges::any_of(program.ops, [](const Op& op) { return traits(op.kind).rotary; }) &&
        std::ranges::none_of(found, same)) {
      found.push_back(&program);
    }
  }
  return found;
}

bool turn_alike(const Program& a, const Program& b) {
  return a.shape.rope == b.shape.rope && a.shape.head_dim == b.shape.head_dim;
}

std::int64_t rope_table_bytes(const Timeline& timeline, Precision precision) {
  std::int64_t bytes = 0;
  for (const Program* program : turning_programs(timeline)) {
    bytes += rope_positions(*program) * program->shape.head_dim * precision.statistic;
  }
  return bytes;
}

double seconds(const Totals& totals, const MachineNumbers& machine) {
  Work all = totals.forward;
  all += totals.backward;
  all += totals.recompute;
  return all.matmul_flops / machine.matmul_flops_per_second +
         all.attention_flops / machine.attention_flops_per_second +
         all.touched_bytes / machine.touched_bytes_per_second +
         static_cast<double>(all.calls) * machine.call_seconds +
         static_cast<double>(totals.traffic.bytes) / machine.sent_bytes_per_second +
         static_cast<double>(totals.traffic.collectives) * machine.collective_seconds;
}

double copying_seconds(
    std::span<const ScheduledPart> parts,
    std::span<const Seat> seats,
    Precision precision,
    const MachineNumbers& machine) {
  std::int64_t waiting = 0;
  for (const ScheduledPart& part : parts) {
    for (const ValueId value : part.through_host()) {
      for (const Seat& seat : seats) {
        waiting += bytes(part.program(), value, seat, precision);
      }
    }
  }
  const auto cores = std::min<std::size_t>(seats.size(), idx(machine.cores));
  return waiting == 0 ? 0
                      : 4 * static_cast<double>(waiting) / machine.touched_bytes_per_second /
                            static_cast<double>(cores);
}

PartFootprint part_footprint(const ScheduledPart& part, Seat seat, Precision precision) {
  const Timeline alone = linked({part});
  Ledger ledger(alone, seat, precision, 0);
  ledger.give_inputs(0);
  walk_forward(alone, ledger);
  PartFootprint result{.saved_bytes = ledger.live()};
  if (!part.schedule().backward.empty()) {
    ledger.give_gradients(0);
    walk_backward(alone, ledger);
  }
  result.transient_bytes = ledger.peak() - result.saved_bytes;
  return result;
}

Footprint footprint(
    const Timeline& timeline, Seat seat, Precision precision, std::int64_t base_bytes) {
  const std::int64_t base = base_bytes + rope_table_bytes(timeline, precision);
  Ledger ledger(timeline, seat, precision, base);
  walk_forward(timeline, ledger);
  Footprint result;
  result.saved_bytes = ledger.live() - base;
  result.offloaded_bytes = ledger.host();
  if (!timeline.empty() && !timeline.back().schedule().backward.empty()) {  // not evaluation
    walk_backward(timeline, ledger);
  }
  result.peak_bytes = ledger.peak();
  return result;
}

}  // namespace paradyse
