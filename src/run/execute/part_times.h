// Wall and processor time of every part of a micro-batch on one rank, by phase.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <vector>

#include "paradyse/plan/index.h"
#include "paradyse/plan/time_model.h"
#include "src/run/execute/processor_seconds.h"

namespace paradyse {

// Used by the thread of one rank alone.  Time goes to a part until the next is told, so that all of
// a micro-batch's time is some part's: waiting for other ranks and what lies between ops, too.
// Processor time is what this thread used: no waiting, and nothing that other threads did for it.
class PartTimes {
 public:
  using Clock = std::chrono::steady_clock;

  // A micro-batch of so many parts begins; what was counted is forgotten.
  void restart(std::size_t parts) {
    seconds_.assign(parts, {});
    processor_.assign(parts, {});
    since_ = Clock::now();
    used_ = processor_seconds();
  }
  // What ran until now was this.
  void ran(std::size_t part, PartPhase phase) {
    const Clock::time_point now = Clock::now();
    seconds_[part][idx(phase)] += std::chrono::duration<double>(now - since_).count();
    since_ = now;
    const double used = processor_seconds();
    processor_[part][idx(phase)] += used - used_;
    used_ = used;
  }
  // [part of the timeline][PartPhase]
  using Seconds = std::vector<std::array<double, kPartPhases>>;
  [[nodiscard]] const Seconds& seconds() const { return seconds_; }
  [[nodiscard]] const Seconds& processor() const { return processor_; }

 private:
  Seconds seconds_;
  Seconds processor_;
  Clock::time_point since_;
  double used_ = 0;  // processor seconds until then
};

}  // namespace paradyse
