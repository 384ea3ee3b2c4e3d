#include "src/run/comm/rendezvous/client.h"

#include <array>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <utility>

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>

#include "src/run/comm/rendezvous/address.h"
#include "src/run/comm/rendezvous/printable.h"
#include "src/run/comm/rendezvous/requests.h"

namespace paradyse::rendezvous {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kPause{100};  // before it is tried again

// The connection ended: the other side is about to start, at its end, or turns strangers away.
struct HungUp : std::runtime_error {
  using std::runtime_error::runtime_error;
};
struct Silent : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Bytes there and back, each with a deadline.
class Connection {
 public:
  explicit Connection(Socket socket) : socket_(std::move(socket)) {}

  void send(std::string_view bytes, Clock::time_point end) {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(socket_.fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent >= 0) {
        bytes.remove_prefix(static_cast<std::size_t>(sent));
      } else if (errno == EAGAIN) {
        await(POLLOUT, end);
      } else if (errno != EINTR) {
        throw HungUp(std::strerror(errno));
      }
    }
  }

  // Calls take(arrived) until it gives something, with more each time.
  template <typename Take>
  auto receive(const Take& take, Clock::time_point end) {
    while (true) {
      if (auto found = take(arrived_)) {
        return *std::move(found);
      }
      std::array<char, 1 << 16> bytes{};
      const ssize_t got = recv(socket_.fd(), bytes.data(), bytes.size(), 0);
      if (got > 0) {
        arrived_.append(bytes.data(), static_cast<std::size_t>(got));
      } else if (got == 0) {
        throw HungUp("it closed the connection");
      } else if (errno == EAGAIN) {
        await(POLLIN, end);
      } else if (errno != EINTR) {
        throw HungUp(std::strerror(errno));
      }
    }
  }

 private:
  void await(short events, Clock::time_point end) const {
    if (!socket_.await(events, end)) {
      throw Silent("no answer");
    }
  }

  Socket socket_;
  std::string arrived_;
};

// Proves both sides to each other.
Session greet(Connection& connection, const ClientOptions& options, Clock::time_point end) {
  const Key root = root_key(options.secret);
  const std::string asked = connection.receive(challenge_in, end);
  const std::string mine = hello(root, asked, options.claim);
  connection.send(mine, end);
  const Verdict verdict = connection.receive(
      [&](std::string& arrived) { return verdict_in(arrived, root, asked, mine); }, end);
  switch (verdict.answer) {
    case Answer::accepted:
      return session(root, asked, mine);
    case Answer::wrong_secret:
      throw std::runtime_error(
          options.secret.empty()
              ? "it asks for the run's secret, and this process has none: give it the secret that "
                "the others have, in PARADYSE_SECRET, or in a file by --secret-file"
              : "it refuses this process's secret: all processes of a run have the same one "
                "(PARADYSE_SECRET or --secret-file), and no two runs meet at one address");
    case Answer::taken:
      throw std::runtime_error(fmt::format(
          "rank {} is taken: {} came first. Two processes were started as the same rank; check "
          "what gives them their number (RANK, SLURM_PROCID, OMPI_COMM_WORLD_RANK or PMI_RANK)",
          options.claim.rank,
          printable(verdict.text)));
  }
  throw Malformed("a greeting has an unknown answer");
}

class RemoteStore final : public Store {
 public:
  RemoteStore(Connection connection, Session session, milliseconds answer)
      : connection_(std::move(connection)), session_(session), answer_(answer) {}

  void set(const std::string& key, const std::string& value) override {
    expect(ask(Command::set, {key, value}), 0);
  }
  std::string set_once(const std::string& key, const std::string& value) override {
    return expect(ask(Command::set_once, {key, value}), 1).front();
  }
  std::optional<std::string> get(const std::string& key) override {
    auto values = ask(Command::get, {key});
    return values.empty() ? std::nullopt : std::optional(std::move(values.front()));
  }
  std::vector<std::string> get_all(const std::vector<std::string>& keys) override {
    return expect(ask(Command::get_all, keys), keys.size());
  }

 private:
  std::vector<std::string> ask(Command command, const std::vector<std::string>& fields) {
    const std::lock_guard lock(mutex_);
    if (broken_) {
      throw std::runtime_error("the connection to it is lost");
    }
    try {
      const auto end = Clock::now() + answer_;
      connection_.send(session_.to_rendezvous.seal(request(command, fields)), end);
      const std::string answer = connection_.receive(
          [&](std::string& arrived) { return session_.to_process.open(arrived); }, end);
      return values_in(answer);
    } catch (const Silent&) {
      broken_ = true;  // its answer might come to another question
      throw std::runtime_error(fmt::format("no answer within {} ms", answer_.count()));
    } catch (const HungUp&) {
      broken_ = true;
      throw;
    } catch (const Malformed&) {
      broken_ = true;
      throw;
    }
  }

  static std::vector<std::string> expect(std::vector<std::string> values, std::size_t count) {
    if (values.size() != count) {
      throw Malformed("an answer has another number of values than was asked for");
    }
    return values;
  }

  std::mutex mutex_;  // of what follows
  Connection connection_;
  Session session_;
  bool broken_ = false;
  milliseconds answer_;
};

}  // namespace

std::shared_ptr<Store> reach_store(const ClientOptions& options) {
  const auto end = Clock::now() + options.patience;
  std::string why = "no program listens at this address";
  while (true) {
    try {
      Socket socket =
          connected(options.host, options.port, end, /*loopback_alone=*/options.secret.empty());
      Connection connection(std::move(socket));
      const Session made = greet(connection, options, turn_until(end));
      return std::make_shared<RemoteStore>(std::move(connection), made, options.answer);
    } catch (const HungUp& error) {
      why = error.what();
    } catch (const Unreached& error) {
      why = error.what();
    } catch (const Silent&) {  // another address of the name may lead to it
      why = "the program at this address does not answer as a rendezvous";
    } catch (const Malformed& error) {
      throw std::runtime_error(fmt::format(
          "the program at this address is not the rendezvous of this run: {}", error.what()));
    }
    if (Clock::now() + kPause > end) {
      throw std::runtime_error(why);
    }
    std::this_thread::sleep_for(kPause);
  }
}

}  // namespace paradyse::rendezvous
