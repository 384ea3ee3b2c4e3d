#include "src/run/comm/rendezvous/server.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "src/run/comm/rendezvous/address.h"
#include "src/run/comm/rendezvous/conversation.h"

namespace paradyse::rendezvous {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr int kMostNotices = 8;
constexpr int kAtOnce = 64;           // connections that are accepted before others have their turn
constexpr milliseconds kNoRoom{100};  // between tries to accept where the system has no room

bool is_no_room(int error) {
  return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM;
}

struct Peer {
  Peer(int its_fd, Reception& reception, std::string address, Clock::time_point until)
      : fd(its_fd), greeted_until(until), said(reception, std::move(address), challenge()) {}
  ~Peer() { close(fd); }
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  // It has to be through by greeted_until.
  [[nodiscard]] bool hurries() const { return said.stranger() || said.last_word(); }

  const int fd;
  const Clock::time_point greeted_until;
  Conversation said;
};

}  // namespace

class Server::Loop {
 public:
  explicit Loop(const ServerOptions& options)
      : options_(options),
        reception_{
            .root = root_key(options.secret),
            .store = table_,
            .notice = [this](
                          const std::string& address,
                          const std::string& why) { notice(address, why); }},
        listeners_(Listener::at_all(options.host, options.port, options.secret.empty())),
        wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    if (options.reserved) {
      reception_.holders[{options.reserved->attempt, options.reserved->rank}] =
          options.reserved->process;
    }
    if (wake_ < 0) {
      throw std::runtime_error(fmt::format("no event descriptor: {}", std::strerror(errno)));
    }
    thread_ = std::thread([this] { run(); });
  }

  ~Loop() {
    constexpr std::uint64_t kOne = 1;
    stop_ = true;
    while (write(wake_, &kOne, sizeof(kOne)) < 0 && errno == EINTR) {
    }
    thread_.join();
    close(wake_);
  }
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  [[nodiscard]] const Listener& listener() const { return listeners_.front(); }
  [[nodiscard]] const std::shared_ptr<Store>& table() const { return table_; }

 private:
  void run() {
    while (!stop_) {
      std::vector<pollfd> wanted = {{.fd = wake_, .events = POLLIN, .revents = 0}};
      const bool accepts = Clock::now() >= accept_from_;
      for (const Listener& one : listeners_) {
        wanted.push_back({.fd = accepts ? one.fd() : -1, .events = POLLIN, .revents = 0});
      }
      const std::size_t first_peer = wanted.size();
      for (const auto& peer : peers_) {
        const bool writes = !peer->said.leaving().empty();
        wanted.push_back(
            {.fd = peer->fd,
             .events = static_cast<short>(writes ? POLLOUT : POLLIN),
             .revents = 0});
      }
      if (poll(wanted.data(), wanted.size(), milliseconds_left(accepts)) < 0 && errno != EINTR) {
        std::this_thread::sleep_for(kNoRoom);  // of memory: nothing else can be wrong
        continue;
      }
      for (std::size_t i = 0; i < peers_.size(); ++i) {
        if (wanted[first_peer + i].revents != 0 && !serve(*peers_[i])) {
          peers_[i].reset();
        }
      }
      const auto now = Clock::now();
      for (auto& peer : peers_) {
        if (peer != nullptr && peer->hurries() && now > peer->greeted_until) {
          peer.reset();
        }
      }
      std::erase(peers_, nullptr);
      for (std::size_t i = 0; i < listeners_.size(); ++i) {
        if (wanted[1 + i].revents != 0) {
          accept_some(listeners_[i]);
        }
      }
    }
  }

  // Until a greeting is over, or accepting is tried again; -1: for ever.
  [[nodiscard]] int milliseconds_left(bool accepts) const {
    auto until = Clock::time_point::max();
    for (const auto& peer : peers_) {
      if (peer->hurries()) {
        until = std::min(until, peer->greeted_until);
      }
    }
    if (!accepts) {
      until = std::min(until, accept_from_);
    }
    if (until == Clock::time_point::max()) {
      return -1;
    }
    const auto left = std::chrono::ceil<milliseconds>(until - Clock::now()).count();
    return static_cast<int>(std::clamp<std::int64_t>(left + 1, 0, 60000));
  }

  void accept_some(const Listener& listener) {
    for (int taken = 0; taken < kAtOnce; ++taken) {
      auto [fd, address] = listener.accept();
      if (fd < 0) {
        if (is_no_room(errno) && !drop_a_stranger()) {
          accept_from_ = Clock::now() + kNoRoom;
        }
        return;
      }
      auto peer = std::make_unique<Peer>(
          fd, reception_, std::move(address), Clock::now() + options_.greeting);
      if (!send_to(*peer)) {
        continue;
      }
      peers_.push_back(std::move(peer));
      const auto strangers = std::count_if(
          peers_.begin(), peers_.end(), [](const auto& one) { return one->said.stranger(); });
      if (static_cast<std::size_t>(strangers) > options_.most_strangers) {
        drop_a_stranger();
      }
    }
  }

  // The one that came first.
  bool drop_a_stranger() {
    const auto found = std::find_if(
        peers_.begin(), peers_.end(), [](const auto& one) { return one->said.stranger(); });
    if (found == peers_.end()) {
      return false;
    }
    peers_.erase(found);
    return true;
  }

  // Whether the connection is to stay.
  static bool serve(Peer& peer) {
    if (!peer.said.leaving().empty()) {
      return send_to(peer);
    }
    const std::size_t room = peer.said.room();
    if (peer.said.last_word() || room == 0) {  // it sends more than a greeting
      return false;
    }
    std::array<char, 1 << 16> bytes{};
    const ssize_t got = recv(peer.fd, bytes.data(), std::min(room, bytes.size()), 0);
    if (got < 0) {
      return errno == EAGAIN || errno == EINTR;
    }
    if (got == 0) {  // it hung up
      return false;
    }
    const bool was_stranger = peer.said.stranger();
    if (!peer.said.take({bytes.data(), static_cast<std::size_t>(got)})) {
      return false;
    }
    if (was_stranger && !peer.said.stranger()) {
      Listener::keep_alive(peer.fd);
    }
    return send_to(peer);
  }

  // As much as the connection takes; whether it is to stay.
  static bool send_to(Peer& peer) {
    std::string& leaving = peer.said.leaving();
    while (!leaving.empty()) {
      const ssize_t sent = send(peer.fd, leaving.data(), leaving.size(), MSG_NOSIGNAL);
      if (sent < 0) {
        return errno == EAGAIN || errno == EINTR;
      }
      leaving.erase(0, static_cast<std::size_t>(sent));
    }
    if (peer.said.last_word()) {  // closed once the peer has read it: unread bytes would reset the
                                  // connection
      shutdown(peer.fd, SHUT_WR);
    }
    return true;
  }

  void notice(const std::string& address, const std::string& why) {
    if (options_.notice && notices_ < kMostNotices) {
      ++notices_;
      options_.notice(fmt::format(
          "the rendezvous at {} turned away a connection from {}: {}{}",
          endpoint(listener().address(), listener().port()),
          address,
          why,
          notices_ == kMostNotices ? "; others are not told of any more" : ""));
    }
  }

  const ServerOptions options_;
  const std::shared_ptr<Store> table_ = std::make_shared<Table>();
  Reception reception_;                    // of the thread alone, once it runs
  const std::vector<Listener> listeners_;  // at one port
  const int wake_;
  std::atomic<bool> stop_ = false;
  // Of the thread alone, once it runs:
  std::vector<std::unique_ptr<Peer>> peers_;  // in the order in which they came
  Clock::time_point accept_from_;
  int notices_ = 0;
  std::thread thread_;
};

Server::Server(const ServerOptions& options) : loop_(std::make_unique<Loop>(options)) {}
Server::~Server() = default;
int Server::port() const { return loop_->listener().port(); }
std::string Server::address() const { return loop_->listener().address(); }
std::shared_ptr<Store> Server::store() const { return loop_->table(); }

}  // namespace paradyse::rendezvous
