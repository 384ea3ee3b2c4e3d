// This machine's addresses, as its peers see them, and connections to and from there.
#pragma once

#include <chrono>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace paradyse::rendezvous {

// The address from which packets to `host` leave; where the name has several, one that other
// machines reach, or, with `loopback`, one that none does, before others.  Throws
// std::invalid_argument for a name that has no address, or one that no network leads to.
std::string address_towards(const std::string& host, int port, bool loopback = false);

// Throws std::invalid_argument naming the interfaces there are.
std::string address_of_interface(const std::string& interface);

// Whether `host` is an address of this machine.  Throws std::invalid_argument for a name that has
// no address.
bool is_of_this_machine(const std::string& host);

// Whether some address of `host` is of the loopback interface, which no other machine reaches.
// Throws likewise.
bool is_loopback(const std::string& host);

// "HOST:PORT"; an IPv6 address in brackets.
std::string endpoint(const std::string& host, int port);

// That a rendezvous that other machines reach takes a secret, and how to give it.
std::string without_secret(const std::string& rendezvous);

// A socket that does not block, closed with it.
class Socket {
 public:
  Socket(int family, int type);
  ~Socket();
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&&) = delete;
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;

  [[nodiscard]] int fd() const { return fd_; }
  // Whether one of `events` (of poll) comes before `end`.
  [[nodiscard]] bool await(short events, std::chrono::steady_clock::time_point end) const;

 private:
  int fd_;
};

// Nobody listens there; with the system's reason.
struct Unreached : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// What one of several addresses may take of the time until `end`, so that others have their turn.
std::chrono::steady_clock::time_point turn_until(std::chrono::steady_clock::time_point end);

// A connection to the first address of `host` that takes one, each in its turn; one try.  Throws
// Unreached, and std::invalid_argument for a name that has no address, or, with `loopback_alone`,
// none of the loopback interface, the only ones that are tried then.
Socket connected(
    const std::string& host,
    int port,
    std::chrono::steady_clock::time_point end,
    bool loopback_alone = false);

// Returns once something listens there; tries for `patience`, then throws std::runtime_error with
// the system's reason.
void await_listener(const std::string& host, int port, std::chrono::milliseconds patience);

// Listens at one address of this machine, and at no other.
class Listener {
 public:
  // At the first address of `host` that lets it.  Port 0: any that is free.  Throws
  // std::invalid_argument for an address that stands for all of them; std::runtime_error where
  // nobody can listen there.
  explicit Listener(const std::string& host, int port = 0);
  // At each of them, at one port; with `loopback_alone` at those of the loopback interface.
  // Throws likewise, and std::invalid_argument where none of them is.
  static std::vector<Listener> at_all(const std::string& host, int port, bool loopback_alone);

  [[nodiscard]] int fd() const { return socket_.fd(); }
  [[nodiscard]] int port() const { return port_; }
  [[nodiscard]] const std::string& address() const { return address_; }  // as numbers
  [[nodiscard]] bool loopback() const { return loopback_; }
  // A connection that waits to be accepted, which does not block, and where it comes from; -1, and
  // errno, where there is none.
  [[nodiscard]] std::pair<int, std::string> accept() const;
  // A connection whose other end went without a word shall end, in minutes.
  static void keep_alive(int fd);

 private:
  explicit Listener(Socket socket);

  Socket socket_;
  std::string address_;
  int port_ = 0;
  bool loopback_ = false;
};

}  // namespace paradyse::rendezvous
