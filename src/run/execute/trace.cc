#include "paradyse/trace.h"

#include <fstream>
#include <stdexcept>

#include <nlohmann/json.hpp>

namespace paradyse {

void Trace::add(
    int rank,
    std::string name,
    const char* category,
    Clock::time_point begin,
    Clock::time_point end) {
  using Microseconds = std::chrono::duration<double, std::micro>;
  const std::lock_guard lock(mutex_);
  if (spans_.size() >= most_) {
    ++dropped_;
    return;
  }
  spans_.push_back(
      {rank,
       std::move(name),
       category,
       Microseconds(begin - start_).count(),
       Microseconds(end - begin).count()});
}

void Trace::write(const std::filesystem::path& file) const {
  const std::lock_guard lock(mutex_);
  std::ofstream out(file);
  out << "{\"displayTimeUnit\":\"ms\",\"otherData\":{\"dropped_spans\":" << dropped_
      << "},\"traceEvents\":[\n";
  bool first = true;
  for (const Span& span : spans_) {
    const nlohmann::json event = {
        {"name", span.name},
        {"cat", span.category},
        {"ph", "X"},
        {"ts", span.begin_us},
        {"dur", span.length_us},
        {"pid", 0},
        {"tid", span.rank}};
    out << (first ? "" : ",\n") << event.dump();
    first = false;
  }
  out << "\n]}\n";
  out.close();
  if (!out) {
    throw std::runtime_error("cannot write the trace " + file.string());
  }
}

}  // namespace paradyse
