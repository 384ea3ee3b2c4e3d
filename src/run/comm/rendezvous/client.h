// The store of a run that another process keeps.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "src/run/comm/rendezvous/greeting.h"
#include "src/run/comm/rendezvous/store.h"

namespace paradyse::rendezvous {

struct ClientOptions {
  std::string host;
  int port = 0;
  std::string secret;
  Claim claim;
  std::chrono::milliseconds patience = std::chrono::seconds(10);  // to find it and be let in
  std::chrono::milliseconds answer = std::chrono::seconds(60);    // to each request
};

// Tries for the patience while nobody listens there.  Throws std::runtime_error with what is wrong:
// nobody listens or answers, another program does, or it refuses the secret or the claim;
// std::invalid_argument where there is no secret and other machines reach the address.
std::shared_ptr<Store> reach_store(const ClientOptions& options);

}  // namespace paradyse::rendezvous
