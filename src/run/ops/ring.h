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
        hops_(ring_size(frame.program(), op)),
        own_(ring_pass(frame.program(), op, frame.rank->seat.group_rank)) {}

  [[nodiscard]] int hops() const { return hops_; }
  // What is here.
  [[nodiscard]] const at::Tensor& block() const { return here_; }

  // Of this rank's rows, those that others see.
  [[nodiscard]] const Piece& own_rows() const { return own_.rows; }

  // Begins to hand the block on; advance() then goes to the next one.
  void issue() {
    if (hop_ + 1 < hops_) {
      const std::int64_t rows =
          ring_rows(frame_.program(), op_, frame_.rank->seat.group_rank, hop_ + 1);
      next_ = frame_.empty(rows, cols_, frame_.activation);
      pending_ = shift(goes_on(), next_, "ring");
    }
  }
  void advance() {
    if (pending_ != nullptr) {
      pending_->wait();
      pending_.reset();
    }
    here_ = std::move(next_);
    next_ = at::Tensor();
    packed_ = at::Tensor();
    ++hop_;
  }
  // A matrix for the sums of the block that is here at `hop`; after the last, of this rank's own.
  [[nodiscard]] at::Tensor sums(int hop) const {
    const Program& program = frame_.program();
    const int source = ring_source(program, op_, frame_.rank->seat.group_rank, hop);
    return frame_.empty(size(ring_pass(program, op_, source).rows), cols_, frame_.statistic);
  }
  // Hands `from` to the next rank of the ring.
  [[nodiscard]] std::unique_ptr<Pending> shift(
      const at::Tensor& from, const at::Tensor& to, const char* name) const {
    return frame_.rank->group->shift(from, to, op_.stride, frame_.call(name));
  }

 private:
  // Of the block that is here, what another rank is still to see.
  at::Tensor goes_on() {
    const int rank = frame_.rank->seat.group_rank;
    const int owner = ring_source(frame_.program(), op_, rank, hop_);
    if (hop_ >= (hop_ == 0 ? own_ : ring_pass(frame_.program(), op_, owner)).hops) {
      return here_.narrow(0, 0, 0);
    }
    if (hop_ > 0) {
      return here_;
    }
    if (own_.rows.size() == 1) {
      return here_.narrow(0, own_.rows.front().begin, own_.rows.front().size());
    }
    packed_ = frame_.empty(size(own_.rows), cols_, frame_.activation);
    std::int64_t row = 0;
    for (const Interval rows : own_.rows) {
      packed_.narrow(0, row, rows.size()).copy_(here_.narrow(0, rows.begin, rows.size()));
      row += rows.size();
    }
    return packed_;
  }

  Frame& frame_;
  const Op& op_;
  std::int64_t cols_;
  at::Tensor here_;
  at::Tensor next_;
  at::Tensor packed_;  // of this rank's own what goes on
  std::unique_ptr<Pending> pending_;
  int hops_;
  RingPass own_;
  int hop_ = 0;
};

// Sums of the gradient of each rank's block, on their way behind the blocks; `own` is where this
// rank's block has its sum.
class RingSums {
 public:
  RingSums(const Ring& ring, at::Tensor own) : ring_(ring), own_(std::move(own)) {}

  // What to add to at this hop.  `issue` begins to hand the block on: between the two waits.
  template <typename Issue>
  at::Tensor target(int hop, Issue issue) {
    if (hop == 1) {
      sums_ = ring_.sums(hop).zero_();
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
      std::int64_t row = 0;
      for (const Interval rows : ring_.own_rows()) {
        own_.narrow(0, rows.begin, rows.size()).add_(sums_.narrow(0, row, rows.size()));
        row += rows.size();
      }
    }
  }

 private:
  void receive(int hop) {
    behind_ = std::move(sums_);
    sums_ = ring_.sums(hop);
    pending_ = ring_.shift(behind_, sums_, "ring adjoint");
  }
  void arrive() {
    if (pending_ != nullptr) {
      pending_->wait();
      pending_.reset();
      behind_ = at::Tensor();
    }
  }

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
