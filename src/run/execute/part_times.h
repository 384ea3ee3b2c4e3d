// Wall and processor time of every part of a micro-batch on one rank, by phase.  Where the rank
// computes in a stream, the device's time in it, in place of the wall's.
#pragma once

#include <array>
#include <cstddef>
#include <utility>
#include <vector>

#include "paradyse/plan/index.h"
#include "paradyse/plan/time_model.h"
#include "src/run/device/streams.h"
#include "src/run/execute/processor_seconds.h"

namespace paradyse {

// Used by the thread of one rank alone.  Time goes to a part until the next is told, so that all of
// a micro-batch's time is some part's: waiting for other ranks and what lies between ops, too.
// Processor time is what this thread used: no waiting, and nothing that other threads did for it.
class PartTimes {
 public:
  // [part of the timeline][PartPhase]
  using Seconds = std::vector<std::array<double, kPartPhases>>;
  struct OfMicroBatch {
    Seconds wall;
    Seconds processor;
  };

  // A micro-batch of so many parts begins.
  void restart(std::size_t parts) {
    settle();
    played_.push_back({.wall = Seconds(parts), .processor = Seconds(parts)});
    since_ = TimedMark::here();
    used_ = processor_seconds();
  }
  // What ran until now was this.
  void ran(std::size_t part, PartPhase phase) {
    TimedMark now = TimedMark::here();
    if (now.in_stream()) {
      borders_.push_back({.part = part, .phase = phase, .mark = std::move(now)});
    } else {
      played_.back().wall[part][idx(phase)] += seconds_between(since_, now);
      since_ = std::move(now);
    }
    const double used = processor_seconds();
    played_.back().processor[part][idx(phase)] += used - used_;
    used_ = used;
  }
  // Of all micro-batches since it was asked last, which are forgotten.  The host waits for the
  // device to have done them.
  [[nodiscard]] std::vector<OfMicroBatch> take() {
    settle();
    return std::exchange(played_, {});
  }

 private:
  struct Border {
    std::size_t part;
    PartPhase phase;
    TimedMark mark;
  };

  void settle() {
    if (!borders_.empty()) {
      borders_.back().mark.wait();
    }
    for (Border& border : borders_) {
      played_.back().wall[border.part][idx(border.phase)] += seconds_between(since_, border.mark);
      since_ = std::move(border.mark);
    }
    borders_.clear();
  }

  std::vector<OfMicroBatch> played_;
  TimedMark since_;
  std::vector<Border> borders_;  // of the last, after it, whose times are not read yet
  double used_ = 0;              // processor seconds until then
};

}  // namespace paradyse
