#include "src/plan/program/over_domain.h"

#include <algorithm>

#include "paradyse/plan/detail/index.h"
#include "src/plan/program/early_messages.h"

namespace paradyse {

OverDomain::OverDomain(const Timeline& timeline, Machine& machine)
    : timeline_(timeline),
      machine_(machine),
      overlap_(!timeline.empty() && timeline.front().schedule().overlap) {}

void OverDomain::expect(std::size_t part, const std::vector<ScheduledOp>& steps) {
  ++turns_;
  for (const ScheduledOp& step : steps) {
    if (!step.adjoint && kind_of(part, step).prefetched) {
      expected_.push_back({.part = part, .op = step.op, .turn = turns_});
    }
  }
}

void OverDomain::begin() { go_on(); }

void OverDomain::enter(std::size_t part, const std::vector<ScheduledOp>& steps) {
  if (overlap_) {
    moves_ = std::ranges::count_if(
        steps, [&](const ScheduledOp& step) { return is_move(timeline_[part].program(), step); });
    go_on_after_moves();
  }
}

void OverDomain::run(std::size_t part, const ScheduledOp& step) {
  if (step.begin) {
    step.adjoint ? machine_.begin_adjoint(part, step.op) : machine_.prefetch(part, step.op);
  } else if (!step.adjoint) {
    forward(part, step);
  } else if (overlap_ && kind_of(part, step).prefetched) {
    go_on();
    asked_ = {{.part = part, .op = step.op}};
    return;
  } else {
    make_way(part, step);
    machine_.adjoint(part, step.op);
  }
  if (step.adjoint && !step.begin) {
    machine_.drop_gradients(part, step.op);
  }
}

void OverDomain::ran(std::size_t part, const ScheduledOp& step) {
  if (step.adjoint && kind_of(part, step).prefetched) {
    return;  // its sum is not in a hurry
  }
  if (overlap_ && is_move(timeline_[part].program(), step)) {
    --moves_;
  }
  go_on_after_moves();
}

void OverDomain::finish() {
  begin_sum();
  end_sum();
}

const OpTraits& OverDomain::kind_of(std::size_t part, const ScheduledOp& step) const {
  return traits(timeline_[part].program().ops[idx(step.op)].kind);
}

void OverDomain::forward(std::size_t part, const ScheduledOp& step) {
  if (!kind_of(part, step).prefetched) {
    make_way(part, step);
    machine_.forward(part, step.op);
    return;
  }
  if (issued_ == there_) {
    begin_sum();
    issue_next();
  }
  machine_.forward(part, step.op);
  now_ = there_++;
  wanted_ = there_ + ahead();
}

void OverDomain::make_way(std::size_t part, const ScheduledOp& step) {
  if (overlap_ && kind_of(part, step).meets == OpTraits::Meets::domain) {
    go_on();
  }
}

void OverDomain::go_on_after_moves() {
  if (moves_ == 0) {
    go_on();
  }
}

void OverDomain::go_on() {
  begin_sum();
  while (issued_ < std::min(wanted_, expected_.size()) && !is_in_use()) {
    issue_next();
  }
}

bool OverDomain::is_in_use() const {
  const Place& next = expected_[issued_];
  return std::any_of(
      expected_.begin() + static_cast<std::ptrdiff_t>(now_),
      expected_.begin() + static_cast<std::ptrdiff_t>(issued_),
      [&](const Place& other) { return other.part == next.part && other.turn != next.turn; });
}

void OverDomain::issue_next() {
  const Place& next = expected_[issued_++];
  machine_.prefetch(next.part, next.op);
}

void OverDomain::begin_sum() {
  if (!asked_.empty()) {
    end_sum();
    machine_.begin_adjoint(asked_.front().part, asked_.front().op);
    under_way_.swap(asked_);
  }
}

void OverDomain::end_sum() {
  if (!under_way_.empty()) {
    const Place over = under_way_.front();
    under_way_.clear();
    machine_.adjoint(over.part, over.op);
    machine_.drop_gradients(over.part, over.op);
  }
}

}  // namespace paradyse
