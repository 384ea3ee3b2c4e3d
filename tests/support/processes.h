// Ranks as processes, for tests: forks of the test's own process.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "paradyse/run/backend.h"

namespace paradyse::test {

// How a process ended.
struct Ended {
  int code = 0;  // 0: well; 1: an EXPECT_ failed there; 3: an exception; 128 + signal; -1: hung
  std::string message;  // of the exception
  double seconds = 0;   // from the start
};

// Processes that run body(backend) and meet over gloo, rank 0 keeping the rendezvous.  To be
// started while this process has one thread.
class Processes {
 public:
  // `options` gives all but ranks and, unless there is an agent, the port; a rank for which
  // absent(rank) holds never comes; `change` makes a rank's options its own.
  Processes(
      int ranks,
      const std::function<void(Backend& backend)>& body,
      GlooOptions options = {},
      const std::function<bool(int rank)>& absent = nullptr,
      const std::function<void(int rank, GlooOptions& options)>& change = nullptr);

  // Until all are over; one that has stopped itself is killed once the others are.
  std::vector<Ended> wait();

 private:
  struct Process {
    int pid = 0;
    int pipe = -1;
    bool stopped = false;
    bool over = false;
  };
  std::chrono::steady_clock::time_point begin_;
  std::vector<Process> processes_;
};

// Every process must end well.
void expect_processes(int ranks, const std::function<void(Backend& backend)>& body);

}  // namespace paradyse::test
