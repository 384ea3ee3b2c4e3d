#include "src/cli/interrupt.h"

#include <csignal>

namespace paradyse::cli {
namespace {

std::atomic<bool> interrupt_asked{false};
std::atomic<int> by{0};  // the first signal
static_assert(std::atomic<bool>::is_always_lock_free && std::atomic<int>::is_always_lock_free);

extern "C" void ask(int signal) {
  int none = 0;
  by.compare_exchange_strong(none, signal);
  interrupt_asked.store(true);
  std::signal(SIGINT, SIG_DFL);
  std::signal(SIGTERM, SIG_DFL);
}

std::atomic<bool> save_wished{false};

extern "C" void wish_to_save(int /*signal*/) { save_wished.store(true); }

}  // namespace

std::atomic<bool>& save_asked() { return save_wished; }

void catch_save_wishes() {
  struct sigaction action = {};
  action.sa_handler = wish_to_save;
  action.sa_flags = SA_RESTART;
  sigaction(SIGUSR1, &action, nullptr);
}

const std::atomic<bool>& interrupted() { return interrupt_asked; }

int interrupted_code() {
  const int signal = by.load();
  return signal == 0 ? 0 : 128 + signal;
}

void catch_interrupts() {
  struct sigaction action = {};
  action.sa_handler = ask;
  action.sa_flags = SA_RESTART;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

}  // namespace paradyse::cli
