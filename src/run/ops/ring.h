// What goes round a group of ranks: blocks of keys and values, and the sums of their gradients.
#pragma once

#include <memory>
#include <utility>

#include "src/run/ops/frame.h"

namespace paradyse::ops {

// The blocks of keys and values as they come by.
class Ring {
 public:
  // `mine`: this rank's block, contiguous, with the rows of op.in[1] as every rank's has.
  Ring(Frame& frame, const Op& op, at::Tensor mine)
      : frame_(frame),
        op_(op),
        cols_(mine.size(1)),
        here_(std::move(mine)),
        hops_(ring_size(frame.program(), op)) {}

  [[nodiscard]] int hops() const { return hops_; }
  // What is here.
  [[nodiscard]] const at::Tensor& block() const { return here_; }

  // Begins to hand the block on; advance() then goes to the next one.
  void issue() {
    if (hop_ + 1 < hops_) {
      next_ = empty(hop_ + 1, frame_.activation);
      pending_ = shift(here_, next_, "ring");
    }
  }
  void advance() {
    if (pending_ != nullptr) {
      pending_->wait();
      pending_.reset();
    }
    here_ = std::move(next_);
    next_ = at::Tensor();
    ++hop_;
  }
  // A matrix of the shape of the block that is here at `hop`.
  [[nodiscard]] at::Tensor empty(int hop, at::ScalarType type) const {
    const Program& program = frame_.program();
    const int source = ring_source(program, op_, frame_.rank->seat.group_rank, hop);
    const Extent extent = local_extent(program, op_.in[1], {.group_rank = source});
    return frame_.empty(extent.rows, cols_, type);
  }
  // Hands `from` to the next rank of the ring.
  [[nodiscard]] std::unique_ptr<Pending> shift(
      const at::Tensor& from, const at::Tensor& to, const char* name) const {
    return frame_.rank->group->shift(from, to, op_.stride, frame_.call(name));
  }

 private:
  Frame& frame_;
  const Op& op_;
  std::int64_t cols_;
  at::Tensor here_;
  at::Tensor next_;
  std::unique_ptr<Pending> pending_;
  int hops_;
  int hop_ = 0;
};

// Sums of the gradient of each rank's block, on their way behind the blocks; `own` is where this
// rank's block has its sum.
class RingSums {
 public:
  RingSums(Frame& frame, const Ring& ring, at::Tensor own)
      : frame_(frame), ring_(ring), own_(std::move(own)) {}

  // What to add to at this hop.  `issue` begins to hand the block on: between the two waits.
  template <typename Issue>
  at::Tensor target(int hop, Issue issue) {
    if (hop == 1) {
      sums_ = ring_.empty(hop, frame_.statistic).zero_();
    } else if (hop > 1) {
      receive(hop);
    }
    issue();
    arrive();
    return hop == 0 ? own_ : sums_;
  }
  // The sums over the other ranks' queries are added to this rank's own.
  void come_home() {
    if (ring_.hops() > 1) {
      receive(ring_.hops());
      arrive();
      own_.add_(sums_);
    }
  }

 private:
  void receive(int hop) {
    behind_ = std::move(sums_);
    sums_ = ring_.empty(hop, frame_.statistic);
    pending_ = ring_.shift(behind_, sums_, "ring adjoint");
  }
  void arrive() {
    if (pending_ != nullptr) {
      pending_->wait();
      pending_.reset();
      behind_ = at::Tensor();
    }
  }

  Frame& frame_;
  const Ring& ring_;
  at::Tensor own_;
  at::Tensor sums_;    // of the block that is here
  at::Tensor behind_;  // of the one before it, going to the next rank
  std::unique_ptr<Pending> pending_;
};

// `result` in the type of sums: itself, or a copy that finish() rounds.
inline at::Tensor in_sums(const Frame& frame, const at::Tensor& result) {
  return result.scalar_type() == frame.statistic
             ? result
             : frame.empty(result.size(0), result.size(1), frame.statistic);
}
inline void finish(const at::Tensor& sums, at::Tensor result) {
  if (!sums.is_same(result)) {
    result.copy_(sums);
  }
}

}  // namespace paradyse::ops
