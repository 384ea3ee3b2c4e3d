// Order between what ranks that share a device do there.  Written against c10's interface of all
// devices, so that a build without CUDA compiles it as well.
//
// Words.  A thread under a DeviceScope has two streams: in the *compute* stream run its ops, in the
// *copy* stream its exchanges.  A *mark* is a place in a stream that other streams can wait for.
// For threads without one, on the CPU, a mark is nothing: what a thread has done is done.  A *timed
// mark* also tells when its place was passed (stopwatch.h adds such times up).
#pragma once

#include <chrono>
#include <memory>

#include <c10/core/Event.h>
#include <c10/core/Stream.h>

namespace paradyse {

class Mark;
using MarkPtr = std::shared_ptr<const Mark>;

class Mark {
 public:
  // Here in this thread's current stream; nothing on the CPU.
  static MarkPtr here();
  // What this thread's current stream does from now on comes after the mark.
  static void wait(const MarkPtr& mark);
  // The host waits until the device has passed it.
  static void reached(const MarkPtr& mark);
  // Whether the device has passed it.
  static bool passed(const MarkPtr& mark);

  explicit Mark(c10::Event event) : event_(std::move(event)) {}

 private:
  c10::Event event_;
};

// Waits until the device has done what this thread gave to its two streams.  For memory that is
// given up before its time, as by a throw: the next to get it may be another stream.
void finish_streams() noexcept;

// A moment of this thread's work.  With a stream: when the device comes to this place in it, which
// is known afterwards; else the steady clock's now.
class TimedMark {
 public:
  using Clock = std::chrono::steady_clock;

  TimedMark() = default;  // none
  // Here in this thread's current stream.  The host does not wait.
  static TimedMark here();

  // Whether it is a place in a stream.
  [[nodiscard]] bool in_stream() const { return event_ != nullptr; }
  // When the host was here.
  [[nodiscard]] Clock::time_point host() const { return host_; }
  // The host waits until the device has passed it.
  void wait() const;
  // Pre: the device has passed both, and both are of one device.
  friend double seconds_between(const TimedMark& begin, const TimedMark& end);

 private:
  Clock::time_point host_;
  std::shared_ptr<const c10::Event> event_;
};

// Whether this thread has streams.
bool has_streams();

// While it lives, this thread gives its work to its copy stream, after all that its compute stream
// was given before.  The compute stream does not wait for it: that takes a mark.
class CopyScope {
 public:
  CopyScope();
  ~CopyScope();
  CopyScope(const CopyScope&) = delete;
  CopyScope& operator=(const CopyScope&) = delete;

 private:
  c10::Stream before_;
  bool active_;
};

}  // namespace paradyse
