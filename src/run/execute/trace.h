// Spans of time on each rank, written as a Chrome trace that Perfetto opens (ui.perfetto.dev).
#pragma once

#include <chrono>
#include <filesystem>
#include <mutex>
#include <string>
#include <vector>

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

  std::size_t most_;
  Clock::time_point start_;
  mutable std::mutex mutex_;
  std::vector<Span> spans_;
  std::vector<std::string> others_;  // of other processes
  std::size_t dropped_ = 0;
};

}  // namespace paradyse
