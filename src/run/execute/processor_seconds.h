// What a thread has used of a processor.
#pragma once

#include <ctime>

namespace paradyse {

// Of the calling thread since it began.
inline double processor_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

}  // namespace paradyse
