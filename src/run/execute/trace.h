// Spans of time on each rank, written as a Chrome trace that Perfetto opens (ui.perfetto.dev).
#pragma once

#include <chrono>
#include <filesystem>
#include <mutex>
#include <string>
#include <vector>

#include "src/run/device/streams.h"

namespace paradyse {

// Thread-safe; spans beyond `most` are dropped (and their number is written down).
class Trace {
 public:
  using Clock = std::chrono::steady_clock;

  explicit Trace(std::size_t most = 400000) : most_(most), start_(Clock::now()) {}

  // A span of `rank`: `name` ("layer 2 attention"), `category` ("forward", "communication", ...).
  void add(
      int rank,
      std::string name,
      const char* category,
      Clock::time_point begin,
      Clock::time_point end);
  // The same between two marks of the rank's thread; in a stream it stands there after settle().
  void add(
      int rank,
      std::string name,
      const char* category,
      const TimedMark& begin,
      const TimedMark& end);
  // By the thread of `rank`, when a step is over: puts its spans in a stream where they belong,
  // counted back from now.  The host waits for the device to come here.
  void settle(int rank);

  // Time is counted from here; spans so far are forgotten.
  void restart();
  // What write() would write of the spans; and spans of another process in that form.
  [[nodiscard]] std::string events() const;
  void add_events(std::string events);

  // Writes JSON (Trace Event Format, complete events, microseconds).  Throws std::runtime_error.
  void write(const std::filesystem::path& file) const;

 private:
  struct Span {
    int rank;
    std::string name;
    const char* category;
    double begin_us;
    double length_us;
  };
  struct InStream {
    int rank;
    std::string name;
    const char* category;
    TimedMark begin;
    TimedMark end;
  };

  std::size_t most_;
  Clock::time_point start_;
  mutable std::mutex mutex_;
  std::vector<Span> spans_;
  std::vector<InStream> waiting_;    // for settle()
  std::vector<std::string> others_;  // of other processes
  std::size_t dropped_ = 0;
};

}  // namespace paradyse
