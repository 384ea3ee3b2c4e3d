#include "src/run/comm/rendezvous/address.h"

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <set>
#include <stdexcept>
#include <thread>

#include <arpa/inet.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

namespace paradyse::rendezvous {
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

bool loops_back(const sockaddr* address) {
  if (address->sa_family == AF_INET) {
    const auto* const four = reinterpret_cast<const sockaddr_in*>(address);
    return (ntohl(four->sin_addr.s_addr) >> 24U) == IN_LOOPBACKNET;
  }
  const in6_addr& six = reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr;
  return IN6_IS_ADDR_LOOPBACK(&six) ||
         (IN6_IS_ADDR_V4MAPPED(&six) && six.s6_addr[12] == IN_LOOPBACKNET);
}

bool is_of_all(const sockaddr* address) {
  if (address->sa_family == AF_INET) {
    return reinterpret_cast<const sockaddr_in*>(address)->sin_addr.s_addr == htonl(INADDR_ANY);
  }
  const in6_addr& six = reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr;
  return IN6_IS_ADDR_UNSPECIFIED(&six) ||
         (IN6_IS_ADDR_V4MAPPED(&six) &&
          std::all_of(six.s6_addr + 12, six.s6_addr + 16, [](auto b) { return b == 0; }));
}

int port_of(const sockaddr* address) {
  return ntohs(
      address->sa_family == AF_INET ? reinterpret_cast<const sockaddr_in*>(address)->sin_port
                                    : reinterpret_cast<const sockaddr_in6*>(address)->sin6_port);
}

// Where the system does not let it, nothing, and errno.
std::optional<Socket> listening(const addrinfo& at) {
  Socket socket(at.ai_family, SOCK_STREAM);
  constexpr int kOn = 1;  // a port is free once its listener is gone, whatever still closes
  if (socket.fd() >= 0 &&
      setsockopt(socket.fd(), SOL_SOCKET, SO_REUSEADDR, &kOn, sizeof(kOn)) == 0 &&
      bind(socket.fd(), at.ai_addr, at.ai_addrlen) == 0 && listen(socket.fd(), 1024) == 0) {
    return socket;
  }
  return std::nullopt;
}

void expect_one_network(const addrinfo& at, const std::string& host) {
  if (is_of_all(at.ai_addr)) {
    throw std::invalid_argument(fmt::format(
        "rendezvous {}: this address means all interfaces of this machine, and other machines "
        "cannot connect to it; give its IP address in the network that the processes share",
        host));
  }
}

}  // namespace

std::string endpoint(const std::string& host, int port) {
  return host.find(':') == std::string::npos ? fmt::format("{}:{}", host, port)
                                             : fmt::format("[{}]:{}", host, port);
}

std::string without_secret(const std::string& rendezvous) {
  return fmt::format(
      "the rendezvous at {} can be reached by other machines, and anybody there could end the run "
      "or join it: give all processes one secret, as a variable (export "
      "PARADYSE_SECRET=$(head -c 32 /dev/urandom | base64), once, before they are started) or as a "
      "file that "
      "all of them read (--secret-file FILE, of mode 600). Without one, processes meet on "
      "127.0.0.1 alone",
      rendezvous);
}

