// Bytes as a connection to the rendezvous may bring them, for tests/fuzz/ and for the test that
// plays its corpus (conversation_test.cc).
//
// The first byte of an input says who sends the others:
//   s  a stranger: they are all that comes
//   h  who knows the secret, as a hello: its tag is right, whatever it says
//   m  the same after a greeting, as bodies of messages that are rightly sealed; each is its length
//      in two bytes, and itself
//   r  who was let in: after a greeting, as they are
//   c  to a process: a program that is no rendezvous
//   v  to a process: the rendezvous' verdict, its tag right
//   a  to a process: an answer of the rendezvous
//   w  another process that knows the secret, as its state in the store
//   l  the same, as the word of node 0's launcher
// The second byte says in which pieces they come.
//
// What is refused is fine.  Throws std::logic_error where something else is amiss.
#pragma once

#include <algorithm>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "src/run/comm/gloo/wait_state.h"
#include "src/run/comm/rendezvous/conversation.h"
#include "src/run/comm/rendezvous/launchers.h"
#include "src/run/comm/rendezvous/requests.h"

namespace paradyse::rendezvous::test {

inline void expect(bool is_so, const std::string& what) {
  if (!is_so) {
    throw std::logic_error(what);
  }
}

inline const Key& input_key() {
  static const Key key = root_key("a secret of inputs alone");
  return key;
}

// As challenge() makes it, but always the same: an input does the same each time.
inline const std::string& input_challenge() {
  static const std::string bytes = "PdyRdv1\n" + std::string(kNonceBytes, 'c');
  return bytes;
}

inline std::string with_length(std::string_view text) {
  std::string bytes;
  put_text(bytes, text);
  return bytes;
}

// A hello of a process that knows the secret; `said`: what stands between its nonce and its tag.
inline std::string proven_hello(std::string_view said) {
  std::string bytes = "PdyHel1\n" + std::string(kNonceBytes, 'h');
  bytes += said;
  return bytes + tag(input_key(), "hello", with_length(input_challenge()) + bytes);
}

inline std::string said_by(const std::string& attempt, const std::string& process, int rank) {
  std::string said = with_length(attempt) + with_length(process);
  put_number(said, static_cast<std::int32_t>(rank));
  return said;
}

inline constexpr const char* kThere = "failed";
inline constexpr const char* kValue = "rank 0: out of memory";
inline constexpr const char* kHolder = "process 1 on node0";

struct Played {
  std::string answered;   // with the challenge
  bool is_open = true;    // the conversation goes on
  bool stranger = true;   // it has proven nothing
  bool unchanged = true;  // the store is as it was
};

// What the rendezvous answers to these bytes, `piece` at a time.  Rank 0 is taken.
inline Played played(std::string_view bytes, std::size_t piece) {
  const auto table = std::make_shared<Table>();
  table->set(kThere, kValue);
  Reception reception{.root = input_key(), .store = table, .holders = {{{"", 0}, kHolder}}};
  Played found;
  {
    Conversation said(reception, "192.0.2.1", input_challenge());
    found.answered = said.leaving();
    said.leaving().clear();
    while (!bytes.empty() && found.is_open) {
      const std::size_t count = std::min({piece, said.room(), bytes.size()});
      expect(count <= kMostHello || !said.stranger(), "a stranger has more room than a greeting");
      if (said.last_word() || count == 0) {
        found.is_open = false;
        break;
      }
      found.is_open = said.take(bytes.substr(0, count));
      bytes.remove_prefix(count);
      if (found.is_open) {
        found.answered += said.leaving();
      }
      said.leaving().clear();
    }
    found.stranger = said.stranger();
    found.is_open = found.is_open && !said.last_word();
    expect(
        !found.stranger || reception.holders.size() == 1, "a stranger holds the rank of a process");
  }
  expect(
      reception.holders.size() == 1 && reception.holders.begin()->second == kHolder,
      "a connection that ended keeps its rank, or took another's");
  found.unchanged = table->get(kThere) == kValue;
  return found;
}

// The process' end of a connection to which these bytes come after the greeting.
inline void heard(std::string_view bytes, std::string_view hello) {
  Session mine = session(input_key(), input_challenge(), hello);
  std::string arrived(bytes);
  while (const auto answer = mine.to_process.open(arrived)) {
    (void)values_in(*answer);
  }
}

inline void play_process(char who, std::string_view rest) {
  const std::string hello = proven_hello(said_by("", "a process", 1));
  if (who == 'c') {
    std::string arrived(rest);
    try {
      (void)challenge_in(arrived);
    } catch (const Malformed&) {
    }
    std::string again(rest);
    const auto verdict = verdict_in(again, input_key(), input_challenge(), hello);
    expect(
        !verdict || verdict->answer == Answer::wrong_secret,
        "a program without the secret lets a process in");
    heard(rest, hello);
  } else if (who == 'v') {
    const std::string said(rest);
    std::string arrived =
        said +
        tag(input_key(), "verdict", with_length(with_length(input_challenge()) + hello) + said);
    (void)verdict_in(arrived, input_key(), input_challenge(), hello);
  } else if (who == 'a') {
    Session its = session(input_key(), input_challenge(), hello);
    heard(its.to_process.seal(rest), hello);
  } else if (who == 'w') {
    const auto wait = gloo::wait_in(std::string(rest), 1, 4);
    expect(!wait || (wait->rank >= 0 && wait->rank < 4), "a rank waits for one that is none");
  } else {
    Table table;
    table.set("launchers/1", std::string(rest));
    const std::vector<int> before = {0, 2, 3};
    const auto nodes =
        nodes_that_go_on(table, {.attempt = 1, .node = 2, .before = before}, [] { return false; });
    expect(
        nodes && std::ranges::includes(before, *nodes) &&
            std::ranges::adjacent_find(*nodes) == nodes->end(),
        "nodes go on that were not there before");
  }
}

// As a rendezvous reads it: whole, and in pieces, which makes no difference.
inline void play_rendezvous(char who, std::size_t piece, std::string_view rest) {
  std::string bytes;
  if (who == 's') {
    bytes = rest;
  } else if (who == 'h') {
    bytes = proven_hello(rest);
  } else {
    bytes = proven_hello(said_by("", "a process", 1));
    Session its = session(input_key(), input_challenge(), bytes);
    if (who == 'r') {
      bytes += rest;
    }
    while (who == 'm' && rest.size() >= 2) {
      BytesReader reader(rest);
      const std::size_t length = reader.number<std::uint16_t>();
      rest.remove_prefix(2);
      bytes += its.to_rendezvous.seal(rest.substr(0, length));
      rest.remove_prefix(std::min(length, rest.size()));
    }
  }
  const Played whole = played(bytes, std::string::npos);
  const Played pieces = played(bytes, piece);
  expect(
      whole.stranger == pieces.stranger && whole.is_open == pieces.is_open,
      "it matters in which pieces bytes come");
  // Where it ends, answers to what came first may be lost with it.
  expect(
      !whole.is_open || whole.answered == pieces.answered,
      "answers are others where bytes come in pieces");
  expect(who != 's' || (whole.stranger && whole.unchanged), "a stranger is let in");
  expect(who != 'r' || whole.unchanged, "a message that nobody sealed was done");
  expect(
      !whole.stranger || whole.answered.size() < 2048, "a stranger gets more than a short answer");
}

// Whether `input` says who sends it.
inline bool play(std::string_view input) {
  if (input.size() < 2 || std::string_view("shmrcvawl").find(input[0]) == std::string::npos) {
    return false;
  }
  const std::size_t piece = 1 + static_cast<unsigned char>(input[1]);
  try {
    if (std::string_view("shmr").find(input[0]) != std::string::npos) {
      play_rendezvous(input[0], piece, input.substr(2));
    } else {
      play_process(input[0], input.substr(2));
    }
  } catch (const std::runtime_error&) {  // Malformed is one
  }
  return true;
}

}  // namespace paradyse::rendezvous::test
