// Starts ranks as threads, and ends them all when one fails.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <system_error>

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include "paradyse/plan/detail/index.h"
#include "src/plan/base/disk_file.h"
#include "src/run/comm/meeting.h"

namespace paradyse {
namespace {

std::string what_failed(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const std::exception& error) {
    return message_of(error);
  } catch (...) {
    return "an exception that is no std::exception";
  }
}

}  // namespace

LocalOptions local_options(double deadline_seconds) {
  constexpr double kLongest = 1e6;
  if (!(deadline_seconds > 0 && deadline_seconds <= kLongest)) {  // a NaN is neither
    throw std::invalid_argument(fmt::format(
        "--timeout {}: accepted are seconds, more than 0 and at most 1000000", deadline_seconds));
  }
  const auto deadline =
      std::chrono::milliseconds(std::max<std::int64_t>(1, std::llround(deadline_seconds * 1e3)));
  return {.deadline = deadline};
}

void run_local_ranks(
    int ranks,
    const LocalOptions& options,
    const std::function<void(Communicators& communicators)>& body) {
  if (ranks < 1) {
    throw std::invalid_argument(fmt::format("{} ranks: at least one is needed", ranks));
  }
  at::set_num_threads(1);
  local::LocalWorld world(ranks, options);
  std::mutex mutex;
  std::condition_variable changed;
  int running = ranks;
  std::exception_ptr first_failure;

  const auto run = [&](int rank) {
    at::set_num_threads(1);
    const auto communicators = local::communicators(world, rank, ranks);
    std::exception_ptr failure;
    try {
      body(*communicators);
    } catch (...) {
      failure = std::current_exception();
      const std::lock_guard lock(mutex);
      if (!first_failure) {  // the cause is noted before peers are freed
        first_failure = failure;
      }
    }
    if (failure) {
      communicators->abort(fmt::format("rank {} failed: {}", rank, what_failed(failure)));
    }
    const std::lock_guard lock(mutex);
    --running;
    changed.notify_all();
  };

  std::vector<std::thread> threads;
  threads.reserve(idx(ranks));
  try {
    for (int rank = 0; rank < ranks; ++rank) {
      threads.emplace_back(run, rank);
    }
  } catch (const std::system_error& error) {  // no more threads: those that run are freed
    const std::lock_guard lock(mutex);
    running -= ranks - static_cast<int>(threads.size());
    first_failure = std::make_exception_ptr(std::runtime_error(fmt::format(
        "rank {} of {} could not be started: {}", threads.size(), ranks, error.what())));
    local::communicators(world, 0, ranks)->abort("a rank could not be started");
  }
  {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return running == 0 || first_failure; });
    if (!changed.wait_for(lock, options.grace, [&] { return running == 0; })) {
      std::fprintf(
          stderr,
          "paradyse: %s\n"
          "paradyse: %d of %d ranks did not stop within %lld ms after this; ending the process\n",
          what_failed(first_failure).c_str(),
          running,
          ranks,
          static_cast<long long>(options.grace.count()));
      std::_Exit(70);
    }
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  if (first_failure) {
    std::rethrow_exception(first_failure);
  }
}

}  // namespace paradyse
