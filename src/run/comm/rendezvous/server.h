// Keeps the store of a run for processes that prove that they know its secret; turns all others
// away.
//
// One thread serves all connections, none of which can make it wait.  Until a connection has proven
// itself it may send kMostHello bytes, in the time that a greeting has, and is the first to go when
// there are too many.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "src/run/comm/rendezvous/greeting.h"
#include "src/run/comm/rendezvous/store.h"

namespace paradyse::rendezvous {

struct ServerOptions {
  std::string host;  // whose address it listens at, and at no other
  int port = 0;      // 0: any that is free
  std::string secret;
  std::chrono::milliseconds greeting = std::chrono::seconds(10);
  std::size_t most_strangers = 256;  // connections that have proven nothing yet
  // Is told, a few times at most, whom it turned away; from its thread.
  std::function<void(const std::string& what)> notice;
};

class Server {
 public:
  // Throws std::invalid_argument for an address of all interfaces, and for one that other machines
  // reach where there is no secret; std::runtime_error where it cannot listen there.
  explicit Server(const ServerOptions& options);
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  [[nodiscard]] int port() const;
  [[nodiscard]] std::string address() const;  // as numbers
  // For this process; it may outlive the server.
  [[nodiscard]] std::shared_ptr<Store> store() const;
  // The rank of this process itself: no other may claim it.
  void reserve(const Claim& claim);

 private:
  class Loop;
  std::unique_ptr<Loop> loop_;
};

}  // namespace paradyse::rendezvous
