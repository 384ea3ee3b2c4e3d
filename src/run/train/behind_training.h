// Threads whose work can wait for training's: planning of later steps, files of checkpoints.
#pragma once

#include <sys/resource.h>
#include <unistd.h>

namespace paradyse {

// Gives cores to other threads first, from here on.  Linux has priorities of threads; where the
// system refuses, nothing changes.  Who waits for such a thread leaves a core free for it.
inline void run_behind_training() {
  constexpr int kNice = 10;
  static_cast<void>(setpriority(PRIO_PROCESS, static_cast<id_t>(gettid()), kNice));
}

}  // namespace paradyse
