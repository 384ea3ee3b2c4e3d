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
#include <optional>
#include <string>

#include "src/run/comm/rendezvous/greeting.h"
#include "src/run/comm/rendezvous/store.h"

namespace paradyse::rendezvous {

struct ServerOptions {
  std::string host;  // whose addresses it listens at, and at no other
  int port = 0;      // 0: any that is free
  std::string secret;
  std::chrono::milliseconds greeting = std::chrono::seconds(10);
  std::size_t most_strangers = 256;    // connections that have proven nothing yet
  std::optional<Claim> reserved = {};  // the rank of this process itself: no other may claim it
  // Is told, a few times at most, whom it turned away; from its thread.
  std::function<void(const std::string& what)> notice;
};

class Server {
 public:
  // Without a secret it listens at addresses of the loopback interface alone.  Throws
  // std::invalid_argument for an address of all interfaces, and where there is no secret and none
  // of the loopback interface; std::runtime_error where it cannot listen there.
  explicit Server(const ServerOptions& options);
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  [[nodiscard]] int port() const;
  [[nodiscard]] std::string address() const;  // as numbers, the first of them
  // For this process; it may outlive the server.
  [[nodiscard]] std::shared_ptr<Store> store() const;

 private:
  class Loop;
  std::unique_ptr<Loop> loop_;
};

}  // namespace paradyse::rendezvous
