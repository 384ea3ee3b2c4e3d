#include "src/run/comm/gloo/address.h"

#include <cerrno>
#include <cstring>
#include <memory>
#include <set>
#include <stdexcept>
#include <thread>

#include <arpa/inet.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

namespace paradyse::gloo {
namespace {

std::string text_of(const sockaddr* address, socklen_t length) {
  char text[NI_MAXHOST];
  const int failed = getnameinfo(address, length, text, sizeof(text), nullptr, 0, NI_NUMERICHOST);
  return failed != 0 ? "" : text;
}

socklen_t length_of(const sockaddr* address) {
  return address->sa_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
}

using Addresses = std::unique_ptr<addrinfo, void (*)(addrinfo*)>;

Addresses addresses_of(const std::string& host, int port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int failed = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (failed != 0) {
    throw std::invalid_argument(fmt::format(
        "rendezvous {}: the name has no address ({}); give another with --rendezvous or "
        "MASTER_ADDR",
        host,
        gai_strerror(failed)));
  }
  return {found, freeaddrinfo};
}

class Socket {
 public:
  Socket(int family, int type) : fd(socket(family, type | SOCK_CLOEXEC, 0)) {}
  ~Socket() {
    if (fd >= 0) {
      close(fd);
    }
  }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;

  const int fd;
};

// 0, or the error with which a connection failed.
int try_connect(const addrinfo& address, std::chrono::milliseconds patience) {
  const Socket one(address.ai_family, SOCK_STREAM | SOCK_NONBLOCK);
  if (connect(one.fd, address.ai_addr, address.ai_addrlen) == 0) {
    return 0;
  }
  if (errno != EINPROGRESS) {
    return errno;
  }
  pollfd wait{.fd = one.fd, .events = POLLOUT, .revents = 0};
  if (poll(&wait, 1, static_cast<int>(patience.count())) <= 0) {
    return ETIMEDOUT;
  }
  int error = 0;
  socklen_t length = sizeof(error);
  getsockopt(one.fd, SOL_SOCKET, SO_ERROR, &error, &length);
  return error;
}

}  // namespace

std::string endpoint(const std::string& host, int port) {
  return host.find(':') == std::string::npos ? fmt::format("{}:{}", host, port)
                                             : fmt::format("[{}]:{}", host, port);
}

void await_listener(const std::string& host, int port, std::chrono::milliseconds patience) {
  using std::chrono::milliseconds;
  const auto end = std::chrono::steady_clock::now() + patience;
  const Addresses found = addresses_of(host, port);
  int error = ETIMEDOUT;
  while (true) {
    for (const addrinfo* one = found.get(); one != nullptr; one = one->ai_next) {
      const auto left =
          std::chrono::duration_cast<milliseconds>(end - std::chrono::steady_clock::now());
      if (left.count() <= 0) {
        throw std::runtime_error(std::strerror(error));
      }
      error = try_connect(*one, left);
      if (error == 0) {
        return;
      }
    }
    std::this_thread::sleep_for(milliseconds(100));  // it may be about to start
  }
}

Listener::Listener(const std::string& address) {
  const Addresses found = addresses_of(address, 0);
  sockaddr_storage mine{};
  socklen_t length = sizeof(mine);
  auto* const bound = reinterpret_cast<sockaddr*>(&mine);
  fd_ = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd_ < 0 || bind(fd_, found->ai_addr, found->ai_addrlen) != 0 || listen(fd_, 1024) != 0 ||
      getsockname(fd_, bound, &length) != 0) {
    const std::string why = std::strerror(errno);
    if (fd_ >= 0) {
      close(fd_);
    }
    throw std::runtime_error(fmt::format("cannot listen at {}: {}", address, why));
  }
  port_ = ntohs(
      mine.ss_family == AF_INET ? reinterpret_cast<const sockaddr_in&>(mine).sin_port
                                : reinterpret_cast<const sockaddr_in6&>(mine).sin6_port);
}

Listener::~Listener() { close(fd_); }

std::string address_towards(const std::string& host, int port) {
  const Addresses found = addresses_of(host, port);
  int error = 0;
  for (const addrinfo* one = found.get(); one != nullptr; one = one->ai_next) {
    const Socket datagram(one->ai_family, SOCK_DGRAM);
    // A datagram socket only chooses its route and sends nothing.
    sockaddr_storage mine{};
    socklen_t length = sizeof(mine);
    auto* const address = reinterpret_cast<sockaddr*>(&mine);
    if (connect(datagram.fd, one->ai_addr, one->ai_addrlen) == 0 &&
        getsockname(datagram.fd, address, &length) == 0) {
      return text_of(address, length);
    }
    error = errno;
  }
  throw std::invalid_argument(fmt::format(
      "rendezvous {}: no network of this machine reaches it ({}); give another address with "
      "--rendezvous or MASTER_ADDR, or an interface with --interface",
      host,
      std::strerror(error)));
}

std::string address_of_interface(const std::string& interface) {
  ifaddrs* found = nullptr;
  if (getifaddrs(&found) != 0) {
    throw std::runtime_error(
        fmt::format("the network interfaces cannot be listed: {}", std::strerror(errno)));
  }
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> list(found, freeifaddrs);
  std::set<std::string> names;
  for (const int family : {AF_INET, AF_INET6}) {
    for (const ifaddrs* one = found; one != nullptr; one = one->ifa_next) {
      if (one->ifa_addr == nullptr || one->ifa_addr->sa_family != family) {
        continue;
      }
      names.insert(one->ifa_name);
      if (interface == one->ifa_name) {
        return text_of(one->ifa_addr, length_of(one->ifa_addr));
      }
    }
  }
  throw std::invalid_argument(fmt::format(
      "--interface {}: this machine has no interface of that name with an address; there are: {}",
      interface,
      fmt::join(names, ", ")));
}

}  // namespace paradyse::gloo
