// Where a rank's time goes: its processor's, or, where it computes in a stream, the device's.
#pragma once

#include <array>
#include <vector>

#include "paradyse/plan/program.h"
#include "src/run/device/streams.h"

namespace paradyse {

// Of one rank; used by its thread alone.
class Breakdown {
 public:
  // Matrix products (fused head included), attention cores, all other ops, calls of a communicator,
  // the optimizer, and what lies between them.  A device that waits for the host in an op counts as
  // that op.
  enum Part { products, attention, other, communication, optimizer, between };
  static constexpr int kParts = 6;

  // The part that an op's time counts as.
  static Part part_of(OpKind kind);
  static const char* name(Part part);

  // From here on; what was counted is forgotten.
  void restart();
  // Time from now on goes to `part`; gives the one that it went to before.
  Part enter(Part part);
  // Reads what marks a step has left in the stream.  The host waits for the device to come here.
  void settle();
  // So far, settled: processor seconds, or seconds in the stream.
  [[nodiscard]] std::array<double, kParts> seconds();

 private:
  struct Border {
    Part before;  // what the time until the mark was
    TimedMark mark;
  };

  Part now_ = between;
  double since_ = 0;
  TimedMark mark_;               // in place of `since_`, in a stream
  std::vector<Border> borders_;  // after it, whose times are not read yet
  std::array<double, kParts> seconds_{};
};

// Time of this scope goes to `part`; of nobody's without a breakdown.
class TimedPart {
 public:
  TimedPart(Breakdown* breakdown, Breakdown::Part part) : breakdown_(breakdown) {
    if (breakdown_ != nullptr) {
      before_ = breakdown_->enter(part);
    }
  }
  ~TimedPart() {
    if (breakdown_ != nullptr) {
      breakdown_->enter(before_);
    }
  }
  TimedPart(const TimedPart&) = delete;
  TimedPart& operator=(const TimedPart&) = delete;

 private:
  Breakdown* breakdown_;
  Breakdown::Part before_ = Breakdown::between;
};

}  // namespace paradyse
