// How a process of a run comes to the run's store: rank 0 serves it, unless a launcher does, and
// the others find it.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "paradyse/run/backend.h"
#include "src/run/comm/rendezvous/server.h"

namespace paradyse::gloo {

struct Meeting {
  std::unique_ptr<rendezvous::Server> server;  // where this process keeps it
  std::shared_ptr<rendezvous::Store> store;    // of this attempt
  int port = 0;
};

// Throws CommunicatorError, past the patience or where this process is turned away, with what to
// do; std::invalid_argument where other machines reach the address and there is no secret.
Meeting meet(const GlooOptions& options, std::chrono::milliseconds patience);

// As meet() does for rank 0.  Throws as rendezvous::Server does.
std::unique_ptr<rendezvous::Server> serve(
    const GlooOptions& options, int port, std::optional<rendezvous::Claim> reserved = {});

std::shared_ptr<rendezvous::Store> of_attempt(
    std::shared_ptr<rendezvous::Store> store, const std::string& attempt);

// "PORT ADDRESS", as rank `rank` says where it listens.  Throws CommunicatorError for anything
// else.
std::pair<std::string, int> place_in(const std::string& text, int rank);

// For the message of a rank that waits for others: that they cannot reach it by this name, where
// the name of rank 0's machine stands for loopback there; else "".
std::string loopback_by_name(const GlooOptions& options);

}  // namespace paradyse::gloo
