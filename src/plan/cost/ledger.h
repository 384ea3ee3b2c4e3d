// The machine whose values are byte counts: what footprint() walks, and the simulator, which asks
// after every op.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "paradyse/plan/cost.h"
#include "paradyse/plan/index.h"

namespace paradyse {

// Memory is shared where the executor shares it: an in-place op's result has its operand's memory,
// the gradients of a sum are one tensor.
class Ledger : public Machine {
 public:
  Ledger(const Timeline& timeline, Seat seat, Precision precision, std::int64_t base)
      : timeline_(timeline), seat_(seat), precision_(precision), live_(base), peak_(base) {}

  void prefetch(std::size_t part, int op) override {
    const ValueId out = op_of(part, op).out[0];
    values_[{part, out}] = hold(bytes(program(part), out, seat_, precision_));
    begun_.insert({part, op});
  }

  void forward(std::size_t part, int i) override {
    const Op& op = op_of(part, i);
    if (begun_.erase({part, i}) != 0 || traits(op.kind).weights) {
      return;  // there since its prefetch, or in place
    }
    if (op.in_place) {
      values_[{part, op.out[0]}] = values_[{part, op.in.back()}];
      values_.erase({part, op.in.back()});
    } else {
      for (const ValueId out : op.out) {
        values_[{part, out}] = hold(bytes(program(part), out, seat_, precision_));
      }
    }
    use(workspace_bytes({program(part), op, seat_, Phase::forward, precision_}));
  }

  void begin_adjoint(std::size_t part, int i) override {
    const Op& op = op_of(part, i);
    begun_.insert({part, i});
    hold_gradients(
        part, op, [&](ValueId in) { return !program(part).values[idx(in)].over_domain; });
    use(workspace_bytes({program(part), op, seat_, Phase::adjoint, precision_, Half::operands}));
  }

  void adjoint(std::size_t part, int i) override {
    const Op& op = op_of(part, i);
    if (traits(op.kind).loss) {  // the gradient was made by the forward
      gradients_[{part, op.in[0]}] = values_[{part, op.out[0]}];
      return;
    }
    const bool begun = begun_.erase({part, i}) != 0;
    hold_gradients(part, op, [](ValueId) { return true; });
    use(workspace_bytes(
        {program(part),
         op,
         seat_,
         Phase::adjoint,
         precision_,
         begun ? Half::weights : Half::both}));
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
  void hand_forward(std::size_t part, std::size_t end) override {
    const ScheduledPart& maker = timeline_[part];
    for (std::size_t i = 0; i < maker.readers.size(); ++i) {
      const ValueId out = program(part).writes[i].value;
      for (const Place& reader : maker.readers[i]) {
        if (reader.part < end) {
          values_[{reader.part, reader.value}] = values_[{part, out}];
        }
      }
    }
  }
  void hand_backward(std::size_t part) override {
    const ScheduledPart& reader = timeline_[part];
    for (std::size_t i = 0; i < reader.gradient_to.size(); ++i) {
      const Place to = reader.gradient_to[i];
      const Key mine = {part, program(part).reads[i].value};
      if (to.part != kNobody) {
        gradients_[{to.part, to.value}] = gradients_[mine];
      }
      gradients_.erase(mine);
    }
  }

  // What parts before this one, or after it, hand over.
  void give_inputs(std::size_t part) {
    for (const Port& port : program(part).reads) {
      values_[{part, port.value}] = hold(bytes(program(part), port.value, seat_, precision_));
    }
  }
  void give_gradients(std::size_t part) {
    for (const Port& port : program(part).writes) {
      gradients_[{part, port.value}] = hold(gradient_bytes(part, port.value));
    }
  }

  [[nodiscard]] std::int64_t live() const { return live_; }
  [[nodiscard]] std::int64_t host() const { return host_; }
  [[nodiscard]] std::int64_t peak() const { return peak_; }
  // The peak is counted anew from here.
  void forget_peak() { peak_ = live_; }

 private:
  using Key = std::pair<std::size_t, ValueId>;
  using Memory = std::shared_ptr<void>;

  const Program& program(std::size_t part) const { return timeline_[part].program(); }
  const Op& op_of(std::size_t part, int op) const { return program(part).ops[idx(op)]; }
  [[nodiscard]] std::int64_t gradient_bytes(std::size_t part, ValueId value) const {
    const bool wide = program(part).values[idx(value)].wide_gradient;
    return wide ? local_extent(program(part), value, seat_).elements() * precision_.statistic
                : bytes(program(part), value, seat_, precision_);
  }
  // Those of an op's operands for which `wanted` is true, and that are not there yet.
  template <typename Wanted>
  void hold_gradients(std::size_t part, const Op& op, Wanted wanted) {
    for (std::size_t operand = 0; operand < op.in.size(); ++operand) {
      const ValueId in = op.in[operand];
      if (shares_gradient(op, operand)) {
        gradients_[{part, in}] = gradients_[{part, op.out[0]}];
      } else if (
          wanted(in) && !is_held(program(part), in) && !is_given(program(part), in) &&
          !gradients_.contains({part, in})) {
        gradients_[{part, in}] = hold(gradient_bytes(part, in));
      }
    }
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
  std::set<std::pair<std::size_t, int>> begun_;  // ops whose rest is still to come
};

}  // namespace paradyse
