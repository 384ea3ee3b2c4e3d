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
  std::size_t dropped_ = 0;
};

}  // namespace paradyse
