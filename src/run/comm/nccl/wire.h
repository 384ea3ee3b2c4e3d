// NCCL as messages between GPUs: one communicator of all processes, every operation a group of
// sends and receives on a stream.  wire.cc alone includes nccl.h.
//
// The host never waits inside NCCL: its communicator does not block, and what it was given is
// watched by messages (gloo/wire.h) that end at a deadline, or when a rank fails.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "src/run/comm/gloo/watch.h"
#include "src/run/comm/gloo/wire.h"
#include "src/run/device/streams.h"

namespace paradyse::nccl {

// Device memory that goes to, or comes from, a rank of the world.
struct Chunk {
  int rank = 0;
  void* data = nullptr;
  std::int64_t bytes = 0;
};

class Wire {
 public:
  virtual ~Wire() = default;

  // Gives all of it to this thread's current stream as one group.  Chunks of a pair of ranks meet
  // in their order.
  virtual void exchange(const std::vector<Chunk>& sent, const std::vector<Chunk>& received) = 0;
  // Through once the device has passed the mark; fails when NCCL does.
  virtual std::unique_ptr<gloo::Message> passing(MarkPtr mark) = 0;
  // Ends all that is under way; nothing may follow.
  virtual void abort() = 0;
};

// All processes come here, each with its GPU current.  Throws as Watch::await does, and
// CommunicatorError with NCCL's reason.
std::unique_ptr<Wire> connect(gloo::Store& store, gloo::Watch& watch, int rank, int size);

}  // namespace paradyse::nccl
