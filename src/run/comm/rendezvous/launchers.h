// How launchers of several nodes agree on who goes on after a failure, through the run's store.
//
// Each launcher whose ranks have ended says so.  Node 0, which keeps the store, waits for the
// others as long as its patience is and then says which nodes go on; the others go by its word.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "src/run/comm/rendezvous/store.h"

namespace paradyse::rendezvous {

struct LauncherMeeting {
  int attempt = 1;          // that begins
  int node = 0;             // this one
  std::vector<int> before;  // nodes of the attempt before, ascending, node 0 first
  std::chrono::milliseconds patience = std::chrono::seconds(60);
};

// The nodes of `before` that go on, ascending; this one is not among them where it came too late.
// None: `stop` said to give up.  Returns within the patience on node 0, within twice as long on
// others; then throws std::runtime_error: node 0's launcher did not come.  Also throws where the
// store is gone, and what is said in it is nothing that a launcher says.
std::optional<std::vector<int>> nodes_that_go_on(
    Store& store, const LauncherMeeting& meeting, const std::function<bool()>& stop);

}  // namespace paradyse::rendezvous
