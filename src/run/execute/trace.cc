#include "src/run/execute/trace.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <fstream>
#include <iterator>
#include <set>
#include <stdexcept>
#include <system_error>
#include <utility>

#include <nlohmann/json.hpp>

namespace paradyse {
namespace {

// At most, of an event without its own letters: keys, times and the comma; of a rank's name.
constexpr std::int64_t kBytesOfEvent = 110;
constexpr std::int64_t kBytesAround = 10000;  // of the file without its events

// To a nanosecond: what a line says is to be short.
double microseconds(double value) { return std::round(1e3 * value) / 1e3; }

// Viewers do not like a process or a thread of number 0.
constexpr int kProcess = 1;
int thread_of(int rank) { return rank + 2; }  // of the steps, above the ranks, 1

nlohmann::json name_of(const char* what, int thread, const std::string& name) {
  return {
      {"name", what}, {"ph", "M"}, {"pid", kProcess}, {"tid", thread}, {"args", {{"name", name}}}};
}

}  // namespace

double Trace::since_start(Clock::time_point time) const {
  return std::chrono::duration<double, std::micro>(time - start_).count();
}

bool Trace::takes(std::size_t letters) {
  const std::int64_t bytes = kBytesOfEvent + static_cast<std::int64_t>(letters);
  if (dropped_ > 0 || bytes_ + bytes > most_ - kBytesAround) {
    ++dropped_;
    return false;
  }
  bytes_ += bytes;
  return true;
}

void Trace::add(
    int rank,
    std::string name,
    const char* category,
    Clock::time_point begin,
    Clock::time_point end) {
  const std::lock_guard lock(mutex_);
  if (takes(name.size() + std::char_traits<char>::length(category))) {
    spans_.push_back(
        {rank,
         std::move(name),
         category,
         since_start(begin),
         since_start(end) - since_start(begin)});
  }
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
  if (dropped_ == 0) {  // else it would not be taken when it is settled
    waiting_.push_back({rank, std::move(name), category, begin, end});
  }
}

void Trace::add_memory(int rank, std::int64_t bytes) {
  const std::lock_guard lock(mutex_);
  if (takes(0)) {
    spans_.push_back({rank, "", "", since_start(Clock::now()), 0, bytes});
  }
}

void Trace::add_step(std::int64_t step, Clock::time_point begin) {
  const Clock::time_point end = Clock::now();
  add(kSteps, "step " + std::to_string(step), "step", begin, end);
  const std::lock_guard lock(mutex_);
  if (dropped_ == 0) {
    last_step_ = step;
  }
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
  bytes_ = 0;
  dropped_ = 0;
}

std::string Trace::events() const {
  const std::lock_guard lock(mutex_);
  std::string text;
  const auto add = [&](const nlohmann::json& event) {
    text += (text.empty() ? "" : ",\n") + event.dump();
  };
  std::set<int> ranks;
  for (const Span& span : spans_) {
    if (ranks.insert(span.rank).second) {
      add(name_of(
          "thread_name",
          thread_of(span.rank),
          span.rank == kSteps ? "steps" : "rank " + std::to_string(span.rank)));
    }
    if (span.bytes >= 0) {
      add(
          {{"name", "memory of rank " + std::to_string(span.rank)},
           {"ph", "C"},
           {"ts", microseconds(span.begin_us)},
           {"pid", kProcess},
           {"args", {{"bytes", span.bytes}}}});
      continue;
    }
    add(
        {{"name", span.name},
         {"cat", span.category},
         {"ph", "X"},
         {"ts", microseconds(span.begin_us)},
         {"dur", microseconds(span.length_us)},
         {"pid", kProcess},
         {"tid", thread_of(span.rank)}});
  }
  return text;
}

void Trace::add_events(std::string events) {
  if (!events.empty()) {
    const std::lock_guard lock(mutex_);
    others_.push_back(std::move(events));
  }
}

std::optional<std::int64_t> Trace::ended_after() const {
  const std::lock_guard lock(mutex_);
  return dropped_ > 0 ? std::optional(last_step_) : std::nullopt;
}

void Trace::write(const std::filesystem::path& file, const std::string& title) const {
  const std::string mine = events();
  const std::lock_guard lock(mutex_);
  errno = 0;
  std::ofstream out(file);
  out << "{\"displayTimeUnit\":\"ms\",\"otherData\":{\"dropped_spans\":" << dropped_
      << "},\"traceEvents\":[\n"
      << name_of("process_name", 1, title).dump();
  if (!mine.empty()) {
    out << ",\n" << mine;
  }
  for (const std::string& other : others_) {
    out << ",\n" << other;
  }
  out << "\n]}\n";
  out.close();
  if (!out) {
    throw std::runtime_error(
        file.string() + ": the trace cannot be written: " + std::generic_category().message(errno));
  }
}

}  // namespace paradyse
