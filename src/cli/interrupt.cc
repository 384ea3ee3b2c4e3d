#include "src/cli/interrupt.h"

#include <cerrno>
#include <csignal>
#include <cstdint>
#include <ctime>
#include <string_view>

#include <poll.h>
#include <unistd.h>

#include "src/cli/commands.h"

namespace paradyse::cli {
namespace {

constexpr std::int64_t kSecond = 1'000'000'000;  // ns
constexpr std::int64_t kSameWish = 2 * kSecond;  // after the first signal

std::atomic<bool> interrupt_asked{false};
std::atomic<int> by{0};                 // the first signal
std::atomic<std::int64_t> asked_at{0};  // ns; 0: not yet
std::atomic<int> saves{0};              // under way
static_assert(
    std::atomic<bool>::is_always_lock_free && std::atomic<int>::is_always_lock_free &&
    std::atomic<std::int64_t>::is_always_lock_free);

std::int64_t now() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return kSecond * time.tv_sec + time.tv_nsec;
}

// Only what is safe in a handler.
extern "C" void ask(int signal) {
  const int error = errno;
  int none = 0;
  by.compare_exchange_strong(none, signal == SIGHUP ? SIGTERM : signal);
  interrupt_asked.store(true);
  const std::int64_t time = now();
  std::int64_t first = 0;
  if (!asked_at.compare_exchange_strong(first, time) && saves.load() == 0 &&
      time - first > kSameWish) {
    constexpr std::string_view kTold =
        "paradyse: ended by a second signal, without another checkpoint\n";
    [[maybe_unused]] const ssize_t told = ::write(STDERR_FILENO, kTold.data(), kTold.size());
    _exit(kFailed);
  }
  errno = error;
}

std::atomic<bool> save_wished{false};

extern "C" void wish_to_save(int /*signal*/) { save_wished.store(true); }

}  // namespace

std::atomic<bool>& save_asked() { return save_wished; }

void hold_save_wishes() {
  sigset_t wish;
  sigemptyset(&wish);
  sigaddset(&wish, SIGUSR1);
  pthread_sigmask(SIG_BLOCK, &wish, nullptr);
}

void on_save_wish(void (*handler)(int)) {
  struct sigaction action = {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  sigaction(SIGUSR1, &action, nullptr);
  sigset_t wish;
  sigemptyset(&wish);
  sigaddset(&wish, SIGUSR1);
  pthread_sigmask(SIG_UNBLOCK, &wish, nullptr);
}

void catch_save_wishes() { on_save_wish(wish_to_save); }

const std::atomic<bool>& interrupted() { return interrupt_asked; }

const std::atomic<int>& interrupted_by() { return by; }

void catch_interrupts() {
  struct sigaction action = {};
  action.sa_handler = ask;
  action.sa_flags = SA_RESTART;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  struct sigaction before = {};
  sigaction(SIGHUP, nullptr, &before);
  if (before.sa_handler != SIG_IGN) {
    sigaction(SIGHUP, &action, nullptr);
  }
}

void count_saving(bool begins) { saves.fetch_add(begins ? 1 : -1); }

namespace {

bool outlives = false;

}  // namespace

void outlive_readers() {
  std::signal(SIGPIPE, SIG_IGN);
  outlives = true;
}

bool reader_has_left() {
  pollfd out{.fd = STDOUT_FILENO, .events = POLLOUT, .revents = 0};
  return outlives && ::poll(&out, 1, 0) == 1 && (out.revents & (POLLERR | POLLHUP)) != 0;
}

}  // namespace paradyse::cli
