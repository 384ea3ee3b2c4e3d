// Collectives over a Wire: every operation is messages between pairs of ranks, one from a rank to
// each rank that gets anything of it.
#pragma once

#include <functional>
#include <memory>

#include "paradyse/run/communicator.h"
#include "src/run/comm/gloo/watch.h"
#include "src/run/comm/gloo/wire.h"

namespace paradyse::gloo {

class RankCommunicators : public Communicators {
 public:
  // Waits until all that this rank sent is on its way: its memory may go then.
  virtual void finish() = 0;
};

// Gives another wire between the same ranks in place of the one before, which goes with all that is
// under way on it.  Called when all ranks have left their operations.  Throws as Watch::await_wire.
using Reconnect = std::function<Wire&()>;

// The communicators of this process's rank in run number `run`, which the first `size` ranks make.
// Wire and watch outlive them.
std::unique_ptr<RankCommunicators> communicators(
    Wire& wire, const Reconnect& reconnect, Watch& watch, int run, int rank, int size);

}  // namespace paradyse::gloo
