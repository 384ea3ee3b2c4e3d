// This machine's addresses, as its peers see them.
#pragma once

#include <chrono>
#include <string>

namespace paradyse::gloo {

// The address from which packets to `host` leave.  Throws std::invalid_argument for a name that has
// no address, or one that no network leads to.
std::string address_towards(const std::string& host, int port);

// Throws std::invalid_argument naming the interfaces there are.
std::string address_of_interface(const std::string& interface);

// "HOST:PORT"; an IPv6 address in brackets.
std::string endpoint(const std::string& host, int port);

// Returns once something listens there; tries for `patience`, then throws std::runtime_error with
// the system's reason.
void await_listener(const std::string& host, int port, std::chrono::milliseconds patience);

// Listens at an address of this machine, for peers that try whether they reach it.
class Listener {
 public:
  explicit Listener(const std::string& address);  // throws std::runtime_error
  ~Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  [[nodiscard]] int port() const { return port_; }

 private:
  int fd_ = -1;
  int port_ = 0;
};

}  // namespace paradyse::gloo
