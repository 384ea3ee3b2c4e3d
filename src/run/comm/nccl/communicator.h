// Collectives between GPUs over a Wire, each a group of messages between pairs of ranks, as gloo's
// are; tensors of the host go over gloo.  They do not recover from an interruption: that ends the
// run (communicator.h).
#pragma once

#include <memory>

#include "src/run/comm/gloo/communicator.h"
#include "src/run/comm/nccl/wire.h"

namespace paradyse::nccl {

// The communicators of this process's rank; wire and watch outlive them.
std::unique_ptr<gloo::RankCommunicators> communicators(
    Wire& wire, gloo::Watch& watch, std::unique_ptr<gloo::RankCommunicators> gloo);

}  // namespace paradyse::nccl
