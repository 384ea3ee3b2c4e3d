// The machine whose values are byte counts: what footprint() walks, and the simulator, which asks
// after every op.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "paradyse/plan/cost.h"
#include "paradyse/plan/detail/index.h"

namespace paradyse {

// Memory is shared where the executor shares it: an in-place op's result has its operand's memory,
// the gradients of a sum are one tensor.
class Ledger : public Machine {
 public:
  Ledger(const Timeline& timeline, Seat seat, Precision precision, std::int64_t base)
      : timeline_(timeline), seat_(seat), precision_(precision), live_(base), peak_(base) {
    std::size_t values = 0;
    std::size_t ops = 0;
    for (const ScheduledPart& part : timeline) {
      first_value_.push_back(values);
      first_op_.push_back(ops);
      values += part.program().values.size();
      ops += part.program().ops.size();
    }
    values_.assign(values, kNotThere);
    gradients_.assign(values, kNotThere);
    begun_.assign(ops, 0);
  }

  void prefetch(std::size_t part, int op) override {
    const ValueId out = op_of(part, op).out[0];
    hold(value(part, out), bytes(program(part), out, seat_, precision_));
    begun_[first_op_[part] + idx(op)] = 1;
  }

  void forward(std::size_t part, int i) override {
    const Op& op = op_of(part, i);
    if (ended(part, i) || traits(op.kind).weights) {
      return;  // there since its prefetch, or in place
    }
    if (op.in_place) {
      share(value(part, op.out[0]), value(part, op.in.back()));
      drop(value(part, op.in.back()));
    } else {
      for (const ValueId out : op.out) {
        hold(value(part, out), bytes(program(part), out, seat_, precision_));
      }
    }
    use(workspace_bytes({program(part), op, seat_, Phase::forward, precision_}));
  }

  void begin_adjoint(std::size_t part, int i) override {
    const Op& op = op_of(part, i);
    begun_[first_op_[part] + idx(i)] = 1;
    hold_gradients(
        part, op, [&](ValueId in) { return !program(part).values[idx(in)].over_domain; });
    use(workspace_bytes({program(part), op, seat_, Phase::adjoint, precision_, Half::operands}));
  }

  void adjoint(std::size_t part, int i) override {
    const Op& op = op_of(part, i);
    if (traits(op.kind).loss) {  // the gradient was made by the forward
      share(gradient(part, op.in[0]), value(part, op.out[0]));
      return;
    }
    const bool begun = ended(part, i);
    hold_gradients(part, op, [](ValueId) { return true; });
    use(workspace_bytes(
        {program(part),
         op,
         seat_,
         Phase::adjoint,
         precision_,
         begun ? Half::weights : Half::both}));
  }

  void drop_value(std::size_t part, ValueId id) override { drop(value(part, id)); }
  void offload(std::size_t part, ValueId id) override {
    host_ += bytes(program(part), id, seat_, precision_);
    drop(value(part, id));
  }
  void fetch(std::size_t part, ValueId id) override {
    const std::int64_t count = bytes(program(part), id, seat_, precision_);
    host_ -= count;
    hold(value(part, id), count);
  }
  void drop_gradients(std::size_t part, int i) override {
    for (const ValueId out : op_of(part, i).out) {
      drop(gradient(part, out));
    }
  }
  void hand_forward(std::size_t part, std::size_t end) override {
    const ScheduledPart& maker = timeline_[part];
    for (std::size_t i = 0; i < maker.readers.size(); ++i) {
      const ValueId out = program(part).writes[i].value;
      for (const Place& reader : maker.readers[i]) {
        if (reader.part < end) {
          share(value(reader.part, reader.value), value(part, out));
        }
      }
    }
  }
  void hand_backward(std::size_t part) override {
    const ScheduledPart& reader = timeline_[part];
    for (std::size_t i = 0; i < reader.gradient_to.size(); ++i) {
      const Place to = reader.gradient_to[i];
      int& mine = gradient(part, program(part).reads[i].value);
      if (to.part != kNobody) {
        share(gradient(to.part, to.value), mine);
      }
      drop(mine);
    }
  }

  // What parts before this one, or after it, hand over.
  void give_inputs(std::size_t part) {
    for (const Port& port : program(part).reads) {
      hold(value(part, port.value), bytes(program(part), port.value, seat_, precision_));
    }
  }
  void give_gradients(std::size_t part) {
    for (const Port& port : program(part).writes) {
      hold(gradient(part, port.value), gradient_bytes(part, port.value));
    }
  }

  [[nodiscard]] std::int64_t live() const { return live_; }
  [[nodiscard]] std::int64_t host() const { return host_; }
  [[nodiscard]] std::int64_t peak() const { return peak_; }
  // The peak is counted anew from here.
  void forget_peak() { peak_ = live_; }

 private:
  // What a value or gradient has: a block that it may share, none where the one it was to share is
  // not counted here, or it is not there.
  static constexpr int kNotThere = -2;
  static constexpr int kNothing = -1;
  struct Block {
    std::int64_t bytes = 0;
    int owners = 0;
  };

  int& value(std::size_t part, ValueId id) { return values_[first_value_[part] + idx(id)]; }
  int& gradient(std::size_t part, ValueId id) { return gradients_[first_value_[part] + idx(id)]; }
  // Whether the op had begun, which it has not from here.
  bool ended(std::size_t part, int op) {
    return std::exchange(begun_[first_op_[part] + idx(op)], 0) != 0;
  }
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
        share(gradient(part, in), gradient(part, op.out[0]));
      } else if (
          wanted(in) && !is_held(program(part), in) && !is_given(program(part), in) &&
          gradient(part, in) == kNotThere) {
        hold(gradient(part, in), gradient_bytes(part, in));
      }
    }
  }
  // Memory of its own, which is there before that of before is gone.
  void hold(int& slot, std::int64_t count) {
    live_ += count;
    peak_ = std::max(peak_, live_);
    int block = static_cast<int>(blocks_.size());
    if (free_.empty()) {
      blocks_.emplace_back();
    } else {
      block = free_.back();
      free_.pop_back();
    }
    blocks_[idx(block)] = {.bytes = count, .owners = 1};
    drop(slot);
    slot = block;
  }
  void share(int& slot, int& of) {
    if (of == kNotThere) {
      of = kNothing;
    }
    const int block = of;
    if (block >= 0) {
      ++blocks_[idx(block)].owners;
    }
    drop(slot);
    slot = block;
  }
  void drop(int& slot) {
    if (slot >= 0 && --blocks_[idx(slot)].owners == 0) {
      live_ -= blocks_[idx(slot)].bytes;
      free_.push_back(slot);
    }
    slot = kNotThere;
  }
  void use(std::int64_t count) { peak_ = std::max(peak_, live_ + count); }

  const Timeline& timeline_;
  Seat seat_;
  Precision precision_;
  std::int64_t live_;
  std::int64_t peak_;
  std::int64_t host_ = 0;
  std::vector<std::size_t> first_value_;  // [part] of all parts' values, part by part
  std::vector<std::size_t> first_op_;
  std::vector<int> values_;     // [value] its block
  std::vector<int> gradients_;  // the same
  std::vector<Block> blocks_;
  std::vector<int> free_;    // blocks without owners
  std::vector<char> begun_;  // [op] its rest is still to come
};

}  // namespace paradyse
