// Threads whose work can wait for training's: planning of later steps, files of checkpoints.
#pragma once

#include <sys/resource.h>
#include <unistd.h>

namespace paradyse {

// Priorities (nice): beside two threads that compute, on one core, a thread gets a seventh of it by
// the first and a twentieth by the second.
enum class Behind {
  soon = 5,  // a step will wait for it
  late = 10
};

// Gives cores to other threads first, from here on.  Linux has priorities of threads; where the
// system refuses, nothing changes.  Who waits for such a thread leaves a core free for it.
inline void run_behind_training(Behind when) {
  static_cast<void>(setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), static_cast<int>(when)));
}

}  // namespace paradyse