Socket::Socket(int family, int type)
    : fd_(socket(family, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) {}

Socket::~Socket() {
  if (fd_ >= 0) {
    close(fd_);
  }
}

bool Socket::await(short events, std::chrono::steady_clock::time_point end) const {
  using std::chrono::milliseconds;
  while (true) {
    const auto left =
        std::chrono::ceil<milliseconds>(end - std::chrono::steady_clock::now()).count();
    pollfd wait{.fd = fd_, .events = events, .revents = 0};
    const int found = poll(&wait, 1, static_cast<int>(std::clamp<std::int64_t>(left, 0, 60000)));
    if (found > 0) {
      return true;
    }
    if (left <= 0) {
      return false;
    }
  }
}

std::chrono::steady_clock::time_point turn_until(std::chrono::steady_clock::time_point end) {
  constexpr auto kLeast = std::chrono::seconds(2);
  const auto now = std::chrono::steady_clock::now();
  return std::min(
      end, now + std::max<std::chrono::steady_clock::duration>(kLeast, (end - now) / 4));
}

Socket connected(
    const std::string& host,
    int port,
    std::chrono::steady_clock::time_point end,
    bool loopback_alone) {
  if (loopback_alone && !is_loopback(host)) {
    throw std::invalid_argument(without_secret(endpoint(host, port)));
  }
  const Addresses found = addresses_of(host, port);
  int error = ETIMEDOUT;
  for (const addrinfo* one = found.get(); one != nullptr; one = one->ai_next) {
    if (loopback_alone && !loops_back(one->ai_addr)) {
      continue;
    }
    Socket socket(one->ai_family, SOCK_STREAM);
    if (socket.fd() < 0) {
      error = errno;
      continue;
    }
    if (connect(socket.fd(), one->ai_addr, one->ai_addrlen) != 0) {
      error = errno;
      if (error != EINPROGRESS) {
        continue;
      }
      if (!socket.await(POLLOUT, turn_until(end))) {
        error = ETIMEDOUT;
        continue;
      }
      socklen_t length = sizeof(error);
      getsockopt(socket.fd(), SOL_SOCKET, SO_ERROR, &error, &length);
      if (error != 0) {
        continue;
      }
    }
    constexpr int kOn = 1;
    setsockopt(socket.fd(), IPPROTO_TCP, TCP_NODELAY, &kOn, sizeof(kOn));
    return socket;
  }
  throw Unreached(std::strerror(error));
}

void await_listener(const std::string& host, int port, std::chrono::milliseconds patience) {
  using Clock = std::chrono::steady_clock;
  constexpr std::chrono::milliseconds kPause{100};  // it may be about to start
  const auto end = Clock::now() + patience;
  while (true) {
    try {
      connected(host, port, end);
      return;
    } catch (const Unreached&) {
      if (Clock::now() + kPause > end) {
        throw;
      }
    }
    std::this_thread::sleep_for(kPause);
  }
}

Listener::Listener(const std::string& host, int port)
    : Listener(std::move(at_all(host, port, /*loopback_alone=*/false).front())) {}

std::vector<Listener> Listener::at_all(const std::string& host, int port, bool loopback_alone) {
  if (loopback_alone && !is_loopback(host)) {
    throw std::invalid_argument(without_secret(endpoint(host, port)));
  }
  std::vector<Listener> all;
  int error = EADDRNOTAVAIL;
  const Addresses found = addresses_of(host, port);
  for (const addrinfo* one = found.get(); one != nullptr; one = one->ai_next) {
    expect_one_network(*one, host);
    const bool known = std::ranges::any_of(all, [&](const Listener& other) {
      return other.address() == text_of(one->ai_addr, one->ai_addrlen);
    });
    if (known || (loopback_alone && !loops_back(one->ai_addr))) {
      continue;
    }
    const Addresses at = addresses_of(
        text_of(one->ai_addr, one->ai_addrlen), all.empty() ? port : all.front().port());
    if (auto socket = listening(*at)) {
      all.push_back(Listener(*std::move(socket)));
    } else {
      error = errno;
    }
  }
  if (all.empty()) {
    throw std::runtime_error(
        fmt::format("cannot listen at {}: {}", endpoint(host, port), std::strerror(error)));
  }
  return all;
}

Listener::Listener(Socket socket) : socket_(std::move(socket)) {
  sockaddr_storage mine{};
  socklen_t length = sizeof(mine);
  auto* const bound = reinterpret_cast<sockaddr*>(&mine);
  if (getsockname(fd(), bound, &length) != 0) {
    throw std::runtime_error(fmt::format("cannot tell where it listens: {}", std::strerror(errno)));
  }
  address_ = text_of(bound, length);
  port_ = port_of(bound);
  loopback_ = loops_back(bound);
}

std::pair<int, std::string> Listener::accept() const {
  sockaddr_storage other{};
  socklen_t length = sizeof(other);
  auto* const address = reinterpret_cast<sockaddr*>(&other);
  while (true) {
    const int fd = accept4(socket_.fd(), address, &length, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0 && (errno == EINTR || errno == ECONNABORTED)) {
      continue;
    }
    if (fd < 0) {
      return {-1, ""};
    }
    constexpr int kOn = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &kOn, sizeof(kOn));
    return {fd, endpoint(text_of(address, length), port_of(address))};
  }
}

void Listener::keep_alive(int fd) {
  const auto set = [&](int level, int option, int value) {
    setsockopt(fd, level, option, &value, sizeof(value));
  };
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 60);
  set(IPPROTO_TCP, TCP_KEEPINTVL, 15);
  set(IPPROTO_TCP, TCP_KEEPCNT, 8);
  // Also where something was sent that the other end does not acknowledge: keepalive waits then.
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, 180000);
}

bool is_of_this_machine(const std::string& host) {
  const Addresses found = addresses_of(host, 0);
  for (const addrinfo* one = found.get(); one != nullptr; one = one->ai_next) {
    const Socket socket(one->ai_family, SOCK_STREAM);
    if (socket.fd() >= 0 && bind(socket.fd(), one->ai_addr, one->ai_addrlen) == 0) {
      return true;
    }
  }
  return false;
}

bool is_loopback(const std::string& host) {
  const Addresses found = addresses_of(host, 0);
  for (const addrinfo* one = found.get(); one != nullptr; one = one->ai_next) {
    if (loops_back(one->ai_addr)) {
      return true;
    }
  }
  return false;
}

std::string address_towards(const std::string& host, int port, bool loopback) {
  const Addresses found = addresses_of(host, port);
  int error = 0;
  std::string other;
  for (const addrinfo* one = found.get(); one != nullptr; one = one->ai_next) {
    const Socket datagram(one->ai_family, SOCK_DGRAM);
    // A datagram socket only chooses its route and sends nothing.
    sockaddr_storage mine{};
    socklen_t length = sizeof(mine);
    auto* const address = reinterpret_cast<sockaddr*>(&mine);
    if (connect(datagram.fd(), one->ai_addr, one->ai_addrlen) != 0 ||
        getsockname(datagram.fd(), address, &length) != 0) {
      error = errno;
    } else if (loops_back(address) == loopback) {
      return text_of(address, length);
    } else if (other.empty()) {
      other = text_of(address, length);
    }
  }
  if (!other.empty()) {
    return other;
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

}  // namespace paradyse::rendezvous
