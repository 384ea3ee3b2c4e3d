// The rendezvous' end of a connection, without the connection: which bytes it answers to those that
// come.  Server (server.h) moves them; tests and the fuzzer of tests/fuzz/ do without sockets.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "src/run/comm/rendezvous/greeting.h"
#include "src/run/comm/rendezvous/store.h"

namespace paradyse::rendezvous {

// What all conversations of a rendezvous share.  Of one thread, but for the store.
struct Reception {
  Key root{};
  std::shared_ptr<Store> store;
  // Attempt and rank -> who has it: no other may claim it.
  std::map<std::pair<std::string, int>, std::string> holders = {};
  // Is told why a connection from `address` is turned away.
  std::function<void(const std::string& address, const std::string& why)> notice = {};
};

class Conversation {
 public:
  // `reception` outlives it.  `challenge`: of challenge(), which no other conversation had.
  Conversation(Reception& reception, std::string address, std::string challenge);
  // Gives its rank back.
  ~Conversation();
  Conversation(const Conversation&) = delete;
  Conversation& operator=(const Conversation&) = delete;

  // It has not proven that it knows the secret.
  [[nodiscard]] bool stranger() const { return !session_.has_value(); }
  // It is turned away: it takes no more bytes, and ends once what it has to say is sent.
  [[nodiscard]] bool last_word() const { return last_word_; }
  // How many bytes it takes at a time; of a stranger no more than a greeting has, then 0.
  [[nodiscard]] std::size_t room() const;

  // Takes at most room() bytes.  False: it ends here, and nothing more is to be sent.
  [[nodiscard]] bool take(std::string_view bytes);
  // What is yet to be sent, the challenge first; who sends takes it off the front.
  [[nodiscard]] std::string& leaving() { return leaving_; }

 private:
  void greet();
  std::string holder_of(const Claim& claim);

  Reception& reception_;
  const std::string address_;
  const std::string challenge_;
  std::string arrived_;
  std::string leaving_;
  bool last_word_ = false;
  std::optional<Session> session_;
  std::optional<Claim> claim_;  // a rank that it holds
};

}  // namespace paradyse::rendezvous
