// How a process and the rendezvous prove to each other that they know the run's secret.
//
//   rendezvous -> process   challenge: a mark, a nonce
//   process -> rendezvous   hello: a mark, a nonce, who it claims to be, a tag
//   rendezvous -> process   verdict: accepted, or why not, a tag
//
// A tag is over all that was said before it.
//
// The process proves itself first, so that a stranger that connects gets nothing made with the key.
// The tags of the two sides have labels of their own: none can be handed back as the other's.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "src/run/comm/rendezvous/seal.h"

namespace paradyse::rendezvous {

// Who a process says it is.
struct Claim {
  std::string attempt;  // of the job that a launcher restarts; "": the first
  int rank = -1;        // -1: none, of which there may be any number
  std::string process;  // "process 4711 on node3", for messages

  friend bool operator==(const Claim&, const Claim&) = default;
};
// Longer parts are cut off by hello().
inline constexpr std::size_t kMostClaimText = 96;

inline constexpr std::size_t kMarkBytes = 8;
inline constexpr std::size_t kChallengeBytes = kMarkBytes + kNonceBytes;
// The longest hello: what the rendezvous reads of a stranger at most.
inline constexpr std::size_t kMostHello =
    kMarkBytes + kNonceBytes + 3 * sizeof(std::uint32_t) + 2 * kMostClaimText + kTagBytes;

std::string challenge();
// Takes a challenge off the front of what has arrived; none while it is incomplete.  Throws
// Malformed for anything else, as soon as a byte shows it.
std::optional<std::string> challenge_in(std::string& arrived);

std::string hello(const Key& root, std::string_view challenge, const Claim& claim);
struct Hello {
  std::string bytes;  // all of it
  Claim claim;
  bool proven = false;  // its tag is right
};
// Likewise.
std::optional<Hello> hello_in(std::string& arrived, const Key& root, std::string_view challenge);

enum class Answer : std::uint8_t { accepted = 0, wrong_secret = 1, taken = 2 };
struct Verdict {
  Answer answer = Answer::accepted;
  std::string text;  // taken: by whom
};
// The tag of one that says wrong_secret is nobody's: the rendezvous answers a stranger with nothing
// that is made with the key.
std::string verdict_bytes(
    const Key& root, std::string_view challenge, std::string_view hello, const Verdict& verdict);
// Likewise.  Throws Malformed for a tag that is wrong, but for wrong_secret.
std::optional<Verdict> verdict_in(
    std::string& arrived, const Key& root, std::string_view challenge, std::string_view hello);

// Of a connection that was accepted.
struct Session {
  Direction to_rendezvous;
  Direction to_process;
};
Session session(const Key& root, std::string_view challenge, std::string_view hello);

}  // namespace paradyse::rendezvous
