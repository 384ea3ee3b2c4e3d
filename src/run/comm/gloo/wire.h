// What carries bytes between processes: c10d's Gloo.  wire.cc alone includes its headers, which
// take half a minute to compile.
//
// All functions throw std::runtime_error with what c10d says.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "src/run/comm/rendezvous/seal.h"
#include "src/run/comm/rendezvous/store.h"

namespace paradyse::gloo {

using rendezvous::Store;

// On this thread and those it starts: Gloo writes to connections that may be gone, which shall be
// an error and not the end of the process.
void block_sigpipe();

// Where torchrun keeps a store of its own, which is c10d's and asks nobody for a secret: one number
// of it is read, the port of the rendezvous, which then has to prove itself.
class AgentStore {
 public:
  virtual ~AgentStore() = default;
  virtual void set(const std::string& key, const std::string& value) = 0;
  virtual std::optional<std::string> get(const std::string& key) = 0;
};
// Tries for `patience`.
std::shared_ptr<AgentStore> reach_agent(
    const std::string& host, int port, std::chrono::milliseconds patience);
// Serves one as torchrun does, for tests; and its port.
std::pair<std::shared_ptr<AgentStore>, int> serve_agent();

// A message under way.  Its memory must stay until it is waited for or destroyed.
class Message {
 public:
  virtual ~Message() = default;
  // Whether it is through; false after abort().  Throws when its connection is lost, and past
  // the deadline, with which all connections of this process end.
  virtual bool wait(std::chrono::milliseconds deadline) = 0;
  virtual void abort() = 0;  // from any thread
};

// Messages between every two ranks.  Those of one pair and tag arrive in order; a message starts
// once both sides have named its tag.
class Wire {
 public:
  virtual ~Wire() = default;
  virtual std::unique_ptr<Message> send(
      const void* data, std::int64_t bytes, int rank, std::uint32_t tag) = 0;
  virtual std::unique_ptr<Message> receive(
      void* data, std::int64_t bytes, int rank, std::uint32_t tag) = 0;
};

// What a wire's connections are proven by.
struct WireProof {
  rendezvous::Key key{};  // of the run
  std::string name;       // of this wire: no other has it
};

// Connects with all `size` ranks, which come here within `patience`, by keys of the store that no
// others use.  `address`: of this machine, where its peers find it, and where alone it listens.
// Each connection then proves that a rank of the run is at its other end, before it carries a
// message; and nobody else is let in any more (sealed_off.h).
//
// A wire that is gone is safe: with it go its connections and what was under way on them, so that
// nothing of it arrives over another wire.  A message that is destroyed first has let go of its
// memory by then, at whatever byte it is (Gloo waits for its thread to leave that memory).
std::unique_ptr<Wire> connect_all(
    const std::shared_ptr<Store>& store,
    int rank,
    int size,
    const std::string& address,
    const WireProof& proof,
    std::chrono::milliseconds patience);

}  // namespace paradyse::gloo
