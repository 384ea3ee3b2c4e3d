// Proof that at the other end of each of a wire's connections there is a rank of the run.
//
// Gloo lets in whoever connects to where it listens and says a small number.  So the first messages
// of each pair of ranks are nonces, one each way, and then tags over both, made with the run's key,
// the wire's name and both ranks: without the secret nobody can be taken for a rank, and what one
// pair or wire carried is of no use on another.
#pragma once

#include <chrono>

#include "src/run/comm/gloo/wire.h"

namespace paradyse::gloo {

// Returns once all others have proven themselves, within `patience`.  Throws std::runtime_error
// naming the ranks that did not.
void prove(
    Wire& wire, int rank, int size, const WireProof& proof, std::chrono::milliseconds patience);

}  // namespace paradyse::gloo
