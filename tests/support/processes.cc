#include "tests/support/processes.h"

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <thread>

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

namespace paradyse::test {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kHung{150};

int free_port() {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  if (fd < 0 || bind(fd, any, length) != 0 || getsockname(fd, any, &length) != 0) {
    throw std::runtime_error("no port is free");
  }
  close(fd);
  return ntohs(address.sin_port);
}

// In the new process; does not return.
[[noreturn]] void be_rank(
    const GlooOptions& options, const std::function<void(Backend& backend)>& body, int pipe) {
  int code = 0;
  try {
    const auto backend = gloo_backend(options);
    try {
      body(*backend);
      backend->leave();
    } catch (const std::exception& error) {
      backend->fail(error.what(), /*bad_input=*/false);
      throw;
    }
  } catch (const std::exception& error) {
    const std::string message = error.what();
    if (write(pipe, message.data(), message.size()) < 0) {
      std::perror("pipe");
    }
    code = 3;
  }
  std::fflush(nullptr);
  _exit(code == 0 && testing::Test::HasFailure() ? 1 : code);
}

std::string read_all(int fd) {
  std::string text;
  char buffer[4096];
  for (ssize_t n = 0; (n = read(fd, buffer, sizeof(buffer))) > 0;) {
    text.append(buffer, static_cast<std::size_t>(n));
  }
  close(fd);
  return text;
}

}  // namespace

Processes::Processes(
    int ranks,
    const std::function<void(Backend& backend)>& body,
    GlooOptions options,
    const std::function<bool(int rank)>& absent,
    const std::function<void(int rank, GlooOptions& options)>& change)
    : begin_(Clock::now()), processes_(static_cast<std::size_t>(ranks)) {
  options.size = ranks;
  options.port = free_port();
  // c10d asks for the name of each address it connects to; a name server that does not answer shall
  // not take longer than the tests' deadlines.
  setenv("RES_OPTIONS", "timeout:1 attempts:1", 1);
  std::fflush(nullptr);
  for (std::size_t r = 0; r < processes_.size(); ++r) {
    Process& process = processes_[r];
    if (absent && absent(static_cast<int>(r))) {
      process.over = true;
      continue;
    }
    int ends[2];
    if (pipe(ends) != 0) {
      throw std::runtime_error("no pipe");
    }
    process.pid = fork();
    if (process.pid == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      close(ends[0]);
      options.rank = static_cast<int>(r);
      if (change) {
        change(options.rank, options);
      }
      be_rank(options, body, ends[1]);
    }
    close(ends[1]);
    process.pipe = ends[0];
  }
}

std::vector<Ended> Processes::wait() {
  std::vector<Ended> ended(processes_.size());
  while (true) {
    bool waiting = false;
    for (std::size_t r = 0; r < processes_.size(); ++r) {
      Process& process = processes_[r];
      int status = 0;
      if (process.over || waitpid(process.pid, &status, WNOHANG | WUNTRACED) != process.pid) {
        waiting = waiting || (!process.over && !process.stopped);
        continue;
      }
      if (WIFSTOPPED(status)) {
        process.stopped = true;
        continue;
      }
      process.over = true;
      ended[r].code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
      ended[r].seconds = std::chrono::duration<double>(Clock::now() - begin_).count();
      ended[r].message = read_all(process.pipe);
    }
    const bool hung = Clock::now() - begin_ > kHung;
    if (waiting && !hung) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      continue;
    }
    for (std::size_t r = 0; r < processes_.size(); ++r) {
      if (!processes_[r].over) {
        kill(processes_[r].pid, SIGKILL);
        waitpid(processes_[r].pid, nullptr, 0);
        close(processes_[r].pipe);
        ended[r].code = processes_[r].stopped && !hung ? 128 + SIGKILL : -1;
      }
    }
    return ended;
  }
}

void expect_processes(int ranks, const std::function<void(Backend& backend)>& body) {
  const auto ended = Processes(ranks, body).wait();
  for (std::size_t r = 0; r < ended.size(); ++r) {
    EXPECT_EQ(ended[r].code, 0) << "rank " << r << " of " << ranks << ": " << ended[r].message;
  }
}

}  // namespace paradyse::test
