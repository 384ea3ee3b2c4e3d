#include "src/run/comm/rendezvous/server.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <map>
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
#include "src/run/comm/rendezvous/printable.h"
#include "src/run/comm/rendezvous/requests.h"

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
  Peer(int its_fd, std::string its_address, Clock::time_point until)
      : fd(its_fd), address(std::move(its_address)), greeted_until(until) {}
  ~Peer() { close(fd); }
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  [[nodiscard]] bool stranger() const { return !session.has_value(); }

  const int fd;
  const std::string address;
  Clock::time_point greeted_until;
  std::string challenge;
  std::string arrived;
  std::string leaving;     // bytes that are yet to be sent
  bool last_word = false;  // it goes when they are
  std::optional<Session> session;
  std::optional<Claim> claim;  // a rank that it holds
};

}  // namespace

class Server::Loop {
 public:
  explicit Loop(const ServerOptions& options)
      : options_(options),
        root_(root_key(options.secret)),
        listeners_(Listener::at_all(options.host, options.port, options.secret.empty())),
        wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    if (options.reserved) {
      claimed_[{options.reserved->attempt, options.reserved->rank}] = options.reserved->process;
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
        const bool writes = !peer->leaving.empty();
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
          forget(peers_[i]);
        }
      }
      const auto now = Clock::now();
      for (auto& peer : peers_) {
        if (peer != nullptr && (peer->stranger() || peer->last_word) && now > peer->greeted_until) {
          forget(peer);
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
      if (peer->stranger() || peer->last_word) {
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
      auto peer = std::make_unique<Peer>(fd, std::move(address), Clock::now() + options_.greeting);
      peer->challenge = challenge();
      peer->leaving = peer->challenge;
      if (!send_to(*peer)) {
        continue;
      }
      peers_.push_back(std::move(peer));
      const auto strangers = std::count_if(
          peers_.begin(), peers_.end(), [](const auto& one) { return one->stranger(); });
      if (static_cast<std::size_t>(strangers) > options_.most_strangers) {
        drop_a_stranger();
      }
    }
  }

  // The one that came first.
  bool drop_a_stranger() {
    const auto found =
        std::find_if(peers_.begin(), peers_.end(), [](const auto& one) { return one->stranger(); });
    if (found == peers_.end()) {
      return false;
    }
    peers_.erase(found);
    return true;
  }

  // Whether the connection is to stay.
  bool serve(Peer& peer) {
    if (!peer.leaving.empty()) {
      return send_to(peer);
    }
    if (peer.last_word) {
      return false;
    }
    std::array<char, 1 << 16> bytes{};
    const std::size_t most =
        peer.stranger() ? kMostHello - std::min(kMostHello, peer.arrived.size()) : bytes.size();
    const ssize_t got = recv(peer.fd, bytes.data(), most, 0);
    if (got < 0) {
      return errno == EAGAIN || errno == EINTR;
    }
    if (got == 0) {  // it hung up, or sends more than a greeting
      return false;
    }
    peer.arrived.append(bytes.data(), static_cast<std::size_t>(got));
    try {
      if (peer.stranger()) {
        greet(peer);
      }
      if (!peer.stranger()) {
        while (const auto asked = peer.session->to_rendezvous.open(peer.arrived)) {
          peer.leaving += peer.session->to_process.seal(answer_to(*asked, *table_));
        }
      }
    } catch (const Malformed& error) {
      if (!peer.stranger()) {
        notice(peer, error.what());
      }
      return false;
    }
    return send_to(peer);
  }

  void greet(Peer& peer) {
    const auto hello = hello_in(peer.arrived, root_, peer.challenge);
    if (!hello) {
      return;
    }
    Verdict verdict;
    if (!hello->proven) {
      verdict.answer = Answer::wrong_secret;
      notice(peer, "it does not know the secret of this run");
    } else if (const std::string holder = claimed(peer, hello->claim); !holder.empty()) {
      verdict = {.answer = Answer::taken, .text = holder};
      notice(
          peer,
          fmt::format(
              "{} claims rank {}, which {} has",
              printable(hello->claim.process),
              hello->claim.rank,
              printable(holder)));
    }
    peer.leaving += verdict_bytes(root_, peer.challenge, hello->bytes, verdict);
    if (verdict.answer == Answer::accepted) {
      peer.session = session(root_, peer.challenge, hello->bytes);
      Listener::keep_alive(peer.fd);
    } else {
      peer.last_word = true;
    }
  }

  // Gives the rank to the peer, or who has it.
  std::string claimed(Peer& peer, const Claim& claim) {
    if (claim.rank < 0) {
      return "";
    }
    const auto [place, is_new] = claimed_.try_emplace(
        {claim.attempt, claim.rank}, fmt::format("{} at {}", claim.process, peer.address));
    if (is_new) {
      peer.claim = claim;
      return "";
    }
    return place->second;
  }

  // As much as the connection takes; whether it is to stay.
  static bool send_to(Peer& peer) {
    while (!peer.leaving.empty()) {
      const ssize_t sent = send(peer.fd, peer.leaving.data(), peer.leaving.size(), MSG_NOSIGNAL);
      if (sent < 0) {
        return errno == EAGAIN || errno == EINTR;
      }
      peer.leaving.erase(0, static_cast<std::size_t>(sent));
    }
    if (peer.last_word) {  // closed once the peer has read it: unread bytes would reset the
                           // connection
      shutdown(peer.fd, SHUT_WR);
    }
    return true;
  }

  void forget(std::unique_ptr<Peer>& peer) {
    if (peer->claim) {
      claimed_.erase({peer->claim->attempt, peer->claim->rank});
    }
    peer.reset();
  }

  void notice(const Peer& peer, const std::string& why) {
    if (options_.notice && notices_ < kMostNotices) {
      ++notices_;
      options_.notice(fmt::format(
          "the rendezvous at {} turned away a connection from {}: {}{}",
          endpoint(listener().address(), listener().port()),
          peer.address,
          why,
          notices_ == kMostNotices ? "; others are not told of any more" : ""));
    }
  }

  const ServerOptions options_;
  const Key root_;
  const std::shared_ptr<Store> table_ = std::make_shared<Table>();
  const std::vector<Listener> listeners_;  // at one port
  const int wake_;
  std::atomic<bool> stop_ = false;
  // Of the thread alone, once it runs:
  std::map<std::pair<std::string, int>, std::string> claimed_;
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
