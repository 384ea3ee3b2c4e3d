#include "paradyse/plan/cost.h"

#include <algorithm>
#include <stdexcept>

#include "src/plan/cost/ledger.h"

namespace paradyse {

Precision precision_of(const std::string& dtype) {
  if (dtype == "float64") {
    return {8, 8};
  }
  if (dtype == "float32") {
    return {4, 4};
  }
  if (dtype == "bfloat16" || dtype == "float16") {
    return {2, 4};
  }
  throw std::invalid_argument(
      "dtype '" + dtype + "' is not one of float64, float32, bfloat16, float16");
}

std::int64_t bytes(const Program& program, ValueId value, Seat seat, Precision precision) {
  const Value& v = program.values[static_cast<std::size_t>(value)];
  return local_extent(program, value, seat).elements() *
         (v.element == Element::statistic ? precision.statistic : precision.activation);
}

Traffic& Traffic::operator+=(const Traffic& other) {
  bytes += other.bytes;
  messages += other.messages;
  collectives += other.collectives;
  return *this;
}

std::vector<Move> moves(const Program& program, const Op& op, Phase phase, Precision precision) {
  const bool forward = phase == Phase::forward;
  std::vector<Move> found;
  const auto copy = [&](const Transfer& table) {
    found.push_back({.table = &table, .transposed = false, .element_bytes = precision.activation});
  };
  const auto sum = [&](const Transfer& table, std::int64_t element_bytes) {
    found.push_back({.table = &table, .transposed = true, .element_bytes = element_bytes});
  };
  switch (op.kind) {
    case OpKind::embed:
      for (const Transfer& tile : op.transfers) {
        if (forward) {
          copy(tile);
        } else {
          sum(tile, precision.statistic);
        }
      }
      break;
    case OpKind::cross_entropy:
      if (forward) {
        // several tiles: once for the sums, once more for the gradients
        const std::int64_t passes = op.transfers.size() > 1 && !op.out.empty() ? 2 : 1;
        for (const Transfer& tile : op.transfers) {
          for (std::int64_t i = 0; i < passes; ++i) {
            copy(tile);
          }
          if (!op.out.empty()) {
            sum(tile, precision.statistic);
          }
        }
      }
      break;
    case OpKind::gather_weights:
      if (forward) {
        copy(op.transfers[0]);
      } else {
        const bool wide = program.values[static_cast<std::size_t>(op.out[0])].wide_gradient;
        sum(op.transfers[0], wide ? precision.statistic : precision.activation);
      }
      break;
    case OpKind::redistribute:
      // the table is the copy's; a reduce-scatter is its transpose
      if ((op.collective != Collective::reduce_scatter) == forward) {
        copy(op.transfers[0]);
      } else {
        sum(op.transfers[0], precision.activation);
      }
      break;
    case OpKind::ring_attention:
    case OpKind::score_attention:
    case OpKind::norm:
    case OpKind::hold_weights:
    case OpKind::linear:
    case OpKind::bias:
    case OpKind::qk_norm:
    case OpKind::rope:
    case OpKind::attention:
    case OpKind::swiglu:
    case OpKind::activation:
    case OpKind::dropout:
    case OpKind::add:
      break;
  }
  return found;
}

Traffic traffic(const Program& program, const Op& op, Seat seat, Phase phase, Precision precision) {
  Traffic sum;
  const auto add = [&](Sent sent, std::int64_t width) {
    sum += {.bytes = sent.elements * width, .messages = sent.messages, .collectives = 1};
  };
  const bool forward = phase == Phase::forward;
  if (op.kind == OpKind::ring_attention || op.kind == OpKind::score_attention) {
    const int p = ring_size(program, op);
    const int rings = forward && op.kind == OpKind::score_attention ? 2 : 1;  // keys, then values
    for (int hop = 0; hop < p; ++hop) {
      const int source = ring_source(program, op, seat.group_rank, hop);
      const std::int64_t block = local_extent(program, op.in[1], {.group_rank = source}).elements();
      const std::int64_t messages = block > 0 ? 1 : 0;
      for (int ring = 0; hop + 1 < p && ring < rings; ++ring) {
        add({.elements = block / rings, .messages = messages}, precision.activation);
      }
      if (!forward && hop > 0) {  // the sums of their gradients
        add({.elements = block, .messages = messages}, precision.statistic);
      }
    }
    return sum;
  }
  const int rank = over_domain(op) ? seat.domain_rank : seat.group_rank;
  for (const Move& move : moves(program, op, phase, precision)) {
    add(move.transposed ? move.table->sent_transposed(rank) : move.table->sent(rank),
        move.element_bytes);
  }
  return sum;
}

Work& Work::operator+=(const Work& other) {
  matmul_flops += other.matmul_flops;
  attention_flops += other.attention_flops;
  touched_bytes += other.touched_bytes;
  calls += other.calls;
  return *this;
}

Work work(const Program& program, const Op& op, Seat seat, Phase phase, Precision precision) {
  const bool forward = phase == Phase::forward;
  Work sum{.calls = 1};
  const auto touch = [&](const std::vector<ValueId>& values) {
    for (const ValueId value : values) {
      sum.touched_bytes += static_cast<double>(bytes(program, value, seat, precision));
    }
  };
  switch (op.kind) {
    case OpKind::linear: {
      const Extent x = local_extent(program, op.in[0], seat);
      std::int64_t rows = 0;
      for (const Term& term : op.terms[static_cast<std::size_t>(seat.group_rank)]) {
        rows += term.rows.size();
      }
      const std::int64_t other =
          op.transposed ? program.values[static_cast<std::size_t>(op.out[0])].whole.cols : x.cols;
      sum.matmul_flops = (forward ? 2.0 : 4.0) *
                         static_cast<double>(linear_rows(program, op, seat)) *
                         static_cast<double>(rows) * static_cast<double>(other);
      break;
    }
    case OpKind::attention:
    case OpKind::ring_attention:
    case OpKind::score_attention: {
      sum.calls = 0;
      const double adjoint = op.kind == OpKind::score_attention ? 8.0 : 10.0;
      const std::int64_t heads = op.heads[static_cast<std::size_t>(seat.group_rank)].query.size();
      const auto attend = [&](const std::vector<AttentionBlock>& blocks) {
        for (const AttentionBlock& block : blocks) {
          // forward: scores and values; adjoint: scores again (if not kept), dP, dV, dQ, dK
          sum.attention_flops += (forward ? 4.0 : adjoint) *
                                 static_cast<double>(block.pairs(program.tokens.causal)) *
                                 static_cast<double>(heads * program.head_dim);
          sum.calls += heads;
        }
      };
      if (op.kind == OpKind::score_attention) {  // written, made probabilities in two passes, read
        sum.touched_bytes += 6.0 * static_cast<double>(bytes(program, op.out[1], seat, precision));
      }
      if (op.kind == OpKind::attention) {
        attend(attention_blocks(program, op, seat.group_rank));
      } else {
        for (int hop = 0; hop < ring_size(program, op); ++hop) {
          attend(ring_blocks(program, op, seat.group_rank, hop));
        }
      }
      break;
    }
    case OpKind::cross_entropy:
      if (forward) {
        const Extent x = local_extent(program, op.in[0], seat);
        for (const Transfer& tile : op.transfers) {
          const double product = 2.0 * static_cast<double>(x.elements()) *
                                 static_cast<double>(tile.destination.front().rows);
          const bool twice = op.transfers.size() > 1;
          sum.matmul_flops += product * (op.out.empty() ? 1.0 : twice ? 4.0 : 3.0);
          sum.touched_bytes += 3.0 * static_cast<double>(precision.activation) *
                               static_cast<double>(x.rows * tile.destination.front().rows);
          ++sum.calls;
        }
      }
      break;
    case OpKind::embed:
    case OpKind::norm:
    case OpKind::bias:
    case OpKind::qk_norm:
    case OpKind::rope:
    case OpKind::swiglu:
    case OpKind::activation:
    case OpKind::dropout:
    case OpKind::add:
    case OpKind::redistribute:
      touch(op.in);
      touch(op.out);
      if (!forward) {
        sum.touched_bytes *= 2;
      }
      break;
    case OpKind::gather_weights:
      touch(op.out);
      break;
    case OpKind::hold_weights:
      sum.calls = 0;
      break;
  }
  return sum;
}

Totals totals(const Timeline& timeline, Seat seat, Precision precision) {
  // Layers are alike: programs that share their strategy and part would give the same sums, but the
  // fold is cheap enough to be plain.
  Totals sum;
  for (const ScheduledPart& part : timeline) {
    const Program& program = part.program();
    const auto run = [&](const std::vector<Step>& steps, Work& forward) {
      for (const Step& step : steps) {
        const Op& op = program.ops[static_cast<std::size_t>(step.op)];
        const Phase phase = step.adjoint ? Phase::adjoint : Phase::forward;
        (step.adjoint ? sum.backward : forward) += work(program, op, seat, phase, precision);
        sum.traffic += traffic(program, op, seat, phase, precision);
      }
    };
    run(part.schedule().forward, sum.forward);
    run(part.schedule().backward, sum.recompute);
  }
  return sum;
}

std::int64_t rope_table_bytes(const Timeline& timeline, Precision precision) {
  std::int64_t bytes = 0;
  for (const ScheduledPart& part : timeline) {
    const Program& program = part.program();
    const bool turns = std::any_of(program.ops.begin(), program.ops.end(), [](const Op& op) {
      return op.kind == OpKind::rope;
    });
    for (const std::int64_t n : program.tokens.lengths) {
      bytes = std::max(bytes, turns ? n * program.head_dim * precision.statistic : 0);
    }
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

PartFootprint part_footprint(const ScheduledPart& part, Seat seat, Precision precision) {
  const Timeline alone = {part};
  Ledger ledger(alone, seat, precision, 0);
  ledger.give_input(0);
  walk_forward(alone, ledger);
  ledger.take_output(0);
  PartFootprint result{.saved_bytes = ledger.live()};
  if (!part.schedule().backward.empty()) {
    ledger.give_gradient(0);
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
