// Wall and processor time of every part of a micro-batch on one rank, by phase.  Where the rank
// computes in a stream, the device's time in it, in place of the wall's.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include "paradyse/plan/detail/index.h"
#include "paradyse/plan/detail/time_model.h"
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
    played_.push_back({.wall = Seconds(parts), .processor = Seconds(parts)});
    since_ = TimedMark::here();
    if (since_.in_stream()) {
      borders_.push_back({.micro_batch = played_.size(), .mark = since_});
    }
    used_ = processor_seconds();
  }
  // What ran until now was this.
  void ran(std::size_t part, PartPhase phase) {
    TimedMark now = TimedMark::here();
    OfMicroBatch& its = played_.back();
    if (now.in_stream()) {
      Border border{
          .micro_batch = played_.size(), .part = part, .phase = phase, .mark = std::move(now)};
      if (borders_.back().ends_as(border)) {
        borders_.back() = std::move(border);
      } else {
        borders_.push_back(std::move(border));
      }
    } else {
      its.wall[part][idx(phase)] += seconds_between(since_, now);
      since_ = std::move(now);
    }
    const double used = processor_seconds();
    its.processor[part][idx(phase)] += used - used_;
    used_ = used;
  }
  // Of all micro-batches since it was asked last, which are forgotten.  The host waits for the
  // device to have done them.
  [[nodiscard]] std::vector<OfMicroBatch> take() {
    settle();
    return std::exchange(played_, {});
  }

 private:
  // A place in a stream, read when all are taken: the host does not wait before.
  struct Border {
    std::size_t micro_batch = 0;           // from 1
    std::optional<std::size_t> part = {};  // none: it begins
    PartPhase phase = {};
    TimedMark mark;

    [[nodiscard]] bool ends_as(const Border& other) const {
      return micro_batch == other.micro_batch && part == other.part && phase == other.phase;
    }
  };

  void settle() {
    if (!borders_.empty()) {
      borders_.back().mark.wait();
    }
    const TimedMark* since = nullptr;
    for (const Border& border : borders_) {
      if (border.part) {
        played_[border.micro_batch - 1].wall[*border.part][idx(border.phase)] +=
            seconds_between(*since, border.mark);
      }
      since = &border.mark;
    }
    borders_.clear();
  }

  std::vector<OfMicroBatch> played_;
  TimedMark since_;
  std::vector<Border> borders_;
  double used_ = 0;  // processor seconds until then
};

}  // namespace paradyse
