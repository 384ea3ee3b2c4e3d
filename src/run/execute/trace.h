// Spans of time on each rank, written as a Chrome trace that Perfetto opens (ui.perfetto.dev).
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "src/run/device/streams.h"

namespace paradyse {

// Thread-safe.  Ends before the first event that would make the file larger than `most` bytes.
class Trace {
 public:
  using Clock = std::chrono::steady_clock;

  explicit Trace(std::int64_t most = std::numeric_limits<std::int64_t>::max())
      : most_(most), start_(Clock::now()) {}

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
  // What `rank` holds now.
  void add_memory(int rank, std::int64_t bytes);
  // A step of the run, from 1, that ends now: stands above the ranks.
  void add_step(std::int64_t step, Clock::time_point begin);
  // By the thread of `rank`, when a step is over: puts its spans in a stream where they belong,
  // counted back from now.  The host waits for the device to come here.
  void settle(int rank);

  // Time is counted from here; spans so far are forgotten.
  void restart();
  // What write() would write of the spans; and spans of another process in that form.
  [[nodiscard]] std::string events() const;
  void add_events(std::string events);

  // The last step that is in it as a whole, where it ended before the run did; 0: not one is.
  [[nodiscard]] std::optional<std::int64_t> ended_after() const;

  // Writes JSON (Trace Event Format: complete events and counters, microseconds) of a process
  // called `title`.  Throws std::runtime_error.
  void write(const std::filesystem::path& file, const std::string& title) const;

 private:
  static constexpr int kSteps = -1;  // in place of a rank

  struct Span {
    int rank;
    std::string name;
    const char* category;
    double begin_us;
    double length_us;
    std::int64_t bytes = -1;  // from 0 on: a sample of memory
  };
  struct InStream {
    int rank;
    std::string name;
    const char* category;
    TimedMark begin;
    TimedMark end;
  };

  [[nodiscard]] double since_start(Clock::time_point time) const;
  // Whether there is room for an event with so many letters of its own; the caller has the mutex.
  bool takes(std::size_t letters);

  std::int64_t most_;
  Clock::time_point start_;
  mutable std::mutex mutex_;
  std::vector<Span> spans_;
  std::vector<InStream> waiting_;    // for settle()
  std::vector<std::string> others_;  // of other processes
  std::int64_t bytes_ = 0;           // that the spans will take
  std::int64_t last_step_ = 0;
  std::size_t dropped_ = 0;
};

}  // namespace paradyse
