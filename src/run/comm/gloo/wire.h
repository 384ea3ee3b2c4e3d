// What carries bytes between processes: c10d's TCP store for rendezvous and control, its Gloo for
// messages.  wire.cc alone includes their headers, which take half a minute to compile.
//
// All functions throw std::runtime_error with what c10d says.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace paradyse::gloo {

// Keys and values that all ranks see, kept by one of the processes.
class Store {
 public:
  virtual ~Store() = default;

  [[nodiscard]] virtual int port() const = 0;
  virtual void set(const std::string& key, const std::string& value) = 0;
  // Sets what is not there yet; gives what is there then.
  virtual std::string set_once(const std::string& key, const std::string& value) = 0;
  virtual std::optional<std::string> get(const std::string& key) = 0;
  // All of these are there.
  virtual std::vector<std::string> get_all(const std::vector<std::string>& keys) = 0;
};

// Port 0: any that is free.
std::shared_ptr<Store> serve_store(const std::string& host, int port);
// Tries for `patience`.  Keys begin with `prefix` from here on.
std::shared_ptr<Store> reach_store(
    const std::string& host, int port, std::chrono::milliseconds patience);
std::shared_ptr<Store> with_prefix(std::shared_ptr<Store> store, const std::string& prefix);

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

// Connects with all `size` ranks, which come here within `patience`, by keys of the store that no
// others use.  `address`: of this machine, where its peers find it.
//
// A wire that is gone is safe: with it go its connections and what was under way on them, so that
// nothing of it arrives over another wire.  A message that is destroyed first has let go of its
// memory by then, at whatever byte it is (Gloo waits for its thread to leave that memory).
std::unique_ptr<Wire> connect_all(
    const std::shared_ptr<Store>& store,
    int rank,
    int size,
    const std::string& address,
    std::chrono::milliseconds patience);

}  // namespace paradyse::gloo
