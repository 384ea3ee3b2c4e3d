#include "paradyse/cost.h"

#include <algorithm>
#include <map>
#include <memory>
#include <stdexcept>

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

Traffic traffic(const Program& program, const Op& op, Seat seat, Phase phase, Precision precision) {
  Traffic sum;
  const auto add = [&](Sent sent, std::int64_t width) {
    sum += {.bytes = sent.elements * width, .messages = sent.messages, .collectives = 1};
  };
  const bool forward = phase == Phase::forward;
  const int rank = seat.domain_rank;
  switch (op.kind) {
    case OpKind::embed:
      for (const Transfer& tile : op.transfers) {
        if (forward) {
          add(tile.sent(rank), precision.activation);
        } else {
          add(tile.sent_transposed(rank), precision.statistic);
        }
      }
      break;
    case OpKind::cross_entropy:
      if (forward) {
        // several tiles: once for the sums, once more for the gradients
        const std::int64_t passes = op.transfers.size() > 1 && !op.out.empty() ? 2 : 1;
        for (const Transfer& tile : op.transfers) {
          for (std::int64_t i = 0; i < passes; ++i) {
            add(tile.sent(rank), precision.activation);
          }
          if (!op.out.empty()) {
            add(tile.sent_transposed(rank), precision.statistic);
          }
        }
      }
      break;
    case OpKind::gather_weights:
      if (forward) {
        add(op.transfers[0].sent(rank), precision.activation);
      } else {
        const bool wide = program.values[static_cast<std::size_t>(op.out[0])].wide_gradient;
        add(op.transfers[0].sent_transposed(rank),
            wide ? precision.statistic : precision.activation);
      }
      break;
    case OpKind::redistribute: {
      // the table is the copy's; a reduce-scatter is its transpose
      const bool copies = (op.collective != Collective::reduce_scatter) == forward;
      const Transfer& table = op.transfers[0];
      add(copies ? table.sent(seat.group_rank) : table.sent_transposed(seat.group_rank),
          precision.activation);
      break;
    }
    case OpKind::ring_attention:
    case OpKind::score_attention: {
      const int p = ring_size(program, op);
      const int rings = forward && op.kind == OpKind::score_attention ? 2 : 1;  // keys, then values
      for (int hop = 0; hop < p; ++hop) {
        const int source = ring_source(program, op, seat.group_rank, hop);
        const std::int64_t block =
            local_extent(program, op.in[1], {.group_rank = source}).elements();
        const std::int64_t messages = block > 0 ? 1 : 0;
        for (int ring = 0; hop + 1 < p && ring < rings; ++ring) {
          add({.elements = block / rings, .messages = messages}, precision.activation);
        }
        if (!forward && hop > 0) {  // the sums of their gradients
          add({.elements = block, .messages = messages}, precision.statistic);
        }
      }
      break;
    }
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

namespace {

// The machine whose values are byte counts.  Memory is shared where the executor shares it: an
// in-place op's result has its operand's memory, the gradients of a sum are one tensor.
class Ledger : public Machine {
 public:
  Ledger(const Timeline& timeline, Seat seat, Precision precision, std::int64_t base)
      : timeline_(timeline), seat_(seat), precision_(precision), live_(base), peak_(base) {}

  void prefetch(std::size_t part, int op) override {
    const ValueId out = op_of(part, op).out[0];
    values_[{part, out}] = hold(bytes(program(part), out, seat_, precision_));
  }

  void forward(std::size_t part, int i) override {
    const Op& op = op_of(part, i);
    if (op.kind == OpKind::hold_weights || op.kind == OpKind::gather_weights) {
      return;  // in place, or there since its prefetch
    }
    if (op.in_place) {
      values_[{part, op.out[0]}] = values_[{part, op.in.back()}];
      values_.erase({part, op.in.back()});
    } else {
      for (const ValueId out : op.out) {
        values_[{part, out}] = hold(bytes(program(part), out, seat_, precision_));
      }
    }
    use(workspace_bytes(program(part), op, seat_, Phase::forward, precision_));
  }

  void adjoint(std::size_t part, int i) override {
    const Op& op = op_of(part, i);
    if (op.kind == OpKind::cross_entropy) {  // the gradient was made by the forward
      gradients_[{part, op.in[0]}] = values_[{part, op.out[0]}];
      return;
    }
    if (shares_gradient(op)) {
      gradients_[{part, op.in.back()}] = gradients_[{part, op.out[0]}];
    }
    if (shares_gradient(op) && op.kind != OpKind::linear && !op.apart) {
      for (const ValueId in : op.in) {
        gradients_[{part, in}] = gradients_[{part, op.out[0]}];
      }
    } else {
      for (const ValueId in : op.in) {
        const Value& value = program(part).values[static_cast<std::size_t>(in)];
        const bool own = value.over_domain &&
                         op_of(part, producer(program(part), in)).kind ==
                             OpKind::hold_weights;  // straight into the parameter's gradient
        if (!own && !gradients_.contains({part, in})) {
          gradients_[{part, in}] = hold(gradient_bytes(part, in));
        }
      }
    }
    use(workspace_bytes(program(part), op, seat_, Phase::adjoint, precision_));
  }

  void drop_value(std::size_t part, ValueId value) override { values_.erase({part, value}); }
  void offload(std::size_t part, ValueId value) override {
    host_ += bytes(program(part), value, seat_, precision_);
    values_.erase({part, value});
  }
  void fetch(std::size_t part, ValueId value) override {
    const std::int64_t count = bytes(program(part), value, seat_, precision_);
    host_ -= count;
    values_[{part, value}] = hold(count);
  }
  void drop_gradients(std::size_t part, int i) override {
    for (const ValueId out : op_of(part, i).out) {
      gradients_.erase({part, out});
    }
  }
  void hand_forward(std::size_t part) override {
    values_[{part + 1, program(part + 1).input}] = values_[{part, program(part).output}];
    values_.erase({part, program(part).output});
  }
  void hand_backward(std::size_t part) override {
    gradients_[{part, program(part).output}] = gradients_[{part + 1, program(part + 1).input}];
    gradients_.erase({part + 1, program(part + 1).input});
  }

  [[nodiscard]] std::int64_t live() const { return live_; }
  [[nodiscard]] std::int64_t host() const { return host_; }
  [[nodiscard]] std::int64_t peak() const { return peak_; }

 private:
  using Key = std::pair<std::size_t, ValueId>;
  using Memory = std::shared_ptr<void>;

  const Program& program(std::size_t part) const { return timeline_[part].program(); }
  const Op& op_of(std::size_t part, int op) const {
    return program(part).ops[static_cast<std::size_t>(op)];
  }
  [[nodiscard]] std::int64_t gradient_bytes(std::size_t part, ValueId value) const {
    const bool wide = program(part).values[static_cast<std::size_t>(value)].wide_gradient;
    return wide ? local_extent(program(part), value, seat_).elements() * precision_.statistic
                : bytes(program(part), value, seat_, precision_);
  }
  Memory hold(std::int64_t count) {
    live_ += count;
    peak_ = std::max(peak_, live_);
    return {nullptr, [this, count](void*) { live_ -= count; }};
  }
  void use(std::int64_t count) { peak_ = std::max(peak_, live_ + count); }

  const Timeline& timeline_;
  Seat seat_;
  Precision precision_;
  std::int64_t live_;
  std::int64_t peak_;
  std::int64_t host_ = 0;
  std::map<Key, Memory> values_;
  std::map<Key, Memory> gradients_;
};

}  // namespace

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
