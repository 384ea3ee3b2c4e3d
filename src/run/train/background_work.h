// One piece of work at a time on a thread of its own, beside the thread that wants it done.
#pragma once

#include <exception>
#include <functional>
#include <mutex>
#include <thread>

namespace paradyse {

// Of one thread, which calls all of it.
class BackgroundWork {
 public:
  BackgroundWork() = default;
  ~BackgroundWork();  // waits for the work under way; what it throws is dropped
  BackgroundWork(const BackgroundWork&) = delete;
  BackgroundWork& operator=(const BackgroundWork&) = delete;

  // Begins it, on this thread where the system has no other; what was begun before must have been
  // finished.
  void start(std::function<void()> work);
  // Whether none is under way.
  bool done();
  // Waits for the work under way, if there is one: what it did is seen from here on.  Throws what
  // it threw.
  void finish();

 private:
  std::thread thread_;
  std::mutex mutex_;  // of what is below
  bool under_way_ = false;
  std::exception_ptr error_;
};

}  // namespace paradyse
