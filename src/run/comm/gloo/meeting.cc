#include "src/run/comm/gloo/meeting.h"

#include <charconv>
#include <cstdio>
#include <optional>
#include <stdexcept>
#include <thread>

#include <fmt/format.h>
#include <unistd.h>

#include "src/run/comm/gloo/wire.h"
#include "src/run/comm/rendezvous/address.h"
#include "src/run/comm/rendezvous/client.h"
#include "src/run/comm/rendezvous/printable.h"

namespace paradyse::gloo {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr const char* kPrefix = "paradyse";
constexpr milliseconds kAgentPause{50};

// What a rank's own waiting may take beyond its deadline, so that it says itself whom it waited
// for.
constexpr milliseconds kBeyond = std::chrono::seconds(5);

std::string this_process() {
  char host[64] = {};
  gethostname(host, sizeof(host) - 1);
  return fmt::format("process {} on {}", getpid(), host);
}

rendezvous::Claim claim_of(const GlooOptions& options) {
  return {.attempt = options.attempt, .rank = options.rank, .process = this_process()};
}

double as_seconds(milliseconds time) { return static_cast<double>(time.count()) / 1e3; }

// All of it, from 1 to 65535.
std::optional<int> port_in(std::string_view text) {
  int port = 0;
  const char* const end = text.data() + text.size();
  const auto [parsed, error] = std::from_chars(text.data(), end, port);
  return error == std::errc{} && parsed == end && port > 0 && port <= 65535 ? std::optional(port)
                                                                            : std::nullopt;
}

std::string agent_key(const GlooOptions& options) {
  return fmt::format("{}{}/port", kPrefix, options.attempt);
}

int port_from_agent(const GlooOptions& options, milliseconds patience) {
  const auto end = Clock::now() + patience;
  const auto agent = reach_agent(options.agent_host, options.agent_port, patience);
  while (Clock::now() < end) {
    if (const auto text = agent->get(agent_key(options))) {
      if (const auto port = port_in(*text)) {
        return *port;
      }
      throw std::runtime_error(fmt::format(
          "torchrun's store has '{}' as the port of the rendezvous, which is not a port number",
          rendezvous::printable(*text, 64)));
    }
    std::this_thread::sleep_for(kAgentPause);
  }
  throw std::runtime_error("rank 0 did not publish its address in torchrun's store");
}

Meeting met(const GlooOptions& options, bool serves, milliseconds patience) {
  const bool by_agent = options.agent_port != 0;
  if (serves) {
    auto server = serve(options, by_agent ? 0 : options.port, claim_of(options));
    if (by_agent) {
      reach_agent(options.agent_host, options.agent_port, patience)
          ->set(agent_key(options), std::to_string(server->port()));
    }
    auto store = of_attempt(server->store(), options.attempt);
    const int port = server->port();
    return {.server = std::move(server), .store = std::move(store), .port = port};
  }
  const int port = by_agent ? port_from_agent(options, patience) : options.port;
  auto store = rendezvous::reach_store(
      {.host = options.host,
       .port = port,
       .secret = options.secret,
       .claim = claim_of(options),
       .patience = patience,
       .answer = options.deadline + kBeyond});
  return {.server = nullptr, .store = of_attempt(std::move(store), options.attempt), .port = port};
}

}  // namespace

Meeting meet(const GlooOptions& options, milliseconds patience) {
  const bool serves = options.rank == 0 && !options.kept_elsewhere;
  block_sigpipe();
  try {
    return met(options, serves, patience);
  } catch (const std::runtime_error& error) {
    throw CommunicatorError(fmt::format(
        "rank {} could not {} the rendezvous at {}{}: check the address (--rendezvous, or "
        "MASTER_ADDR and MASTER_PORT), that the process that serves it is running, and that no "
        "firewall blocks it. A machine behind NAT needs --interface ({})",
        options.rank,
        serves ? "open" : "reach",
        rendezvous::endpoint(options.host, options.port),
        serves ? "" : fmt::format(" within {} s", as_seconds(patience)),
        error.what()));
  }
}

std::unique_ptr<rendezvous::Server> serve(
    const GlooOptions& options, int port, std::optional<rendezvous::Claim> reserved) {
  // A machine behind another's address knows its own by the interface alone.
  const bool elsewhere =
      !options.interface.empty() && !rendezvous::is_of_this_machine(options.host);
  rendezvous::ServerOptions served;
  served.host = elsewhere ? rendezvous::address_of_interface(options.interface) : options.host;
  served.port = port;
  served.secret = options.secret;
  served.reserved = std::move(reserved);
  served.notice = [](const std::string& what) {
    std::fprintf(stderr, "paradyse: warning: %s\n", what.c_str());
  };
  return std::make_unique<rendezvous::Server>(served);
}

std::shared_ptr<rendezvous::Store> of_attempt(
    std::shared_ptr<rendezvous::Store> store, const std::string& attempt) {
  return rendezvous::with_prefix(std::move(store), kPrefix + attempt);
}

std::pair<std::string, int> place_in(const std::string& text, int rank) {
  const std::size_t space = text.find(' ');
  const auto port = port_in(std::string_view(text).substr(0, space));
  const std::string address = space == std::string::npos ? "" : text.substr(space + 1);
  // An IPv6 address of an interface ends in %NAME.
  const bool fine = !address.empty() && address.size() <= 64 &&
                    address.find_first_not_of(
                        "0123456789abcdefABCDEF.:%_-"
                        "ghijklmnopqrstuvwxyzGHIJKLMNOPQRSTUVWXYZ") == std::string::npos;
  if (!port || !fine) {
    throw CommunicatorError(fmt::format(
        "rank {} published '{}', which is not a port and an address: it runs another program or "
        "another version; start the same program on all machines",
        rank,
        rendezvous::printable(text, 128)));
  }
  return {address, *port};
}

std::string loopback_by_name(const GlooOptions& options) {
  const bool by_number = options.host.find_first_not_of("0123456789.:") == std::string::npos;
  if (by_number || options.host == "localhost" || !rendezvous::is_loopback(options.host)) {
    return "";
  }
  return fmt::format(
      ". On this machine the name {} resolves to a loopback address, which other machines cannot "
      "reach: if the processes run on several machines, give its IP address in their network",
      options.host);
}

}  // namespace paradyse::gloo
