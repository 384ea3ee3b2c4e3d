// Wall time of every part of a micro-batch on one rank, by phase.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <vector>

#include "paradyse/plan/index.h"
#include "paradyse/plan/time_model.h"

namespace paradyse {

// Used by the thread of one rank alone.  Time goes to a part until the next is told, so that all of
// a micro-batch's time is some part's: waiting for other ranks and what lies between ops, too.
class PartTimes {
 public:
  using Clock = std::chrono::steady_clock;

  // A micro-batch of so many parts begins; what was counted is forgotten.
  void restart(std::size_t parts) {
    seconds_.assign(parts, {});
    since_ = Clock::now();
  }
  // What ran until now was this.
  void ran(std::size_t part, PartPhase phase) {
    const Clock::time_point now = Clock::now();
    seconds_[part][idx(phase)] += std::chrono::duration<double>(now - since_).count();
    since_ = now;
  }
  // [part of the timeline][PartPhase]
  [[nodiscard]] const std::vector<std::array<double, kPartPhases>>& seconds() const {
    return seconds_;
  }

 private:
  std::vector<std::array<double, kPartPhases>> seconds_;
  Clock::time_point since_;
};

}  // namespace paradyse
