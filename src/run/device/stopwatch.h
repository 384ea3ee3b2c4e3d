// Seconds of a thread's work, added up: by the steady clock, or, where the thread has streams, by
// the device, whose times are read afterwards, so that the host stops nowhere meanwhile.
#pragma once

#include <utility>
#include <vector>

#include "src/run/device/streams.h"

namespace paradyse {

// Used by one thread alone.
class Stopwatch {
 public:
  void start() { begin_ = TimedMark::here(); }
  // Pre: it was started.
  void stop() {
    TimedMark end = TimedMark::here();
    if (end.in_stream()) {
      waiting_.emplace_back(begin_, std::move(end));
    } else {
      seconds_ += seconds_between(begin_, end);
    }
  }
  void restart() {
    waiting_.clear();
    seconds_ = 0;
  }

  // From each start to the stop after it, so far.  The host waits for the last stop: ask when the
  // device has passed it anyway.
  [[nodiscard]] double seconds() {
    if (!waiting_.empty()) {
      waiting_.back().second.wait();
    }
    for (const auto& [begin, end] : waiting_) {
      seconds_ += seconds_between(begin, end);
    }
    waiting_.clear();
    return seconds_;
  }

 private:
  TimedMark begin_;
  std::vector<std::pair<TimedMark, TimedMark>> waiting_;  // whose times the device knows
  double seconds_ = 0;
};

}  // namespace paradyse
