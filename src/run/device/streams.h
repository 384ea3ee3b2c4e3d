// Order between what ranks that share a device do there.  Written against c10's interface of all
// devices, so that a build without CUDA compiles it as well.
//
// Words.  A thread under a DeviceScope has two streams: in the *compute* stream run its ops, in the
// *copy* stream its exchanges.  A *mark* is a place in a stream that other streams can wait for.
// For threads without one, on the CPU, a mark is nothing: what a thread has done is done.
#pragma once

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
