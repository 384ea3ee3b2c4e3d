#include "src/run/execute/trace.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <utility>

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

void Trace::add(
    int rank,
    std::string name,
    const char* category,
    const TimedMark& begin,
    const TimedMark& end) {
  if (!end.in_stream()) {
    add(rank, std::move(name), category, begin.host(), end.host());
    return;
  }
  const std::lock_guard lock(mutex_);
  if (spans_.size() + waiting_.size() >= most_) {
    ++dropped_;
    return;
  }
  waiting_.push_back({rank, std::move(name), category, begin, end});
}

void Trace::settle(int rank) {
  std::vector<InStream> mine;
  {
    const std::lock_guard lock(mutex_);
    const auto others = std::stable_partition(
        waiting_.begin(), waiting_.end(), [&](const InStream& span) { return span.rank != rank; });
    mine.assign(std::make_move_iterator(others), std::make_move_iterator(waiting_.end()));
    waiting_.erase(others, waiting_.end());
  }
  if (mine.empty()) {
    return;
  }
  const TimedMark here = TimedMark::here();
  here.wait();
  const Clock::time_point now = Clock::now();
  const auto host_time = [&](const TimedMark& mark) {
    const std::chrono::duration<double> ago(seconds_between(mark, here));
    return now - std::chrono::duration_cast<Clock::duration>(ago);
  };
  for (InStream& span : mine) {
    add(rank, std::move(span.name), span.category, host_time(span.begin), host_time(span.end));
  }
}

void Trace::restart() {
  const std::lock_guard lock(mutex_);
  start_ = Clock::now();
  spans_.clear();
  waiting_.clear();
  dropped_ = 0;
}

std::string Trace::events() const {
  const std::lock_guard lock(mutex_);
  std::string text;
  for (const Span& span : spans_) {
    const nlohmann::json event = {
        {"name", span.name},
        {"cat", span.category},
        {"ph", "X"},
        {"ts", span.begin_us},
        {"dur", span.length_us},
        {"pid", 0},
        {"tid", span.rank}};
    text += text.empty() ? "" : ",\n";
    text += event.dump();
  }
  return text;
}

void Trace::add_events(std::string events) {
  if (!events.empty()) {
    const std::lock_guard lock(mutex_);
    others_.push_back(std::move(events));
  }
}

void Trace::write(const std::filesystem::path& file) const {
  const std::string mine = events();
  const std::lock_guard lock(mutex_);
  std::ofstream out(file);
  out << "{\"displayTimeUnit\":\"ms\",\"otherData\":{\"dropped_spans\":" << dropped_
      << "},\"traceEvents\":[\n"
      << mine;
  for (const std::string& other : others_) {
    out << (mine.empty() && &other == &others_.front() ? "" : ",\n") << other;
  }
  out << "\n]}\n";
  out.close();
  if (!out) {
    throw std::runtime_error("cannot write the trace " + file.string());
  }
}

}  // namespace paradyse
