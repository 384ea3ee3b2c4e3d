#include "src/cli/interrupt.h"

#include <csignal>

namespace paradyse::cli {
namespace {

std::atomic<bool> asked{false};
static_assert(std::atomic<bool>::is_always_lock_free);

extern "C" void ask(int) {
  asked.store(true);
  std::signal(SIGINT, SIG_DFL);
  std::signal(SIGTERM, SIG_DFL);
}

}  // namespace

const std::atomic<bool>& interrupted() { return asked; }

void catch_interrupts() {
  struct sigaction action = {};
  action.sa_handler = ask;
  action.sa_flags = SA_RESTART;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

}  // namespace paradyse::cli
