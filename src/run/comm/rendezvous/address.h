// This machine's addresses, as its peers see them, and connections to and from there.
#pragma once

#include <chrono>
#include <stdexcept>
#include <string>
#include <utility>

namespace paradyse::rendezvous {

// The address from which packets to `host` leave.  Throws std::invalid_argument for a name that has
// no address, or one that no network leads to.
std::string address_towards(const std::string& host, int port);

// Throws std::invalid_argument naming the interfaces there are.
std::string address_of_interface(const std::string& interface);

// Whether `host` is an address of this machine.  Throws std::invalid_argument for a name that has
// no address.
bool is_of_this_machine(const std::string& host);

// Whether each address of `host` is of the loopback interface, which no other machine reaches.
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

// A connection to the first address of `host` that takes one; one try.  Throws Unreached, and
// std::invalid_argument for a name that has no address, or, with `loopback_alone`, for an address
// that is not of the loopback interface.
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
  // Port 0: any that is free.  Throws std::invalid_argument for an address that stands for all of
  // them; std::runtime_error where nobody can listen there.
  explicit Listener(const std::string& host, int port = 0);

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
  Listener(const std::string& host, int port, Socket socket);

  Socket socket_;
  std::string address_;
  int port_ = 0;
  bool loopback_ = false;
};

}  // namespace paradyse::rendezvous
